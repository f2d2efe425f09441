"""Policies and rules of installed packages, as ftrun and ftctl find them: by name, in a process of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from packages import TAKE, install, install_example, odd

CHAIN = "version: 1\nchain:\n  - acme_odd: {rest: 100ms}\n  - process_restart\n  - stop\n"
POLICIES, RULES = "ftcore.policies", "ftcore.faults"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose ``site`` is where packages are found."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chain.yaml").write_text(CHAIN)
    return tmp_path


def run(program: str, *argv: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", f"ftcore.cli.{program}", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def explained(*argv: str) -> dict[str, Any]:
    done = run("ftctl", "policy", "explain", *argv, "--fault", "gpu-hw", "--format", "json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_file_may_name_a_policy_of_a_package(here: Path) -> None:
    """It is checked with its own options and explained with its own words and version."""
    odd(here, TAKE)
    done = run("ftctl", "policy", "check", "chain.yaml")
    assert (done.returncode, done.stdout) == (0, "chain.yaml: acme_odd -> process_restart -> stop\n")
    entry = explained("chain.yaml")["chain"][0]
    assert entry["from"] == "acme-odd 2.1"
    assert entry["conditions"] == ["does what the test says"]
    assert entry["options"] == {"rest": 0.1}
    (here / "chain.yaml").write_text(CHAIN.replace("rest", "rset"))
    done = run("ftctl", "policy", "check", "chain.yaml")
    assert done.returncode == 2
    assert "line 3: acme_odd: unknown key 'rset'; did you mean 'rest'?" in done.stderr


def test_without_the_package_the_name_is_unknown(here: Path) -> None:
    """As any other misspelt name."""
    done = run("ftctl", "policy", "check", "chain.yaml")
    assert done.returncode == 2
    assert "unknown policy 'acme_odd'" in done.stderr


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("import no_such_module", "it cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("syntax error", "it cannot be loaded: SyntaxError: invalid syntax"),
        ("Even = 1", "it cannot be loaded: AttributeError: module 'acme_odd' has no attribute 'Odd'"),
        ("class Odd:\n    name = 'acme_even'", "`name` is 'acme_even', but the entry point is called 'acme_odd'"),
        ("class Odd:\n    def __init__(self, x): pass", "it cannot be loaded: TypeError: Odd.__init__() missing"),
        ("import os\nos._exit(7)", "the packages that offer acme_odd cannot be loaded: exit code 7"),
        ("import sys\nsys.exit(7)", "it cannot be loaded: SystemExit: 7"),
    ],
)
def test_a_package_that_cannot_be_used_is_told(here: Path, module: str, says: str) -> None:
    """One message that names what is wrong; ftrun starts nothing."""
    install(here / "site", "acme-odd", "2.1", {"acme_odd.py": module}, {POLICIES: {"acme_odd": "acme_odd:Odd"}})
    done = run("ftrun", "--policy", "chain.yaml", "train.py")
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_what_no_file_names_is_not_loaded(here: Path) -> None:
    """A broken package costs those who do not use it nothing."""
    entries = {POLICIES: {"acme_odd": "acme_odd:Odd"}}
    install(here / "site", "acme-odd", "2.1", {"acme_odd.py": "import os\nos._exit(7)"}, entries)
    (here / "chain.yaml").write_text("version: 1\nchain:\n  - process_restart\n  - stop\n")
    assert run("ftctl", "policy", "check", "chain.yaml").returncode == 0


def test_names_are_taken_once(here: Path) -> None:
    """Neither a name of ftcore's nor one that two packages offer can be meant."""
    install(here / "site", "acme-stop", "1.0", {}, {POLICIES: {"stop": "acme_odd:Odd"}})
    done = run("ftctl", "policy", "check", "chain.yaml")
    assert done.returncode == 2
    assert "acme-stop 1.0 offers a policy stop, but ftcore has a policy of that name" in done.stderr


def test_two_packages_offer_the_same(here: Path) -> None:
    """Both are named."""
    odd(here, TAKE)
    install(here / "site", "bolt-odd", "0.3", {}, {POLICIES: {"acme_odd": "acme_odd:Odd"}})
    done = run("ftctl", "policy", "check", "chain.yaml")
    assert done.returncode == 2
    assert "acme-odd 2.1 and bolt-odd 0.3 both offer a policy acme_odd" in done.stderr


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("RULES = 3", "the rules acme of acme-rules 1.0: they cannot be loaded: TypeError: found int"),
        ("RULES = [{'pattern': '('}]", "rules of acme-rules 1.0[0]: the key 'class' is missing"),
        ("RULES = [{'pattern': '(', 'class': 'gpu-hw'}]", "rules of acme-rules 1.0[0].pattern"),
        ("1 / 0", "ZeroDivisionError"),
        ("import os\nos._exit(7)", "the packages that offer rules cannot be loaded: exit code 7"),
    ],
)
def test_rules_that_cannot_be_used_are_told(here: Path, module: str, says: str) -> None:
    """ftrun names the package and starts nothing."""
    install(here / "site", "acme-rules", "1.0", {"acme_rules.py": module}, {RULES: {"acme": "acme_rules:RULES"}})
    (here / "train.py").write_text("")
    done = run("ftrun", "--standalone", "train.py")
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_rules_of_file_and_package_must_differ(here: Path) -> None:
    """A name that both have is told with both places."""
    install_example(here / "site")
    rule = "  rules:\n    - {name: acme-bmc, pattern: x, class: storage}\n"
    (here / "chain.yaml").write_text(f"version: 1\nfaults:\n{rule}")
    (here / "train.py").write_text("")
    done = run("ftrun", "--policy", "chain.yaml", "train.py")
    assert done.returncode == 2
    assert "the rules of acme-policies 1.0 conflict with those of chain.yaml" in done.stderr
    assert "the name 'acme-bmc' is already used" in done.stderr


def test_the_example_keeps_its_contract(here: Path) -> None:
    """The tests of examples/policy pass, as its authors would run them."""
    install_example(here / "site")
    tests = Path(__file__).parents[3] / "examples/policy/tests"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    entry = "version: 1\nchain:\n  - acme_cool_down\n  - stop\n"
    (here / "chain.yaml").write_text(entry)
    assert explained("chain.yaml")["chain"][0]["options"]["max_rests"] == 3


def test_a_simulation_goes_on_without_it(here: Path) -> None:
    """A chain with such a policy can be simulated: it passes, the others are asked."""
    odd(here, TAKE)
    flags = ("--nodes", "4", "--days", "5", "--rate", "0.5", "--policy", "chain.yaml", "--format", "json")
    done = run("ftctl", "simulate", *flags)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["incidents"]
    assert not told["violations"]
