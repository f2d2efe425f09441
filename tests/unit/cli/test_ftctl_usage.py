"""How ``ftctl`` is used: help, completion, mistakes, stores and jobs, hints, output that ends early."""

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
from ftctl_logs import archive, driven, run_json

from ftcore.cli import ctl_output
from ftcore.cli.ctl_parser import build_parser
from ftcore.cli.ctl_types import bound
from ftcore.cli.ftctl import main
from ftcore.ids import JobName, Seq
from ftcore.launch.hints import completed
from ftcore.logs import open_store
from ftcore.ports import Candidate
from ftcore.testing.driver import EPOCH_NS

COMMANDS = (
    "jobs",
    "status",
    "events",
    "incidents",
    "explain",
    "replay",
    "export",
    "machines",
    "spikes",
    "simulate",
    "whatif",
    "completion",
    "pause",
    "resume",
    "drain",
    "evict",
    "checkpoint",
    "stop",
    "alert",
)


def ftctl(*argv: str, **options) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "ftcore.cli.ftctl", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **options},
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell, capsys):
    """Each shell gets a script that speaks of ftctl."""
    assert main(["completion", shell]) == 0
    assert "ftctl" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    """``--help`` says what it does and shows examples."""
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert "examples:\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["explain", "i9"], 4, "ftctl: no incident 'i9'; there are i1 to i1"),
        (["status", "--job", "demmo"], 4, "; did you mean demo?"),
        (["replay", "--at", "999"], 4, "ftctl: the log of demo ends at event"),
        (["machines", "nod"], 2, "ftctl: no machine 'nod'; did you mean node?"),
        (["stop"], 3, "ftctl: cannot stop the job: no master leads demo; is the job still running?"),
        (["drain", "node1"], 3, "ftctl: cannot drain node1: no master leads demo; is the job still running?"),
        (["checkpoint"], 3, "cannot save a checkpoint of the job: no master leads demo"),
        (["export", "-o", "/nowhere/x.ftlog"], 2, "ftctl: cannot write /nowhere/x.ftlog: No such file or directory"),
    ],
)
def test_mistakes_are_one_line_and_a_code(store, capsys, argv, code, message):
    """No traceback: one line on stderr, nothing on stdout."""
    extra = ["--store", store] if argv[0] != "machines" else []
    assert main([*argv, *extra]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("argv", [["stop"], ["pause"], ["drain", "node1"], ["checkpoint"], ["resume"]])
def test_a_job_that_has_ended_takes_no_command(tmp_path, capsys, argv):
    """The log says that it has ended, and how: that is wrong usage, not a master that cannot be reached."""
    driver = driven()
    driver.stop()
    driver.settle()
    url = archive(tmp_path / "ended.ftlog", driver.events)
    assert main([*argv, "--store", url]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"ftctl: cannot {argv[0]}: demo has already ended (stopped: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["statsu"], "COMMAND: found 'statsu'; did you mean status?"),
        (["events", "--since", "noon"], "--since: found 'noon'; expected an event number, a time"),
        (["replay", "--at", "x"], "--at: found 'x'; expected an event number"),
        (["evict"], "the following arguments are required: NODE"),
        (["pause", "--timeout", "0"], "--timeout: found '0'; expected a duration over 0"),
        (["events", "--stor", "x"], "unrecognized arguments: --stor"),
    ],
)
def test_wrong_usage_exits_with_2(capsys, argv, message):
    """The parser names what it does not understand."""
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "code"), [("nonsense", 2), ("file:/nowhere.ftlog", 4), ("sqlite:///nowhere/at/all", 4), ("http://x", 2)]
)
def test_a_store_that_is_none(capsys, url, code):
    """A wrong URL is wrong usage; a place without a log is not found."""
    assert main(["status", "--store", url]) == code
    assert capsys.readouterr().err.startswith("ftctl: ")


def test_a_damaged_log_is_named_with_its_line(tmp_path, store, capsys):
    """A changed byte is found; exit 1."""
    path = tmp_path / "demo.ftlog"
    path.write_bytes(path.read_bytes().replace(b'"pid":1,', b'"pid":2,', 1))
    assert main(["status", "--store", store]) == 1
    assert "line 2: event 1 does not match its digest" in capsys.readouterr().err


def test_surroundings_name_store_and_job(store, capsys, monkeypatch):
    """FTCORE_STORE and FTCORE_JOB are taken; the command line wins, before and after the command."""
    monkeypatch.setenv("FTCORE_STORE", store)
    assert run_json(capsys, "status")["state"] == "running"
    monkeypatch.setenv("FTCORE_JOB", "other")
    assert main(["status"]) == 4
    capsys.readouterr()
    assert run_json(capsys, "--job", "demo", "status")["state"] == "running"
    assert run_json(capsys, "status", "--job", "demo")["state"] == "running"


def test_several_jobs_must_be_told_apart(capsys):
    """With two jobs in a store and none named the message lists them; ``jobs`` shows both."""

    async def fill() -> None:
        store = open_store("memory://two")
        for name in ("a", "b"):
            log = await store.open(JobName(name), create=True)
            leadership = await log.campaign(Candidate(host="h", pid=1, address="unix:x"))
            await log.append(JobDriverEvents, term=leadership.term, expected_seq=Seq(0))

    JobDriverEvents = driven().events  # noqa: N806
    asyncio.run(fill())
    assert main(["status", "--store", "memory://two"]) == 2
    assert "has 2 jobs, name one with --job: a, b" in capsys.readouterr().err
    assert len(run_json(capsys, "jobs", "--store", "memory://two")) == 2
    assert run_json(capsys, "status", "--job", "b", "--store", "memory://two")["state"] == "running"


