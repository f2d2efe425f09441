"""``ftctl replay`` at points, with differences and step by step; ``ftctl bisect``; logs of a newer ftcore."""

import asyncio
import io
import json
import re
from pathlib import Path

import msgspec
import pytest
from ftctl_logs import archive, driven, run_json

from ftcore.cli import ctl_step
from ftcore.cli.ftctl import main
from ftcore.errors import LogCorrupt
from ftcore.events.envelope import Event, Unknown
from ftcore.ids import Seq
from ftcore.logs import open_log
from ftcore.ports import Candidate
from ftcore.replay.reading import fold_log, fold_recorded
from ftcore.states.model import JobState
from ftcore.states.revisions import NEWEST
from ftcore.states.snapshot import pack, seal
from ftcore.testing.driver import JobDriver
from ftcore.wording import utc


def steps(monkeypatch, capsys, store: str, commands: str, *argv: str, code: int = 0) -> tuple[str, str]:
    monkeypatch.setattr("sys.stdin", io.StringIO(commands))
    assert main(["--store", store, "replay", "--interactive", *argv]) == code
    return capsys.readouterr()


def shown(out: str) -> list[int]:
    """The events that were printed."""
    return [int(found[1]) for found in re.finditer(r"^ *(\d+) \d\d:\d\d:\d\d", out, re.MULTILINE)]


def test_a_time_names_the_last_event_until_then(store, capsys):
    """``--at`` takes an event, a time or how long ago; a position outside of the log is exit code 4."""
    events = driven().events
    at = next(event for event in events if event.type == "incident.opened")
    last = max(event.seq for event in events if event.time <= at.time)
    made = run_json(capsys, "--store", store, "replay", "--at", utc(at.time)[:26])
    assert made["seq"] == last
    assert run_json(capsys, "--store", store, "replay", "--at", "5")["seq"] == 5
    for position in ("9999", "1999-01-01"):
        assert main(["--store", store, "replay", "--at", position]) == 4


def test_differences(store, capsys):
    """Fields by path with both values and the events, in either order of the points."""
    made = run_json(capsys, "--store", store, "replay", "--diff", "30", "18")
    assert (made["from_seq"], made["to_seq"], made["attributed"]) == (18, 30, True)
    [phase] = [change for change in made["changes"] if change["path"] == "phase"]
    assert phase["values"] == {"old": "running", "new": "recovering"} and phase["event_count"] == len(phase["events"])
    assert main(["--store", store, "replay", "--diff", "18", "30"]) == 0
    out, err = capsys.readouterr()
    assert f'phase: "running" -> "recovering"  (event {phase["events"][0]})\n' in out
    assert err == f"ftctl: {len(made['changes'])} fields changed between event 18 and event 30\n"
    assert run_json(capsys, "--store", store, "replay", "--diff", "18", "18")["changes"] == []


def test_stepping(store, capsys, monkeypatch):
    """Next, previous, a number, the next incident, the state at a path, the event; the end of input ends it."""
    events = driven().events
    opened = next(event.seq for event in events if event.type == "incident.opened")
    out, err = steps(
        monkeypatch, capsys, store, "n\n\np\n17\ni\nc\ns membership.nodes.node0.phase\ns no\ne\nx\n0\n", "--at", "3"
    )
    assert shown(out) == [3, 4, 5, 4, 17, opened]
    assert 'incident.kind: (absent) -> "fault"' in out and f'"seq": {opened}' in out
    appeared = f'incident.kind: (absent) -> "fault"  (event {opened})'
    assert out.splitlines().count(appeared) == 1, "listed by `c`"
    assert "null -> (absent)" not in out, "what was empty is told by its fields"
    assert '\n"running"\n' in out
    assert "no 'no'; there are: " in err and "unknown command 'x'" in err and "there are events 1 to" in err
    out, err = steps(monkeypatch, capsys, store, f"{len(events)}\nn\ni\nq\nn\n")
    assert shown(out) == [1, len(events)] and "no further event" in err


