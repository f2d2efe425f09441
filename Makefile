# The project's commands; `make` alone lists them. Everything lives in .venv/; a second run does nothing needless.
#
#   PYTHON=python3.12 make test     with another interpreter
#   make test PYTEST_ARGS='-k etcd' a part of the tests
#   make test PYTEST_JOBS=0         the tests one after another (most of them wait, so four at once suit two cores)

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.NOTPARALLEL:
.SUFFIXES:
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
PYTEST_ARGS ?=
PYTEST_JOBS ?= 4
VENV := .venv
BIN := $(VENV)/bin
INPUTS := pyproject.toml constraints.txt


.PHONY: help env dev demo test check etcd long bench docs format build clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */\1\t/' | while IFS=$$'\t' read -r name text; do \
	    printf '  make %-8s %s\n' "$$name" "$$text"; done

demo: ## train a small GPT, break it in five ways, see it end as if nothing had been
	@began=$$SECONDS; $(MAKE) --no-print-directory env; ready=$$SECONDS; code=0; \
	$(BIN)/python examples/demo/demo.py || code=$$?; \
	echo "make demo: environment $$((ready - began)) s, demo $$((SECONDS - ready)) s"; exit $$code

test: etcd check ## install what the tests need, then run the whole check

check: dev ## exactly what CI runs: lint, format, types, import contracts, reference pages, tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m pytest -p no:cacheprovider -q -n $(PYTEST_JOBS) --dist worksteal $(PYTEST_ARGS)

long: dev etcd ## run the long tests, and date them in benchmarks/RESULTS.md
	FTCORE_REQUIRE_ETCD=1 FTCORE_REQUIRE_HOSTS=1 $(BIN)/python benchmarks/long_tests.py

bench: dev ## run every benchmark; each rewrites its section of benchmarks/RESULTS.md
	@for file in $$(grep -l __main__ benchmarks/*.py | grep -v long_tests); do echo "make bench: $$file"; $(BIN)/python $$file; done

docs: dev ## write docs/reference from the code
	$(BIN)/python docs/generate.py

format: dev ## repair what ruff can repair
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

build: dev ## make the wheel and the source archive in dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

clean: ## remove the environment and everything that was made
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

env: $(VENV)/.env-made ## the environment that the demo needs

dev: $(VENV)/.dev-made ## the environment with the tools of development

$(VENV)/.pip-made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "make: $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo not there); ftcore needs Python 3.11 or newer: install it, or name it: make PYTHON=python3.12" >&2; \
	    exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "make: $(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade -c constraints.txt pip
	@touch $@

$(VENV)/.env-made: $(VENV)/.pip-made $(INPUTS)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[torch]'
	@touch $@

$(VENV)/.dev-made: $(VENV)/.env-made
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[torch]' --group dev
	@touch $@

# A real etcd server serves the tests of the etcd log. It is not started as a service: each test starts its own.
DEBS := etcd-server etcd-client iproute2
etcd:
	@PATH=$$PATH:/usr/sbin:/sbin; \
	if command -v "$${FTCORE_ETCD_BINARY:-etcd}" >/dev/null && command -v etcdctl >/dev/null && command -v ip >/dev/null; then exit 0; fi; \
	say() { echo "make test: etcd, etcdctl or ip is not here ($$1): the tests of the etcd log or of hosts are skipped; to run them: apt-get install $(DEBS)" >&2; }; \
	command -v apt-get >/dev/null || { say "and no apt-get"; exit 0; }; \
	if [ "$$(id -u)" = 0 ]; then as_root=env; elif sudo -n true 2>/dev/null; then as_root='sudo -n env'; \
	else say "and no right to install one"; exit 0; fi; \
	echo "make test: installing $(DEBS) for the tests of the etcd log and of hosts"; \
	$$as_root DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq $(DEBS) >/dev/null \
	    || { $$as_root apt-get update -qq && $$as_root DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq $(DEBS) >/dev/null; } \
	    || say "apt-get cannot install it"
