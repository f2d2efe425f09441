"""``ftctl`` on logs that the production engine made: in process, and as the program that a user starts."""

import argparse
import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftcore.cli import ctl_output
from ftcore.cli.ctl_parser import build_parser
from ftcore.cli.ctl_store import among
from ftcore.cli.ctl_types import bound
from ftcore.cli.ftctl import main
from ftcore.errors import NotFound
from ftcore.events.envelope import Event
from ftcore.events.job import JobSpec
from ftcore.ids import JobName, Seq
from ftcore.launch.hints import completed
from ftcore.logs import open_store
from ftcore.logs.archive import ArchiveWriter, read_events
from ftcore.policies.file.config import parse
from ftcore.ports import Candidate
from ftcore.testing.driver import EPOCH_NS, JobDriver
from ftcore.wording import utc

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


def driven() -> JobDriver:
    driver = JobDriver(nodes=2, slots=2, tick_s=0.02)
    driver.start()
    driver.make_steps(9)
    driver.fail("node1", message="RuntimeError: Connection closed by peer [127.0.0.1]:52710")
    driver.fail("node0", exitcode=-9, local_rank=1)
    driver.settle()
    return driver


def archive(path: Path, events: list[Event], job: str = "demo") -> str:
    with ArchiveWriter(path, JobName(job)) as writer:
        for event in events:
            writer.add(event)
    return f"file:{path}"


@pytest.fixture
def store(tmp_path: Path) -> str:
    return archive(tmp_path / "demo.ftlog", driven().events)