def test_stepping_back_over_kept_states(store, capsys, monkeypatch):
    """A step back begins at a kept copy; the state is that of the event."""
    monkeypatch.setattr("ftcore.cli.ctl_step.KEEP_EVERY", 7)
    out, _ = steps(monkeypatch, capsys, store, "s seq\n20\ns seq\n30\n15\ns seq\np\ns seq\n")
    assert shown(out) == [1, 20, 30, 15, 14]
    assert [line for line in out.splitlines() if line.isdecimal()] == ["1", "20", "15", "14"]


def test_only_a_shown_event_is_compared(store, capsys, monkeypatch):
    """The events on the way are folded: comparing costs as much as the state is large. So is the way to an incident."""
    compared = []

    class Counted(ctl_step.StateDiffer):
        def feed(self, event):
            compared.append(event.seq)
            return super().feed(event)

    monkeypatch.setattr(ctl_step, "StateDiffer", Counted)
    out, _ = steps(monkeypatch, capsys, store, "i\n15\np\n", "--at", "8")
    assert shown(out) == compared and len(compared) == 4


def test_a_jump_begins_at_a_snapshot(tmp_path, capsys, monkeypatch):
    """Far events come over a snapshot of the log, forward and back; the way to an incident is not jumped over."""
    events = driven().events
    opened = next(event.seq for event in events if event.type == "incident.opened")

    async def made() -> str:
        url = f"sqlite://{tmp_path / 'store'}"
        log = await open_log(url, "demo", create=True)
        leadership = await log.campaign(Candidate(host="host", pid=1, address="unix:/nowhere"))
        await log.append(events, term=leadership.term, expected_seq=Seq(0))
        for seq in (12, 30):
            await log.save_snapshot(seal(pack(fold_log(events[:seq]))), term=leadership.term)
        await leadership.resign()
        await log.close()
        return url

    folded = []

    def counted(state, event):
        folded.append(event.seq)
        return fold_recorded(state, event)

    store = asyncio.run(made())
    monkeypatch.setattr(ctl_step, "fold_recorded", counted)
    monkeypatch.setattr(ctl_step, "KEEP_EVERY", 10)
    out, _ = steps(monkeypatch, capsys, store, "33\ns seq\n15\ns seq\n1\ni\ns seq\n")
    assert [line for line in out.splitlines() if line.isdecimal()] == ["33", "15", str(opened)]
    assert folded == [31, 32, 13, 14, *range(2, opened)]


def test_a_path_over_a_name_with_dots(tmp_path, capsys, monkeypatch):
    """The longest name that fits is taken: names of hosts have dots."""
    driver = JobDriver(nodes=1, slots=1)
    driver.submit()
    driver.join("gpu1.cluster.local")
    driver.settle()
    store = archive(tmp_path / "demo.ftlog", driver.events)
    commands = "9\ns membership.nodes.gpu1.cluster.local.slots\ns membership.nodes.gpu1.x\n"
    out, err = steps(monkeypatch, capsys, store, commands)
    assert "1" in out.splitlines() and err == "ftctl: no 'gpu1.x'; there are: gpu1.cluster.local\n"


@pytest.mark.parametrize("flags", ["--diff 1 9 --at 3", "--interactive --format json"])
def test_flags_that_exclude_each_other(store, capsys, flags):
    """An option that would do nothing is refused, and both are named."""
    assert main(["--store", store, "replay", *flags.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and all(flag in err for flag in flags.split() if flag.startswith("--"))


def test_a_very_long_number(store, capsys, monkeypatch):
    """It is an event that the log does not have."""
    out, err = steps(monkeypatch, capsys, store, "7" * 5000 + "\n3\n")
    assert shown(out) == [1, 3] and err.startswith("ftctl: there are events 1 to ")


def test_bisect(store, capsys):
    """The first failure and the return, with exit code 1; 0 if it never fails; 2 for what is no expression."""
    assert main(["--store", store, "bisect", "--expr", "incident is None"]) == 1
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("fails first at event ") and "incident.opened i1: " in first
    assert second.startswith("holds again at event ") and "incident.resolved" in second and "changes 2 times" in third
    assert main(["--store", store, "bisect", "--expr", 'any(n.phase == "running" for n in membership.nodes)']) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" at event")[0] for line in lines[:3]] == [
        "does not hold from the beginning",
        "holds first",
        "fails then",
    ]
    assert main(["--store", store, "bisect", "--check", "decisions-agree"]) == 0
    assert capsys.readouterr().out.startswith("it holds at all of ")
    assert main(["--store", store, "bisect", "--expr", "().__class__"]) == 2
    assert "the name __class__ is not allowed" in capsys.readouterr().err


