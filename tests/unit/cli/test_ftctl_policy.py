"""``ftctl policy``, and the policy that ``ftrun`` begins with."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from ftcore.cli import ctl_rehearsal
from ftcore.cli.ctl_parser import build_parser
from ftcore.cli.ftctl import main
from ftcore.errors import UsageError
from ftcore.faults.taxonomy import FaultClass
from ftcore.launch.policy_file import policy_in_force
from ftcore.policies.chain import BUILT_IN, DEFAULT_ORDER
from ftcore.policies.file import presets
from ftcore.policies.file.config import default_chain
from ftcore.policies.file.yaml_nodes import BYTES_MAX

GOOD = "version: 1\nchain:\n  - pod_replacement: {faults: [gpu-hw]}\n  - process_restart\n  - stop\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "policy.yaml"


def begin(file: Path | None, **changes):
    return policy_in_force(str(file) if file else None, **{"max_restarts": None, "switches": "", "ranks": 4, **changes})


@pytest.mark.parametrize("name", [None, *presets.names()])
def test_what_init_writes_is_taken(name, file, capsys):
    """By ``check`` and by a run, on a machine that can do nothing special."""
    assert main(["policy", "init", *(["--preset", name] if name else [])]) == 0
    file.write_text(capsys.readouterr().out)
    assert main(["policy", "check", str(file)]) == 0
    assert begin(file).chain


def test_check_tells_every_mistake_as_data(file, capsys):
    """JSON for editors and CI; exit 2."""
    file.write_text("version: 1\nchain:\n  - process_restrat\n  - stop: {grace: soon}\n")
    assert main(["policy", "check", str(file), "--format", "json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], [problem["line"] for problem in told["problems"]]) == (False, [3, 4])
    assert main(["policy", "check", str(file)]) == 2
    assert capsys.readouterr().err.startswith(f"ftctl: {file}: 2 errors\n  line 3: chain: unknown policy")


def test_check_leaves_no_mistake_out(file, capsys):
    """However many there are; a run tells the first ten."""
    file.write_text("version: 1\nchain:\n" + "".join(f"  - policy{n}\n" for n in range(30)))
    assert main(["policy", "check", str(file)]) == 2
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()[1:]] == [
        f"  line {n}" for n in range(3, 33)
    ]
    with pytest.raises(UsageError, match="and 20 more"):
        begin(file)


def test_check_refuses_what_a_run_would_refuse(file, capsys):
    """With the reason of ``ftrun`` and exit code 2; with its platform, or an assumed one, the file is accepted."""
    file.write_text(GOOD)
    assert main(["policy", "check", str(file)]) == 2
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0] == f"{file}: pod_replacement -> process_restart -> stop"
    reason = f"{file}: pod_replacement cannot be carried out: it needs `replace`"
    assert printed.err.startswith(f"ftctl: {reason}") and "--platform URL" in printed.err
    with pytest.raises(UsageError, match=re.escape(reason)):
        begin(file)
    assert main(["policy", "check", str(file), "--format", "json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["problems"][0]["line"], told["chain"][0]["missing"]) == (False, None, ["replace"])
    assert "pod_replacement cannot be carried out" in told["problems"][0]["message"]
    for given in (["--platform", "local:"], ["--assume", "replace"]):
        assert main(["policy", "check", str(file), *given]) == 0
    assert begin(file, abilities=("replace",)).chain


def test_check_notes_that_same_fault_comes_before_the_budget(file, capsys):
    """Only for a budget that the file sets."""
    file.write_text("version: 1\nchain:\n  - process_restart: {max_restarts: 5}\n  - stop\n")
    assert main(["policy", "check", str(file)]) == 0
    said = (
        "a script error at the same step ends the job after 1 restart (same_fault 2), before max_restarts (5) is spent"
    )
    assert f"note: process_restart: {said}" in capsys.readouterr().out
    file.write_text("version: 1\nchain: [process_restart, stop]\n")
    assert main(["policy", "check", str(file)]) == 0
    assert "note:" not in capsys.readouterr().out


def test_check_and_run_tell_what_is_no_mistake_but_not_as_expected(file, tmp_path, capsys):
    """Abilities that the running script reports itself, and URLs that are stored in the log."""
    file.write_text(
        "version: 1\njob: {abilities: [pause, park, rollback]}\n"
        "chain:\n  - alert: {to: ['json://h/s3cret']}\n  - step_pause: {optional: true}\n  - process_restart\n"
        "  - stop\n"
    )
    assert main(["policy", "check", str(file)]) == 0
    out = capsys.readouterr().out
    seen, secret = [line for line in out.splitlines() if line.startswith("note: ")]
    assert "abilities: pause, park: no effect: the running script reports it; remove pause, park" in seen
    assert "are stored in the log" in secret and "s3cret" not in out
    assert main(["policy", "check", str(file), "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["notes"]) == 2
    (tmp_path / "nothing.py").write_text("")
    for how in ("--standalone", "--local-nodes=1"):
        argv = [sys.executable, "-m", "ftcore.cli.ftrun", how, "--no-preload", "--policy", str(file), "nothing.py"]
        env = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
        told = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False).stderr
        assert told.count("are stored in the log") == told.count("abilities: pause, park: ") == 1
    file.write_text(GOOD.replace("  - pod", "  - alert: {to: ['env:CHAT']}\n  - pod"))
    assert main(["policy", "check", str(file), "--platform", "local:"]) == 0
    assert "note: " not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "No such file or directory"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.write_bytes(b"version: 1\n# \xff\n"), "not UTF-8 text: byte 0xff in line 2"),
        (lambda path: path.write_bytes(b"\xff\xfev\0"), "not UTF-8 text: byte 0xff in line 1"),
        (
            lambda path: path.write_bytes(b"x" * 10_000_000),
            f"is too large for a policy file: expected at most {BYTES_MAX} bytes",
        ),
        (lambda path: path.write_bytes(b""), "is empty; expected at least: version: 1"),
    ],
)
def test_a_file_that_is_none(make, message, file, capsys):
    """One line, exit 2, for ``ftctl`` as JSON too, and for a run."""
    make(file)
    assert main(["policy", "check", str(file)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert main(["policy", "check", str(file), "--format", "json"]) == 2
    assert message in json.loads(capsys.readouterr().out)["problems"][0]["message"]
    with pytest.raises(UsageError, match="policy"):
        begin(file)


def test_a_file_may_come_through_a_pipe(capsys, monkeypatch):
    """``-`` is standard input for ``ftctl``; a run needs a file, since each of its agents reads it."""
    for text, code in ((GOOD, 0), ("version: 1\nchain: [stp]\n", 2)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert main(["policy", "check", "-", "--platform", "local:"]) == code
    captured = capsys.readouterr()
    assert captured.out.startswith("standard input: pod_replacement -> ")
    assert captured.err.startswith("ftctl: standard input, line 2: chain: unknown policy 'stp'")
    with pytest.raises(UsageError, match="--policy: found -; expected a file"):
        begin(Path("-"))


def test_explain_is_no_wider_than_a_page(capsys):
    """Whatever the class and the preset; a policy without options has no list of them."""
    for name in presets.names():
        assert main(["policy", "explain", "--preset", name, "--fault", "hang"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "     grace: 30s            Time between TERM and KILL, for workers to save." in out.splitlines()


def test_explain_shows_the_chain_of_a_class(file, capsys):
    """In order, with the conditions, the options, and who is left out and why."""
    file.write_text(GOOD)
    assert main(["policy", "explain", str(file), "--fault", "hang"]) == 0
    out = capsys.readouterr().out
    assert "1. process_restart: " in out
    assert "passes when `max_restarts` in `window` are spent" in out
    assert "not asked about hang: pod_replacement" in out
    assert main(["policy", "explain", str(file), "--fault", "hang", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [entry["asked"] for entry in told["chain"]] == [False, True, True]
    assert told["chain"][0]["why_not"] == "limited by `faults` to: gpu-hw"
    assert told["chain"][1]["conditions"] == list(BUILT_IN["process_restart"].conditions)


def test_explain_says_what_the_workers_have_to_report(file, capsys):
    """A named policy that needs a report of the running script is not refused at the start."""
    file.write_text("version: 1\nchain: [dying_checkpoint, step_pause, process_restart, stop]\n")
    assert main(["policy", "explain", str(file), "--fault", "request"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "skipped without a script that saves on request" in told
    assert "skipped without a script that can pause at a step boundary (`pause`)" in told


@pytest.mark.parametrize("name", presets.names())
def test_explain_knows_every_preset(name, capsys):
    """For a fault of a machine and for a request."""
    for cls in ("gpu-hw", "request"):
        assert main(["policy", "explain", "--preset", name, "--fault", cls, "--format", "json"]) == 0
        asked = [entry["policy"] for entry in json.loads(capsys.readouterr().out)["chain"] if entry["asked"]]
        assert asked[-1] == "stop"


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["explain", "--fault", "hang"], 2, "expected either FILE or --preset NAME"),
        (["explain", "--preset", "mindo", "--fault", "hang"], 2, "unknown preset 'mindo'; did you mean 'mindio'?"),
        (["explain", "--preset", "palm", "--fault", "hangs"], 2, "found 'hangs'; expected a fault class; did you"),
        (["init", "--preset", "x"], 2, "unknown preset 'x'; expected one of: default, falcon"),
    ],
)
def test_a_wrong_word_is_told(argv, code, message, capsys):
    """With the nearest right one."""
    assert main(["policy", *argv]) == code
    assert message in capsys.readouterr().err


def test_the_schema_is_printed(capsys):
    """Plain JSON, for a file that an editor is pointed to."""
    assert main(["policy", "schema"]) == 0
    jsonschema.Draft7Validator.check_schema(json.loads(capsys.readouterr().out))


def test_every_action_has_examples_and_completes():
    """``--help`` shows how; argcomplete finds presets and classes."""
    parser = build_parser("0")
    policy = next(a for a in parser._actions if a.dest == "command").choices["policy"]
    actions = next(a for a in policy._actions if a.dest == "action").choices
    assert set(actions) == {"init", "check", "explain", "schema"}
    for action in actions.values():
        assert "examples:" in action.format_help()
    options = {option.dest: option for option in actions["explain"]._actions}
    assert options["preset"].completer("mi") == ["mindio"]
    assert options["fault"].completer("gpu") == ["gpu-hw"]


def test_a_run_begins_with_the_file_the_flag_and_the_switches(file):
    """The later wins, and the source says so."""
    file.write_text("version: 1\nchain: [step_pause: {optional: true}, process_restart, stop]\n")
    loaded = begin(file, max_restarts=3, switches="TSP:0")
    assert [entry.policy for entry in loaded.chain] == ["process_restart", "stop"]
    assert loaded.chain[0].options["max_restarts"] == 3
    assert loaded.source == f"{file} with --max-restarts 3 with FTCORE_POLICIES={{TSP:0}}"
    assert [entry.policy for entry in begin(None).chain] == list(DEFAULT_ORDER)


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        (GOOD, {}, "pod_replacement cannot be carried out: it needs `replace`"),
        ("version: 1\n", {"switches": "RSC:1"}, "pod_replacement cannot be carried out"),
        ("version: 1\njob: {replicas: all}\n", {"ranks": 1}, "a job with one rank has no replicas"),
        ("version: 1\n", {"max_restarts": -1}, "--max-restarts: found -1; expected 0 or more"),
        ("version: 1\n", {"switches": "XYZ:1"}, "FTCORE_POLICIES: unknown switch 'XYZ'"),
    ],
)
def test_a_run_refuses_what_it_cannot_do(text, changes, message, file):
    """Before anything starts, with the reason and the way to get it."""
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        begin(file, **changes)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "env", "message"),
    [
        (
            ["--policy", "policy.yaml", "--platform=local:?capacity=0"],
            {},
            "ftrun: policy.yaml: pod_replacement cannot be carried out: it needs",
        ),
        ([], {"FTCORE_PLATFORM": "lsf:"}, "ftrun: 'lsf:' is not the URL of a platform: known are local:"),
        ([], {"FTCORE_POLICIES": "UCE:1"}, "ftrun: FTCORE_POLICIES: UCE needs replicas"),
        ([], {"FTCORE_POLICIES": "UCE"}, "ftrun: FTCORE_POLICIES: found 'UCE'; expected"),
    ],
)
def test_ftrun_tells_it_once_and_starts_nothing(flags, env, message, file, tmp_path):
    """Exit 2, no traceback, no log file."""
    file.write_text(GOOD)
    surroundings = {**os.environ, **env, "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-m", "ftcore.cli.ftrun", "--local-nodes", "2", *flags, "train.py"],
        cwd=tmp_path,
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count(message) == 1
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "state").rglob("*.sqlite*"))


@pytest.mark.parametrize("cls", list(FaultClass))
def test_each_made_up_fault_is_read_as_its_class(cls):
    """What explain shows of a class is a fault of that class, as the engine itself reads it."""
    for case, cause in ctl_rehearsal.CASES[cls].items():
        states = list(ctl_rehearsal._states(default_chain(), case, cause, ()))
        assert states and all(job.incident is not None and job.incident.fault.cls == cls for _, job in states), case


def meets(capsys, cls: str, *argv: str) -> dict[str, list[tuple[str, str]]]:
    assert main(["policy", "explain", *(argv or ("--preset", "default")), "--fault", cls, "--format", "json"]) == 0
    chain = json.loads(capsys.readouterr().out)["chain"]
    return {entry["policy"]: [(one["verdict"], one["reason"]) for one in entry["meets"]] for entry in chain}


def test_explain_shows_what_this_fault_meets(file, capsys):
    """The verdicts are those of the engine: by class, by options, and for the same fault come again."""
    hang, lost, user = (meets(capsys, cls) for cls in ("hang", "node-lost", "user-code"))
    assert hang["process_restart"][:2] == [("take", "restart 1 of 20 in 1h"), ("take", "restart 2 of 20 in 1h")]
    assert lost["process_restart"][0][0] == "pass" and "shrink below" in lost["process_restart"][0][1]
    assert lost["shrink"] == [("take", "the job goes on with 3 of 4 nodes, without node1")]
    assert [verdict for verdict, _ in user["process_restart"]] == ["take", "pass"]
    assert "2 times in a row" in user["process_restart"][1][1]
    file.write_text(
        "version: 1\nchain:\n  - process_restart: {same_fault: 3}\n  - evict_straggler: {slower: 2}\n  - stop\n"
    )
    assert [verdict for verdict, _ in meets(capsys, "user-code", str(file))["process_restart"]] == ["take", "take"]
    assert main(["policy", "explain", "--preset", "default", "--fault", "node-lost"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "a node sends no more heartbeats: takes it: the job goes on with 3 of 4 nodes" in out
    assert "passes when `max_restarts` in `window`" not in out  # of what passes, conditions are not listed
