"""``ftctl note`` and ``ftctl logbook``."""

import asyncio
import io
import re
from pathlib import Path

import msgspec
import pytest
from ftctl_logs import archive, driven, run_json

from ftcore.cli.ctl_markdown import plain, quoted
from ftcore.cli.ftctl import main
from ftcore.events.checkpoint import CheckpointCommitted, CheckpointFailed
from ftcore.events.envelope import Event, Unknown
from ftcore.events.job import JobProgressed, JobSpec
from ftcore.events.operator import NOTE_CHARS_MAX, OperatorNoted
from ftcore.ids import Seq
from ftcore.logs import open_log
from ftcore.ports import Candidate
from ftcore.replay import verify
from ftcore.replay.chronicle import PER_DAY_MAX
from ftcore.replay.logbook import STORED_PER_DAY_MAX
from ftcore.testing.driver import JobDriver
from ftcore.wording import utc

HOSTILE = "# <script>alert(1)</script> \x1b]0;o\x07 [x](javascript:1) `code` | cell | ~~a~~ $x$ ![i](//evil) \u202eba"


def ended() -> JobDriver:
    driver = driven()
    driver.finish()
    driver.settle()
    return driver


async def _stored(directory: Path, events: list[Event]) -> str:
    url = f"sqlite://{directory}"
    log = await open_log(url, "demo", create=True)
    leadership = await log.campaign(Candidate(host="host", pid=1, address="unix:/nowhere"))
    await log.append(events, term=leadership.term, expected_seq=Seq(0))
    await leadership.resign()
    await log.close()
    return url


async def _read(url: str) -> list[Event]:
    log = await open_log(url, "demo")
    try:
        return [event async for event in log.read()]
    finally:
        await log.close()


def test_a_note_in_the_log_of_an_ended_job(tmp_path, capsys):
    """It is appended in a term of its own; the log verifies, the state of the job stays, a second one follows it."""
    url = asyncio.run(_stored(tmp_path / "store", ended().events))
    before = run_json(capsys, "--store", url, "status")
    made = run_json(capsys, "--store", url, "note", "the fan of node1\nwas broken")
    assert made["seq"] == before["last_seq"] + 1 and "@" in made["who"]
    assert main(["--store", url, "note", "a second one"]) == 0
    assert "recorded as event" in capsys.readouterr().err
    events = asyncio.run(_read(url))
    assert [event.data.text for event in events[-2:]] == ["the fan of node1\nwas broken", "a second one"]
    assert events[-1].term > events[-2].term > events[0].term and events[-1].ignorable
    assert verify(events).ok
    after = run_json(capsys, "--store", url, "status")
    assert (after["state"], after["exit_code"]) == (before["state"], before["exit_code"]) == ("succeeded", 0)


def test_a_note_for_a_job_without_a_master(tmp_path, capsys):
    """Exit code 3, and nothing is appended: the next master must win the election at once."""
    events = driven().events
    url = asyncio.run(_stored(tmp_path / "store", events))
    assert main(["--store", url, "note", "hello"]) == 3
    assert "no master leads demo" in capsys.readouterr().err
    assert len(asyncio.run(_read(url))) == len(events)


@pytest.mark.parametrize(("text", "problem"), [(" \n", "empty"), ("x" * (NOTE_CHARS_MAX + 1), "at most 4000")])
def test_a_note_that_is_refused(tmp_path, capsys, text, problem):
    """An empty note and one that is too long: exit code 2 with the reason."""
    url = asyncio.run(_stored(tmp_path / "store", ended().events))
    assert main(["--store", url, "note", text]) == 2
    assert problem in capsys.readouterr().err


def test_a_note_in_an_archive(tmp_path, capsys):
    """An archive is read-only: exit code 2."""
    assert main(["--store", archive(tmp_path / "demo.ftlog", ended().events), "note", "x"]) == 2
    assert "an archive is read-only" in capsys.readouterr().err