def test_a_reader_that_has_seen_enough(store):
    """``| head`` ends it quietly."""
    process = subprocess.run(
        f"{sys.executable} -m ftcore.cli.ftctl events --store {store} | head -n 2",
        shell=True,
        capture_output=True,
        check=True,
    )
    assert process.stdout.count(b"\n") == 2
    assert process.stderr == b""


def test_following_until_interrupted(store):
    """``--follow`` shows what is there, waits, and ends quietly with 130 on Ctrl-C."""
    process = ftctl("events", "--follow", "--store", store)
    assert process.stdout is not None
    count = len(driven().events)
    for _ in range(count + 1):
        assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, b"")


def test_times_are_understood():
    """A seq, a time in UTC or with an offset, an age."""
    assert bound("17").seq == 17
    assert bound("2023-11-14T22:13:20").time == EPOCH_NS
    assert bound("2023-11-14T22:13:20Z").time == EPOCH_NS
    assert bound("2023-11-15T00:13:20.5+02:00").time == EPOCH_NS + 500_000_000
    assert bound("2h").settled(EPOCH_NS).time == EPOCH_NS - 7200 * 10**9
    assert bound("17").settled(EPOCH_NS) == bound("17")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--type", "nod.lost"], "demo: no event type matches 'nod.lost'; did you mean node.lost?"),
        (["--type", "worker.*, timer.*"], "no event type matches 'timer.*'; there are: ability.declared"),
        (["--type", "nod.lost", "--follow"], "did you mean node.lost?"),
        (["--node", "nod1"], "no event comes from or names node 'nod1'; did you mean node1?"),
        (["--incident", "x"], "no incident 'x'; there are: i1"),
        (["--incident", "i1", "--node", "host7"], "names node 'host7'; there are: master, node0, node1"),
    ],
)
def test_events_of_a_name_that_the_log_does_not_know(store, capsys, argv, message):
    """An empty answer would say that nothing happened to it; exit 4, with the nearest name that there is."""
    for form in ("table", "json"):
        assert main(["events", *argv, "--store", store, "--format", form]) == 4
        out, err = capsys.readouterr()
        assert out == "" and message in err and err.count("\n") == 1


def test_jobs_of_a_store_that_does_not_exist(store, tmp_path, capsys):
    """A path that was named and is not there is not found, and so is a job; the default store may be empty."""
    assert main(["--store", f"sqlite:{tmp_path}/none", "jobs"]) == 4
    assert f"{tmp_path}/none does not exist" in capsys.readouterr().err
    assert main(["--store", store, "jobs", "--job", "demmo"]) == 4
    assert "no job 'demmo'" in capsys.readouterr().err
    assert main(["jobs"]) == 0
    assert capsys.readouterr().out.startswith("no jobs in sqlite://")


PRINTING = (
    ["--help"],
    ["events", "--help"],
    ["machines"],
    ["machines", "--format", "dot"],
    ["completion", "bash"],
    ["jobs"],
    ["status"],
    ["events"],
    ["events", "--format", "json"],
    ["incidents"],
    ["explain"],
    ["replay"],
    ["replay", "--verify"],
    ["export", "-o", "-"],
    ["policy", "init"],
    ["policy", "schema"],
    ["policy", "explain", "--preset", "palm", "--fault", "hang"],
    ["simulate", "--nodes", "4", "--days", "1", "--rate", "0.1"],
)


STORELESS = ("--help", "machines", "completion", "policy", "simulate")


@pytest.mark.parametrize("argv", PRINTING, ids=" ".join)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_every_command_survives_its_output(store, argv, unbuffered):
    """A reader that is gone ends it quietly with 0, a full disk with one line and not 0; never a traceback."""
    given = argv if argv[0] in STORELESS else ["--store", store, *argv]
    command = [sys.executable, "-m", "ftcore.cli.ftctl", *given]
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, env=env)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert done.returncode in (1, 3) and "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_hints_run_as_they_are_printed(tmp_path, capsys, monkeypatch):
    """A command in a message has the store and the job, quoted for a shell, on one line, whatever the width; one that
    has its job keeps it."""
    assert completed("continue with: ftctl resume", None, "demo") == "continue with: ftctl --job demo resume"
    assert (
        completed("see `ftctl status`, then `ftctl stop`", "sqlite:/a b", "x")
        == "see `ftctl --store 'sqlite:/a b' --job x status`, then `ftctl --store 'sqlite:/a b' --job x stop`"
    )
    assert completed("ftctl explain --job a", "etcd://h:1/p", "b") == "ftctl --store etcd://h:1/p explain --job a"
    assert completed("ftctl policy check FILE", "etcd://h:1/p", "b") == "ftctl policy check FILE"
    driver = driven()
    driver.fail("node0")
    driver.command("pause")
    url = archive(tmp_path / "held.ftlog", driver.events)
    monkeypatch.setattr(ctl_output, "columns", lambda: 60)
    assert main(["status", "--store", url]) == 0
    [hint] = re.findall(r"ftctl .*resume", capsys.readouterr().out)
    assert hint == f"ftctl --store {url} --job demo resume"
    parsed = build_parser("0").parse_args(shlex.split(hint)[1:])
    assert (parsed.store, parsed.job, parsed.command) == (url, "demo", "resume")


def test_every_command_with_a_log_is_completed_in_hints():
    """A command that is added to the parser is one that hints may name."""
    parser = build_parser("0")
    commands = next(action for action in parser._actions if action.dest == "command").choices
    for name, command in commands.items():
        reads = any(action.dest == "store" for action in command._actions)
        assert (completed(f"ftctl {name}", "s:/", None) != f"ftctl {name}") is reads
