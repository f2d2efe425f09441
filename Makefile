# The project's commands; `make` lists them. The environment is .venv/; a second run repeats no finished step.
#
#   PYTHON=python3.12 make test     with another interpreter
#   make test PYTEST_ARGS='-k etcd' a part of the tests
#   make test PYTEST_JOBS=0         the tests in sequence (most of them wait, so four in parallel fit two cores)
#
# A failed test is repeated once, because hundreds of tests run real processes on few cores; the summary names it (RERUN).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.NOTPARALLEL:
.SUFFIXES:
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The tests start thousands of processes: without stored bytecode, each compiles ftcore anew (a third more CPU time).
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
PYTEST_ARGS ?=
PYTEST_JOBS ?= 4
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := $(filter-out integrations/ray/%,$(sort $(wildcard integrations/*/pyproject.toml))) # ray: see `make long`
INPUTS := pyproject.toml constraints.txt $(PACKAGES)


.PHONY: help env dev demo test check etcd long bench cuda docs transcript picture format build clean

help:  ## print this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */\1\t/' | while IFS=$$'\t' read -r name text; do \
	    printf '  make %-10s %s\n' "$$name" "$$text"; done

demo: ## train a small GPT with five faults and a pause, and compare the result with an undisturbed run
	@began=$$SECONDS; $(MAKE) --no-print-directory env; ready=$$SECONDS; code=0; \
	$(BIN)/python examples/demo/demo.py || code=$$?; \
	echo "make demo: environment $$((ready - began)) s, demo $$((SECONDS - ready)) s"; exit $$code

test: etcd check ## install the tests' requirements, then run the whole check

check: dev ## lint, format, types, import contracts, reference pages, tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m pytest -p no:cacheprovider -q --reruns 1 -raR -n $(PYTEST_JOBS) --dist worksteal $(if $(PYTEST_ARGS),$(PYTEST_ARGS),tests)
	$(if $(PYTEST_ARGS),,$(BIN)/python -m pytest -p no:cacheprovider -q --reruns 1 -raR -n 3 --dist worksteal integrations) # whole clusters: not beside the others

long: dev etcd ## run the long tests, and record the date in benchmarks/RESULTS.md
	$(BIN)/python -m pip install --quiet -c constraints.txt -e integrations/ray # 285 MB: only here
	FTCORE_REQUIRE_ETCD=1 FTCORE_REQUIRE_HOSTS=1 FTCORE_REQUIRE_SLURM=1 FTCORE_REQUIRE_PROMETHEUS=1 FTCORE_REQUIRE_CHROMIUM=1 FTCORE_REQUIRE_RAY=1 $(BIN)/python benchmarks/long_tests.py

bench: dev ## run every benchmark; each rewrites its section of benchmarks/RESULTS.md
	@for file in $$(grep -l __main__ benchmarks/*.py | grep -v long_tests); do echo "make bench: $$file"; $(BIN)/python $$file; done

cuda: dev ## run the tests and the benchmark that need a CUDA device
	FTCORE_REQUIRE_CUDA=1 $(BIN)/python -m pytest -p no:cacheprovider -q -n 3 tests/cuda
	$(BIN)/python benchmarks/checkpoints.py --device cuda

docs: $(VENV)/.docs-made ## write docs/reference from the code, build the documentation site in build/site, check its links
	$(BIN)/python docs/generate.py
	$(BIN)/python -m sphinx -c docs/site -d build/site-cache -b html -j auto -q -W --keep-going . build/site
	$(BIN)/python docs/site/check.py build/site

transcript: dev ## run the tutorials' commands, write what they print into docs/tutorial/
	$(BIN)/python docs/transcript.py

picture: dev ## run the demo, record its output in docs/images/demo.svg, its report in docs/images/report.png, and the live page in docs/images/live.png
	$(BIN)/python docs/picture.py
	$(BIN)/python docs/report_picture.py
	$(BIN)/python docs/live_picture.py

format: dev ## fix formatting and simple lint errors with ruff
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

build: dev ## build the wheel and the source archive in dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

clean: ## remove the environment and all build products
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

env: $(VENV)/.env-made ## create the environment for the demo

dev: $(VENV)/.dev-made ## create the environment for development

$(VENV)/.pip-made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "make: $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo not found); ftcore needs Python 3.11 or newer: install it, or set it: make PYTHON=python3.12" >&2; \
	    exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "make: $(PYTHON) cannot create virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade -c constraints.txt pip
	@touch $@

$(VENV)/.env-made: $(VENV)/.pip-made $(INPUTS)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[torch]'
	@touch $@

$(VENV)/.dev-made: $(VENV)/.env-made
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[torch]' $(addprefix -e ,$(dir $(PACKAGES))) --group dev
	@touch $@

$(VENV)/.docs-made: $(VENV)/.dev-made
	$(BIN)/python -m pip install --quiet -c constraints.txt --group docs
	@touch $@

# The tests of the etcd log use a real etcd server, those of Slurm its daemons, those of metrics a real
# Prometheus, those of report pages a real Chromium. Each
# test starts its own; none runs as a service.
DEBS := etcd-server etcd-client iproute2 slurmctld slurmd slurm-client munge prometheus chromium
etcd:
	@PATH=$$PATH:/usr/sbin:/sbin; \
	missing=; for each in "$${FTCORE_ETCD_BINARY:-etcd}" etcdctl ip slurmctld slurmd sbatch munged promtool chromium; do \
	    command -v "$$each" >/dev/null || missing="$$missing $$each"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	say() { echo "make test:$$missing is missing ($$1): the tests of the etcd log, of hosts, of Slurm, of Prometheus or of report pages are skipped; to run them: apt-get install $(DEBS)" >&2; }; \
	command -v apt-get >/dev/null || { say "apt-get not found"; exit 0; }; \
	if [ "$$(id -u)" = 0 ]; then as_root=env; elif sudo -n true 2>/dev/null; then as_root='sudo -n env'; \
	else say "no permission to install packages"; exit 0; fi; \
	echo "make test: installing $(DEBS) for the tests of the etcd log, of hosts, of Slurm, of Prometheus and of report pages"; \
	$$as_root DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq $(DEBS) >/dev/null \
	    || { $$as_root apt-get update -qq && $$as_root DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq $(DEBS) >/dev/null; } \
	    || say "apt-get failed to install it"