def newer(events: list[Event], place: int, *, ignorable: bool) -> list[Event]:
    odd = msgspec.structs.replace(
        events[place], type="moon.risen", v=1, ignorable=ignorable, data=Unknown(fields={"a": "\x1b[31m"})
    )
    return [*events[:place], odd, *events[place + 1 :]]


def test_a_log_of_a_newer_ftcore(tmp_path, capsys, monkeypatch):
    """The state as far as it is known, and which event it ends at; every way of reading says it in one message."""
    store = archive(tmp_path / "demo.ftlog", newer(driven().events, 19, ignorable=False))
    assert main(["--store", store, "replay", "--format", "json"]) == 2
    made = json.loads(capsys.readouterr().out)
    assert made["seq"] == 19 and "event 20 is a moon.risen v1" in made["unknown"]["stopped"]
    assert main(["--store", store, "replay", "--diff", "1", "30"]) == 2
    assert "the log could be read up to event 19: event 20 is a moon.risen v1" in capsys.readouterr().err
    assert main(["--store", store, "bisect", "--expr", "run >= 0"]) == 2
    assert "later events are not judged: event 20 is a moon.risen" in capsys.readouterr().err
    out, err = steps(monkeypatch, capsys, store, "25\n", code=2)
    assert "the log could be read up to event 19" in err and shown(out) == [1, 19]
    for command in ("logbook", "failures", "incidents", "goodput", "replay --verify"):
        assert main(["--store", store, *command.split()]) == 2
        out, err = capsys.readouterr()
        assert "Traceback" not in out and err.startswith(
            "ftctl: the log could be read up to event 19: event 20 is a moon.risen v1"
        )


READING = (
    "goodput", "explain", "failures", "logs", "logbook", "incidents", "replay", "replay --verify", "replay --diff 1 20",
    "bisect --check terms-rise", "samples",
)  # fmt: skip


def damaged(path: Path, kind: str) -> tuple[str, int]:
    """An archive that cannot be read to its end, and the last event before that point."""
    events = driven().events
    opened = next(event.seq for event in events if event.type == "incident.opened")
    store = archive(path, events)
    lines = path.read_bytes().splitlines(keepends=True)
    last = opened + 3
    after = {
        "cut": [],
        "torn": [lines[last + 1][:30]],
        "changed": [b"0" * 32 + lines[last + 1][32:], *lines[last + 2 :]],
    }
    path.write_bytes(b"".join([*lines[: last + 1], *after[kind]]))
    return store, last