@pytest.fixture(autouse=True)
def _no_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("FTCORE_STORE", "FTCORE_JOB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run_json(capsys: pytest.CaptureFixture[str], *argv: str):
    assert main([*argv, "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def ftctl(*argv: str, **options) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "ftcore.cli.ftctl", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **options},
    )


def test_status_tells_the_contract(store, capsys):
    """The JSON of ``status`` has the agreed fields with the folded state's values."""
    made = run_json(capsys, "--store", store, "status")
    assert {"job", "state", "term", "master", "world", "step", "incidents_open", "last_seq", "replicas"} <= set(made)
    assert (made["state"], made["world"]["size"], made["incidents_open"]) == ("running", 4, 0)


def test_status_tells_what_people_asked_for(tmp_path, capsys):
    """A paused job, a held one, a node that is kept out, what the job can do: in JSON and for people."""
    driver = JobDriver(spec=JobSpec(argv=("t.py",), nodes_min=1, nodes_max=3), abilities=("pause",))
    driver.start()
    driver.make_steps(3)
    driver.command("evict", node="node2")
    driver.settle()
    driver.command("pause", why="maintenance")
    driver.settle()
    url = archive(tmp_path / "paused.ftlog", driver.events)
    made = run_json(capsys, "--store", url, "status")
    assert (made["state"], made["paused"], made["held"], made["request"]) == ("paused", True, False, None)
    assert list(made["quarantined"]) == ["node2"] and made["abilities"] == {"driver": ["pause"]}
    assert main(["status", "--store", url]) == 0
    out = capsys.readouterr().out
    assert (
        f"continue with: ftctl --store {url} --job demo resume" in out
        and "node2 (user@host asked for `evict node2`)" in out
    )


def test_status_tells_of_a_held_job(tmp_path, capsys):
    """Recoveries do not begin, and who waits for what is told."""
    driver = driven()
    driver.fail("node0")
    driver.command("pause")
    driver.command("checkpoint", why="before it gets worse")
    url = archive(tmp_path / "held.ftlog", driver.events)
    made = run_json(capsys, "--store", url, "status")
    assert made["held"] and (made["request"]["command"], made["request"]["who"]) == ("checkpoint", "user@host")
    assert main(["status", "--store", url]) == 0
    out = capsys.readouterr().out
    assert (
        "no recovery begins until the job is resumed" in out and "checkpoint by user@host: before it gets worse" in out
    )


def test_incidents_of_every_kind(tmp_path, capsys):
    """A request that no policy took is dropped, not failed; actions on a fault are listed as sentences."""
    driver = driven()
    driver.command("pause")
    url = archive(tmp_path / "kinds.ftlog", driver.events)
    made = run_json(capsys, "--store", url, "incidents")
    assert [incident["kind"] for incident in made] == ["fault", "request"]
    assert main(["incidents", "--store", url]) == 0
    assert "dropped" in capsys.readouterr().out
    assert main(["explain", "i1", "--store", url]) == 0
    out = capsys.readouterr().out
    assert "Actions and results" in out and "round 2: 4 ranks on 2 nodes" in out


def test_incidents_are_counted_by_kind(tmp_path, capsys):
    """Requests are no faults."""
    driver = driven()
    driver.command("pause")
    driver.command("checkpoint")
    assert main(["incidents", "--store", archive(tmp_path / "kinds.ftlog", driver.events)]) == 0
    last = " ".join(capsys.readouterr().out.split("rank")[-1].split())
    assert "1 fault, 2 requests; TOTAL: from the fault, for a hang from the last step, until the first new step" in last


def test_a_pause_is_explained_by_its_length(tmp_path, capsys):
    """Nothing is lost, the plan was carried out in place, and the pause has a length."""
    driver = JobDriver(abilities=("pause",), tick_s=1.0)
    driver.start()
    driver.make_steps(3)
    driver.command("pause")
    driver.settle()
    driver.command("resume")
    driver.settle()
    url = archive(tmp_path / "paused.ftlog", driver.events)
    assert main(["explain", "i1", "--store", url]) == 0
    out = capsys.readouterr().out
    assert re.search(r"paused +1\.0 s, from 2", out) and re.search(r"lost +- *\n", out)
    assert re.search(r"decide +in place +total *\n", out) and "first_step" not in out


def test_a_failed_job_is_not_resolved(tmp_path, capsys):
    """The incident ended with the job."""
    driver = JobDriver(policy=parse("version: 1\nchain: [stop]\n", "p"))
    driver.start()
    driver.make_steps(3)
    driver.fail("node1")
    driver.settle()
    url = archive(tmp_path / "failed.ftlog", driver.events)
    assert main(["explain", "--store", url]) == 0
    assert "i1, ended by stop: the job failed" in capsys.readouterr().out
    assert main(["status", "--store", url]) == 0
    out = capsys.readouterr().out
    assert "not alive" not in out and " ago)" not in out


def test_status_shows_the_age_of_the_step(store, capsys):
    """The step is a sample."""
    assert main(["status", "--store", store]) == 0
    assert re.search(r"step +[0-9]+ \([0-9smh ]+ ago\)", capsys.readouterr().out)


def test_a_list_of_jobs_says_how_many_more_there_are():
    """And which command lists all; a job that is not found may have lost its log."""
    names = [JobName(f"job{number:02d}") for number in range(12)]
    with pytest.raises(NotFound) as raised:
        among(names, argparse.Namespace(store="sqlite:///s", job="nope"))
    assert "no job 'nope' in sqlite:///s; there are: job00, " in str(raised.value)
    assert "job09 and 2 more, see ftctl jobs; if its ftrun still runs, its log was removed" in str(raised.value)


def test_started_workers_are_listed_with_their_pids(store, capsys):
    """At most the first few."""
    assert main(["events", "--store", store, "--type", "workers.started"]) == 0
    assert "2 workers by fork: local rank 0 pid 1000, local rank 1 pid" in " ".join(capsys.readouterr().out.split())


def test_jobs_is_one_array(store, capsys):
    """``jobs`` gives a list, each job in brief."""
    [job] = run_json(capsys, "jobs", "--store", store)
    assert (job["job"], job["state"], job["node_count"]) == ("demo", "running", 2)


def test_events_are_one_object_a_line(store, capsys):
    """Every line is an event with every field of its envelope."""
    assert main(["events", "--store", store, "--format", "json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    fields = {
        "seq",
        "event_id",
        "time",
        "time_ns",
        "at",
        "type",
        "source",
        "kind",
        "cause",
        "incident",
        "term",
        "v",
        "ignorable",
        "data",
    }
    assert all(set(event) == fields for event in events)


@pytest.mark.parametrize(
    ("argv", "types"),
    [
        (["--type", "incident.*"], {"incident.opened", "incident.rediagnosed", "incident.resolved"}),
        (["--since", "3", "--until", "4"], {"policy.loaded", "node.joined"}),
        (["--until", "2023-11-14T22:13:20.03"], {"master.elected"}),
        (["--until", "2023-11-14T23:13:20.03+01:00"], {"master.elected"}),
        (["--since", "15m"], set()),
        (["--incident", "i1", "--type", "worker.*,policy.*"], {"worker.failed", "policy.considered"}),
        (["--node", "node1", "--until", "2"], set()),
    ],
)
def test_events_are_narrowed(store, capsys, argv, types):
    """By seq, time, age, glob, node and incident."""
    assert main(["events", "--store", store, "--format", "json", *argv]) == 0
    assert {json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()} == types


def test_an_age_counts_by_the_logs_clock_where_that_is_ahead(store, capsys, monkeypatch):
    """On a host whose clock is behind, the last events are the youngest all the same."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_600_000_000 * 10**9)
    assert main(["events", "--store", store, "--format", "json"]) == 0
    times = [json.loads(line)["time_ns"] for line in capsys.readouterr().out.splitlines()]
    assert main(["events", "--store", store, "--format", "json", "--since", "1ms"]) == 0
    young = [json.loads(line)["time_ns"] for line in capsys.readouterr().out.splitlines()]
    assert young == [at for at in times if at >= times[-1] - 10**6] != times


def test_incidents_since_a_position(tmp_path, capsys, monkeypatch):
    """By seq, time and age: those that were open then or later."""
    driver = driven()
    driver.settle()
    driver.now += 3600 * 10**9
    middle = len(driver.events)
    driver.fail("node0", message="ValueError: x")
    store = archive(tmp_path / "since.ftlog", driver.events)
    monkeypatch.setattr(time, "time_ns", lambda: driver.now)
    first, second = run_json(capsys, "--store", store, "incidents")
    for since in (str(middle + 1), second["opened"], "30m"):
        assert run_json(capsys, "--store", store, "incidents", "--since", since) == [second]
    for since in (str(first["last_seq"]), first["closed"], "2h"):
        assert len(run_json(capsys, "--store", store, "incidents", "--since", since)) == 2


def test_the_table_of_events_is_for_people(store, capsys):
    """The date first, a line per event, decisions indented, no colour where there is no terminal."""
    assert main(["events", "--store", store]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2023-11-14 (UTC)"
    assert lines[1].startswith("     1 22:13:20.020  master.elected         host pid 1 leads")
    [opened] = [line for line in lines if "incident.opened" in line]
    assert "   incident.opened      i1: collateral: rank 2 on node1" in opened
    assert "\x1b" not in "".join(lines)


def test_what_a_worker_wrote_does_not_steer_the_terminal(tmp_path, capsys):
    """Escape sequences and newlines in messages are shown as plain text on one line."""
    driver = driven()
    driver.fail("node0", message="ValueError: \x1b[2J\x07boo\nmore")
    store = archive(tmp_path / "x.ftlog", driver.events)
    for command in ("events", "incidents", "explain"):
        assert main([command, "--store", store]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\x07" not in out


def test_incidents_and_explain(store, capsys):
    """A list of incidents; one of them, the newest if none is named."""
    [incident] = run_json(capsys, "incidents", "--store", store)
    assert (
        incident == run_json(capsys, "explain", "--store", store) == run_json(capsys, "explain", "i1", "--store", store)
    )
    assert (incident["class"], incident["root"]) == ("signal-preemption", {"node": "node0", "rank": 1})
    for command in (["incidents"], ["explain"], ["explain", "i1"]):
        assert main([*command, "--store", store]) == 0
        assert "rank 1 on node0 was ended by SIGKILL" in capsys.readouterr().out


def test_replay_rebuilds_any_point(store, capsys):
    """The state and its digest after an event; at 0 there is nothing yet."""
    made = run_json(capsys, "replay", "--at", "5", "--store", store)
    assert (made["seq"], made["folded"]["phase"], len(made["digest"])) == (5, "assembling", 32)
    assert run_json(capsys, "replay", "--at", "0", "--store", store)["seq"] == 0
    assert main(["replay", "--at", "5", "--store", store]) == 0
    assert made["digest"] in capsys.readouterr().out


def test_verify_agrees_with_an_honest_log(store, capsys):
    """Exit 0, and what was compared."""
    made = run_json(capsys, "replay", "--verify", "--store", store)
    assert (made["verify"]["ok"], made["verify"]["mismatches"]) == (True, [])
    assert main(["replay", "--verify", "--store", store]) == 0
    assert "every decision is the same" in capsys.readouterr().out


def test_verify_finds_an_altered_decision(tmp_path, capsys):
    """Exit 1 with the seq and the difference, in words and in JSON."""
    import attrs
    import msgspec

    from ftcore.testing.logs import rewrite_archive

    archive(tmp_path / "a.ftlog", driven().events)
    seqs = [
        event.seq for event in driven().events if event.type == "policy.considered" and event.data.plan == "restart"
    ]

    def change(event: Event) -> Event:
        if event.seq != seqs[0]:
            return event
        return msgspec.structs.replace(event, data=attrs.evolve(event.data, grace_s=77.0))

    rewrite_archive(tmp_path / "a.ftlog", tmp_path / "b.ftlog", change)
    store = f"file:{tmp_path / 'b.ftlog'}"
    assert main(["replay", "--verify", "--store", store]) == 1
    out = capsys.readouterr().out
    assert f"event {seqs[0]}: a different decision\n  data.grace_s: expected 10.0, found 77.0\n" in out
    assert main(["replay", "--verify", "--store", store, "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["verify"]["mismatches"][0]["seq"] == seqs[0]


def test_a_log_is_taken_away_and_read(store, tmp_path, capsys):
    """What was exported is the log, and messages go to stderr."""
    target = tmp_path / "away.ftlog"
    assert main(["export", "-o", str(target), "--store", store]) == 0
    out, err = capsys.readouterr()
    assert (out, err.startswith("ftctl: wrote ")) == ("", True)
    assert [event.seq for event in read_events(target)] == [event.seq for event in driven().events]


@pytest.mark.parametrize("form", ["table", "mermaid", "dot"])
def test_machines_are_drawn(form, capsys):
    """All of them, or the one that is named, in each form."""
    assert main(["machines", "--format", form]) == 0
    whole = capsys.readouterr().out
    assert main(["machines", "node", "--format", form]) == 0
    one = capsys.readouterr().out
    assert "replaced" in one
    assert len(one) < len(whole)


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


def test_urls_of_a_policy_file_are_not_shown(tmp_path, capsys):
    """What of them is a secret nobody can tell, so only the scheme is shown: in events and in the state."""
    from ftcore.policies.file.config import parse

    text = "version: 1\nchain:\n- alert: {to: ['json://me:secret@chat/secret']}\n- stop\n"
    driver = JobDriver(policy=parse(text, "policy.yaml"))
    driver.start()
    store = archive(tmp_path / "a.ftlog", driver.events)
    for argv in (["events", "--format", "json"], ["events"], ["replay"], ["replay", "--format", "json"]):
        assert main([*argv, "--store", store]) == 0
        out = capsys.readouterr().out
        assert "secret" not in out and ("json://…" in out or argv == ["events"])


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


def test_starting_is_quick_work():
    """Neither torch, grpc, rich, transitions nor a store's client is imported before it is needed."""
    code = (
        "import sys, ftcore.cli.ftctl;"
        "print([name for name in ('torch', 'grpc', 'google', 'rich', 'transitions', 'sqlite3', 'argcomplete')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_times_are_understood():
    """A seq, a time in UTC or with an offset, an age."""
    assert bound("17").seq == 17
    assert bound("2023-11-14T22:13:20").time == EPOCH_NS
    assert bound("2023-11-14T22:13:20Z").time == EPOCH_NS
    assert bound("2023-11-15T00:13:20.5+02:00").time == EPOCH_NS + 500_000_000
    assert bound("2h").settled(EPOCH_NS).time == EPOCH_NS - 7200 * 10**9
    assert bound("17").settled(EPOCH_NS) == bound("17")


def test_what_a_job_can_do_is_told_where_nothing_was_declared(store, capsys):
    """A line that is not there says nothing."""
    assert main(["--store", store, "status"]) == 0
    assert "abilities  none beyond a restart, and going on with fewer nodes: no platform" in capsys.readouterr().out


def test_status_says_that_workers_report_abilities_with_a_step(tmp_path, capsys):
    """Before the first completed step, what the script can do is not known; afterwards the row says what it is."""
    driver = JobDriver(nodes=1, abilities=("replace",))
    driver.submit()
    before = archive(tmp_path / "before.ftlog", driver.events)
    driver.join("node0")
    driver.settle()
    after = archive(tmp_path / "after.ftlog", driver.events)
    assert main(["status", "--store", before]) == 0
    assert "abilities  replace; workers report theirs with the first completed step" in capsys.readouterr().out
    assert main(["status", "--store", after]) == 0
    assert "workers report theirs" not in capsys.readouterr().out


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


def test_a_selection_may_be_empty(store, capsys):
    """A known type that did not occur, or a known node with no event there, is a true answer of none."""
    for argv in (["--type", "node.lost"], ["--node", "node1", "--until", "2"]):
        assert main(["events", *argv, "--store", store]) == 0
        assert capsys.readouterr() == ("", "ftctl: no events match the selection\n")


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


def test_json_has_one_form_of_time(store, capsys):
    """Every moment stands by RFC 3339 in UTC and, with _ns behind its name, in nanoseconds since the epoch."""
    status, incidents = run_json(capsys, "--store", store, "status"), run_json(capsys, "--store", store, "incidents")
    assert main(["events", "--store", store, "--format", "json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    places = [(status, "time"), *((event, "time") for event in events)]
    places += [(event["at"], "wall") for event in events if event["at"] is not None]
    for incident in incidents:
        places += [(incident, "opened"), (incident, "closed")]
        places += [(failure, name) for failure in incident["failures"] for name in ("time", "raised")]
    for fields, name in places:
        if fields[name] is None:
            assert fields[f"{name}_ns"] is None
        else:
            assert utc(fields[f"{name}_ns"]) == fields[name] and fields[name].endswith("Z")