def test_the_logbook_tells_what_happened(tmp_path, capsys):
    """Submission, start, incident with cause and cost, requests with their outcome, notes, checkpoints, size, end."""
    driver = driven()
    driver.own(JobProgressed(round=2, step=12, loss=2.5))
    driver.own(OperatorNoted(who="ann@host", text="odd\nsince Friday"))
    driver.own(CheckpointCommitted(round=2, step=12, where="/data/step-12"))
    driver.command("evict", node="node1", why="slow")
    driver.finish()
    driver.settle()
    made = run_json(capsys, "--store", archive(tmp_path / "demo.ftlog", driver.events), "logbook")
    kinds = [entry["kind"] for entry in made["entries"]]
    assert kinds == ["submitted", "start", "incident", "note", "checkpoint", "operator", "end"]
    incident, note, request = (made["entries"][place] for place in (2, 3, 5))
    assert incident["lines"][0].startswith("first: rank 1 (local 1) on node0 failed first: killed by SIGKILL; 1 more")
    assert incident["lines"][1].startswith("resolved by process_restart: stepped")
    assert "without progress" in incident["lines"][2]
    assert (note["who"], note["text"]) == ("ann@host", "odd\nsince Friday")
    assert request["who"] == "user@host" and request["lines"] == ["no policy resolved it: dropped"]
    summary = made["overview"]
    assert (summary["step"], summary["loss"], summary["notes"], summary["checkpoint"]) == (12, 2.5, 1, 12)
    [fault] = [row for row in summary["classes"] if row["kind"] == "fault"]
    assert (fault["count"], fault["by_policy"]) == (1, {"process_restart": 1})
    assert summary["lost_s"] == fault["lost_s"] > 0 and fault["gpu_s"] == pytest.approx(4 * fault["lost_s"])


def test_a_change_of_size(tmp_path, capsys):
    """A world of another size has an entry that names both sizes."""
    driver = JobDriver(spec=JobSpec(argv=("t.py",), nodes_min=1, nodes_max=2))
    driver.start()
    driver.make_steps(3)
    driver.command("evict", node="node1", why="slow")
    driver.settle()
    made = run_json(capsys, "--store", archive(tmp_path / "demo.ftlog", driver.events), "logbook")
    [size] = [entry["text"] for entry in made["entries"] if entry["kind"] == "size"]
    assert size.startswith("2 ranks before; round 2: 1 rank on 1 node, without node1")


@pytest.mark.parametrize("given", ["bad \udcff", "-"])
def test_a_note_that_is_not_text(tmp_path, capsys, monkeypatch, given):
    """Bytes that are not UTF-8, as an argument or on standard input: exit code 2, and nothing is recorded."""
    url = asyncio.run(_stored(tmp_path / "store", ended().events))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"bad \xff"), encoding="utf-8"))
    assert main(["--store", url, "note", given]) == 2
    where = "standard input" if given == "-" else "TEXT"
    assert f"{where} is not UTF-8 text: position 4; write the note in UTF-8" in capsys.readouterr().err
    assert not any(event.type == "operator.noted" for event in asyncio.run(_read(url)))


def test_since_and_until(tmp_path, capsys):
    """Entries and incidents of the summary are those between both."""
    driver = ended()
    store = archive(tmp_path / "demo.ftlog", driver.events)
    whole = run_json(capsys, "--store", store, "logbook")
    opened = next(entry["seq"] for entry in whole["entries"] if entry["kind"] == "incident")
    late = run_json(capsys, "--store", store, "logbook", "--since", str(opened + 1))
    assert [entry["kind"] for entry in late["entries"]] == ["end"] and late["overview"]["classes"] == []
    early = run_json(capsys, "--store", store, "logbook", "--until", str(opened - 1))
    assert [entry["kind"] for entry in early["entries"]] == ["submitted", "start"]


