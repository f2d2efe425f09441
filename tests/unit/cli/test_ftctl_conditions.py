"""Every command that reads a log, on logs in every condition: an answer or one message, never a traceback."""

import asyncio
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from ftctl_logs import archive, driven

from ftcore.cli import ctl_output
from ftcore.cli.ftctl import main
from ftcore.events.envelope import At, Event
from ftcore.events.operator import OperatorNoted
from ftcore.events.worker import WorkerFailed
from ftcore.ids import Seq
from ftcore.logs import open_log
from ftcore.ports import Candidate
from ftcore.testing.driver import JobDriver

GOLDEN = Path(__file__).parents[2] / "golden" / "logs" / "0.1.0"

COMMANDS = (
    "events",
    "incidents",
    "explain",
    "status",
    "jobs",
    "replay",
    "replay --verify",
    "replay --diff 1 20",
    "bisect --check one-incident",
    "bisect --expr run==run",
    "logbook",
    "logs",
    "failures",
    "failures --all",
    "goodput",
    "checkpoints",
)

CODES_OF = {"checkpoints": (2,), "replay --verify": (1,)}
"""Codes that a command may have on any log: the job has no checkpoints on storage; its decisions were altered."""

HOSTILE = "<script>alert(1)</script> \x1b]0;o\x07\x1b[2J [x](javascript:1) \x9b31m \u202eabc \r\n# x \x00"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that no output may have: control and bidirectional ones, line ends and tabs aside."""

Made = tuple[str, tuple[int, ...]]
"""URL of a store, and the exit codes that are right for a command that cannot answer."""


def stored(directory: Path, events: list[Event]) -> str:
    url = f"sqlite://{directory}"

    async def store() -> None:
        log = await open_log(url, "demo", create=True)
        leadership = await log.campaign(Candidate(host="host", pid=1, address="unix:/nowhere"))
        if events:
            await log.append(events, term=leadership.term, expected_seq=Seq(0))
        await leadership.resign()
        await log.close()

    asyncio.run(store())
    return url


def said(text: str) -> JobDriver:
    """A job whose messages, reasons and notes have this text."""
    driver = driven()
    driver.fail("node0", message=f"ValueError: {text}", tail=text)
    driver.settle()
    driver.command("evict", node="node1", why=text)
    driver.own(OperatorNoted(who=f"a@{text}", text=text))
    driver.settle()
    return driver


def empty_archive(place: Path) -> Made:
    return archive(place / "demo.ftlog", []), (4,)


def empty_store(place: Path) -> Made:
    return stored(place / "store", []), (4,)


def running(place: Path) -> Made:
    driver = driven()
    driver.fail("node0", message="ValueError: bad batch")  # its incident is open
    return stored(place / "store", driver.events), (4,)


def cut_archive(place: Path) -> Made:
    url, path = archive(place / "demo.ftlog", driven().events), place / "demo.ftlog"
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    return url, (1, 2, 4)  # an answer from the part that is there; bisect is unfinished, and logs has no files here


def cut_store(place: Path) -> Made:
    url = stored(place / "store", driven().events)
    [path] = (place / "store").glob("**/*.db")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 // 4096 * 4096 + 100])
    for beside in path.parent.glob(f"{path.name}-*"):
        beside.unlink()
    return url, (1, 2)


def apart(place: Path) -> Made:
    """The clock of node1 is an hour ahead, that of node0 half a second behind."""
    ahead = {"node0": -500_000_000, "node1": 3_600_000_000_000}
    events = []
    for event in driven().events:
        at = event.at
        if at is not None and event.source in ahead:
            at = At(wall=at.wall + ahead[event.source], mono=at.mono, boot=f"boot-{event.source}")
        events.append(msgspec.structs.replace(event, at=at))
    return archive(place / "demo.ftlog", events), (4,)


def hostile(place: Path) -> Made:
    return archive(place / "demo.ftlog", said(HOSTILE).events), (4,)


def huge(place: Path, megabytes: int = 1) -> Made:
    """Messages of megabytes, as only a foreign log has them: ftcore's own are limited."""
    events = []
    for event in driven().events:
        data = event.data
        if isinstance(data, WorkerFailed):
            data = msgspec.structs.replace(data, tail="x\x1b[31m" * (200_000 * megabytes))
        elif event.type == "incident.opened":
            data = msgspec.structs.replace(
                data, fault=msgspec.structs.replace(data.fault, summary="y" * (1_000_000 * megabytes))
            )
        events.append(msgspec.structs.replace(event, data=data))
    return archive(place / "demo.ftlog", events), (1, 4)


def ten_megabytes(place: Path) -> Made:
    """Messages ten times as long."""
    return huge(place, 10)


def older(place: Path) -> Made:
    shutil.copy(GOLDEN / "kill_raise_segfault_lose.ftlog", place / "demo.ftlog")
    return f"file:{place}/demo.ftlog", (1, 4)


def read_only(place: Path) -> Made:
    url = archive(place / "demo.ftlog", driven().events)
    (place / "demo.ftlog").chmod(0o444)
    return url, (4,)


CONDITIONS: tuple[Callable[[Path], Made], ...] = (
    empty_archive,
    empty_store,
    running,
    cut_archive,
    cut_store,
    apart,
    hostile,
    huge,
    older,
    read_only,
)


@pytest.mark.parametrize(
    "make", [*CONDITIONS, pytest.param(ten_megabytes, marks=pytest.mark.long)], ids=lambda make: make.__name__
)
def test_every_command_answers(make, tmp_path, capsys, monkeypatch):
    """Exit code 0 with an answer, or the code of the condition with one message; nothing that controls a terminal."""
    url, codes = make(tmp_path)
    wrong = []
    for command in COMMANDS:
        for form in ("table",) if make in (huge, ten_megabytes) else ("table", "json"):
            code = main(["--store", url, *command.split(), "--format", form])
            out, err = capsys.readouterr()
            if code not in (0, *codes, *CODES_OF.get(command, ())):
                wrong.append((command, form, code, err[-300:]))
            shown = out + err if form == "table" else err  # JSON escapes control characters for programs
            if "Traceback" in out + err or CONTROL.search(shown) or (form == "json" and "\x1b" in out):
                wrong.append((command, form, "control characters", (out + err)[:200]))
            if code and not out + err:
                wrong.append((command, form, code, "no message"))
            if any(len(line) > 100_000 for line in err.splitlines()):
                wrong.append((command, form, "a long message", err[:100]))
    assert not wrong


@pytest.mark.parametrize("make", [running, hostile, older], ids=lambda make: make.__name__)
def test_on_a_terminal_of_80_columns_without_colour(make, tmp_path, capsys, monkeypatch):
    """Tables and lists fit; files, states and lines to be copied may be longer."""
    monkeypatch.setattr(ctl_output, "columns", lambda: 80)
    monkeypatch.setattr("ftcore.cli.ctl_events.columns", lambda: 80)
    monkeypatch.setenv("NO_COLOR", "1")
    url, _ = make(tmp_path)
    for command in ("events", "incidents", "explain", "status", "goodput", "jobs"):
        assert main(["--store", url, *command.split()]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert [line for line in out.splitlines() if len(line) > 80] == [], command