@pytest.mark.parametrize("kind", ["cut", "torn", "changed"])
def test_a_log_that_ends_early(tmp_path, capsys, monkeypatch, kind):
    """Every reading command answers from the part that can be read, as JSON too, and says how far and why."""
    store, last = damaged(tmp_path / "demo.ftlog", kind)
    for command in READING:
        code = 4 if command == "logs" else 2 if command.startswith("bisect") else 0 if "--diff" in command else 1
        assert main(["--store", store, *command.split(), "--format", "json"]) == code, command
        out, err = capsys.readouterr()
        assert json.loads(out), command
        assert (f"ftctl: the log could be read up to event {last}: " in err) is (code != 0), command
    for command in ("status", "events"):
        assert main(["--store", store, command, "--format", "json"]) == 1, command
        out, err = capsys.readouterr()
        assert json.loads(out.splitlines()[-1])["seq" if command == "events" else "last_seq"] == last
        assert f"ftctl: the log could be read up to event {last}: " in err, command
    assert main(["--store", store, "export", "-o", f"{tmp_path}/copied.ftlog"]) == 1
    assert f"up to event {last}: " in capsys.readouterr().err
    assert main(["--store", f"file:{tmp_path}/copied.ftlog", "events"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == last + 1  # the date, and a line for each event
    assert main(["--store", store, "replay", "--at", "5"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["--store", store, "replay", "--at", "9999"]) == 4
    capsys.readouterr()
    assert main(["--store", store, "failures", "--since", "90d"]) == 1
    capsys.readouterr()
    out, err = steps(monkeypatch, capsys, store, f"{last}\n{last + 1}\np\n", code=1)
    assert shown(out) == [1, last, last - 1] and f"the log could be read up to event {last}: " in err


def test_a_log_that_is_whole_says_nothing(store, capsys):
    """No message, exit code 0."""
    for command in READING:
        if command != "logs":
            run_json(capsys, "--store", store, *command.split())


def test_skipped_events_are_named_by_every_command(tmp_path, capsys):
    """An unknown event that may be skipped is counted on stderr; the exit code stays 0."""
    events = driven().events
    last = events[-1]
    odd = msgspec.structs.replace(last, seq=last.seq + 1, type="moon.risen", ignorable=True, data=Unknown(fields={}))
    store = archive(tmp_path / "demo.ftlog", [*events, odd])
    for command in READING:
        code = main(["--store", store, *command.split(), "--format", "json"])
        out, err = capsys.readouterr()
        assert code == (4 if command == "logs" else 0) and json.loads(out), command
        assert ("skipped 1 event of unknown types: moon.risen (1)" in err) is ("--diff" not in command), command


def test_an_event_that_contradicts(tmp_path, capsys, monkeypatch):
    """The state is that before the event, not one that it has changed in part."""

    def half(state: JobState, event: Event):
        if event.seq == 20:
            state.training.step = 777
            raise LogCorrupt("event 20 contradicts the events before it")
        return fold_recorded(state, event)

    store = archive(tmp_path / "demo.ftlog", driven().events)
    whole = run_json(capsys, "--store", store, "replay", "--at", "19")
    monkeypatch.setattr("ftcore.replay.reading.fold_recorded", half)
    monkeypatch.setattr("ftcore.replay.differences.fold_recorded", half)
    monkeypatch.setattr(ctl_step, "fold_recorded", half)
    assert main(["--store", store, "replay", "--format", "json"]) == 1
    made = json.loads(capsys.readouterr().out)
    assert made["digest"] == whole["digest"] and made["unknown"]["stopped"].startswith("event 20 contradicts")
    assert main(["--store", store, "replay", "--diff", "10", "30", "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["to_seq"] == 19
    out, _ = steps(monkeypatch, capsys, store, "19\nn\ns training.step\n", code=1)
    assert "777" not in out and shown(out) == [1, 19]


def test_a_skipped_event_and_a_newer_revision(tmp_path, capsys):
    """Skipped events are counted by type; an unknown revision of the rules is named."""
    events = driven().events
    elected = msgspec.structs.replace(events[0], data=msgspec.structs.replace(events[0].data, decides=NEWEST + 1))
    last = events[-1]
    odd = msgspec.structs.replace(last, seq=last.seq + 1, type="moon.risen", ignorable=True, data=Unknown(fields={}))
    store = archive(tmp_path / "demo.ftlog", [elected, *events[1:], odd])
    made = run_json_quiet(capsys, store)
    assert made["unknown"] == {"skipped_types": {"moon.risen": 1}, "stopped": None, "newer_revision": NEWEST + 1}
    assert main(["--store", store, "replay"]) == 0
    err = capsys.readouterr().err
    assert "skipped 1 event of unknown types: moon.risen (1)" in err and f"revision {NEWEST + 1} of the rules" in err


def run_json_quiet(capsys: pytest.CaptureFixture[str], store: str):
    assert main(["--store", store, "replay", "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)