def test_a_part_is_told_by_its_own_times(tmp_path, capsys):
    """The summary of a part has the time of the part, and no goodput, which is of the whole log."""
    driver = ended()
    store = archive(tmp_path / "demo.ftlog", driver.events)
    whole = run_json(capsys, "--store", store, "logbook")["overview"]
    middle = (whole["begin_ns"] + whole["end_ns"]) // 2
    late = run_json(capsys, "--store", store, "logbook", "--since", utc(middle))["overview"]
    assert whole["goodput"] is not None and late["goodput"] is None
    assert (late["begin_ns"], late["end_ns"]) == (middle // 1000 * 1000, whole["end_ns"])
    assert main(["--store", store, "logbook", "--since", utc(whole["end_ns"] + 10**9)]) == 0
    assert "No entry since" in capsys.readouterr().out


def test_texts_are_shown_and_not_interpreted(tmp_path, capsys):
    """No HTML, link, table cell, heading or terminal escape of a message or note survives."""
    driver = driven()
    driver.fail("node0", message=HOSTILE, tail=HOSTILE)
    driver.settle()
    driver.own(OperatorNoted(who=f"x@{HOSTILE}", text=f"{HOSTILE}\n{HOSTILE}\n- item\n1. one"))
    driver.command("evict", node="node1", why=HOSTILE)
    assert main(["logbook", "--store", archive(tmp_path / "demo.ftlog", driver.events)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\x07" not in out and "\u202e" not in out and "<" not in out
    assert not re.search(r"(?<!\\)[`\[]", out) and "evil" in out and "&lt;script&gt;" in out
    assert "  > \\# &lt;script" in out and "  > \\- item" in out and "  > 1\\. one" in out


def test_plain_and_quoted():
    """Punctuation is escaped, lines stay, a list of a note begins no list."""
    assert plain("a_b|c <d> 1*2 http://x & \\") == "a\\_b\\|c &lt;d&gt; 1\\*2 http\\://x &amp; \\\\"
    assert quoted("a\n\n# b\n=\n12) c") == ["> a", ">", "> \\# b", "> \\=", "> 12\\) c"]


def test_the_file_is_not_written_over_another_one(tmp_path, capsys):
    """A logbook replaces a logbook; any other file is refused; JSON goes to standard output alone."""
    store, path = archive(tmp_path / "demo.ftlog", ended().events), tmp_path / "demo.md"
    for _ in range(2):
        assert main(["--store", store, "logbook", "-o", str(path)]) == 0
    assert path.read_text().startswith("# Logbook of demo\n")
    path.write_text("my thesis")
    assert main(["--store", store, "logbook", "-o", str(path)]) == 2
    assert path.read_text() == "my thesis"
    assert main(["--store", store, "logbook", "-o", str(path), "--format", "json"]) == 2


def test_a_quiet_stretch_and_a_full_day(tmp_path, capsys):
    """Days of training are one line; of a day with very many incidents the later ones are counted, notes are not."""
    driver = JobDriver(nodes=1, tick_s=600.0)
    driver.start()
    for step in range(1, 500):
        driver.own(JobProgressed(round=1, step=step, loss=1 / step))
        driver.own(CheckpointCommitted(round=1, step=step))
    driver.tick //= 600_000
    for step in range(STORED_PER_DAY_MAX + 10):
        driver.say("node0", CheckpointFailed(node="node0", incarnation="x", round=1, step=step, reason="full"))
    driver.own(OperatorNoted(who="ann@host", text="enough"))
    made = run_json(capsys, "--store", archive(tmp_path / "demo.ftlog", driver.events), "logbook")
    [quiet] = [entry["text"] for entry in made["entries"] if entry["kind"] == "quiet"]
    assert quiet.startswith("6 d 22 h without another entry: step 2 to 499, loss 0.5 to 0.002")
    assert "498 checkpoints, the newest of step 499" in quiet
    assert len([entry for entry in made["entries"] if entry["kind"] == "problem"]) < PER_DAY_MAX
    [more] = [entry for entry in made["entries"] if entry["kind"] == "more"]
    assert "problems" in more["text"] and "not stored" in more["text"] and more["times"] > STORED_PER_DAY_MAX - 60
    assert [entry["text"] for entry in made["entries"] if entry["kind"] == "note"] == ["enough"]


def test_events_of_a_newer_ftcore_are_counted(tmp_path, capsys):
    """The logbook says which events it does not understand."""
    driver = driven()
    last = driver.events[-1]
    newer = msgspec.structs.replace(
        last, seq=last.seq + 1, type="moon.risen", v=1, ignorable=True, data=Unknown(fields={"a": 1}), cause=None
    )
    assert main(["logbook", "--store", archive(tmp_path / "demo.ftlog", [*driver.events, newer])]) == 0
    assert "**Not understood**: 1 event of a newer ftcore: moon.risen (1)" in capsys.readouterr().out


def test_ten_megabytes_of_message(tmp_path, capsys):
    """A huge message is cut before it is made printable."""
    driver = driven()
    events = []
    for event in driver.events:
        if event.type == "incident.opened":
            data = msgspec.structs.replace(
                event.data, fault=msgspec.structs.replace(event.data.fault, summary="x" * 10_000_000)
            )
            event = msgspec.structs.replace(event, data=data)
        events.append(event)
    assert main(["logbook", "--store", archive(tmp_path / "demo.ftlog", events)]) == 0
    assert len(capsys.readouterr().out) < 10_000
