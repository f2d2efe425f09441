"""``ftctl`` while the archive of a log is away: what is left is shown, what is missing is told."""

import asyncio
import datetime
from pathlib import Path

import pytest

from ftcore.cli.ftctl import main
from ftcore.ids import JobName, Seq
from ftcore.logs import open_store
from ftcore.ports import Candidate
from ftcore.testing.driver import JobDriver

GONE = 9


@pytest.fixture
def cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], int, str]:
    """``ftctl`` on a log without its first events, the last seq, and a time amid what is left."""
    for name in ("FTCORE_JOB", "FTCORE_ARCHIVE"):
        monkeypatch.delenv(name, raising=False)
    driver = JobDriver()
    driver.start()
    driver.fail("node0")
    driver.settle()
    store = f"sqlite:{tmp_path / 'store'}"

    async def write() -> None:
        logs = open_store(store)
        log = await logs.open(JobName("demo"), create=True)
        lead = await log.campaign(Candidate(host="h", pid=1, address="unix:x"))
        await log.append(driver.events, term=lead.term, expected_seq=Seq(0))
        await log.truncate(Seq(GONE), term=lead.term, archive=str(tmp_path / "away" / "demo"))
        await log.close()
        await logs.close()

    asyncio.run(write())
    later = next(event.time for event in driver.events[GONE:] if event.time > driver.events[GONE].time)
    middle = datetime.datetime.fromtimestamp(later / 1e9, datetime.UTC).isoformat()
    return ["--store", store], len(driver.events), middle


def shown(capsys: pytest.CaptureFixture[str]) -> tuple[list[int], str]:
    out, err = capsys.readouterr()
    return [int(line.split()[0]) for line in out.splitlines()[1:]], err


def test_events_without_a_start_are_those_that_are_there(cut, capsys):
    """With a note that names archive and flags, and the code of what is not found."""
    ftctl, last, _ = cut
    assert main([*ftctl, "events"]) == 4
    seqs, err = shown(capsys)
    assert seqs == list(range(GONE + 1, last + 1))
    assert f"events 1 to {GONE} " in err and "away/demo, which does not exist" in err
    assert "--archive" in err and f"--since {GONE + 1}" in err


def test_events_from_what_is_there_are_complete(cut, capsys):
    """By number or by time, nothing is said of an archive that is not needed."""
    ftctl, last, middle = cut
    assert main([*ftctl, "events", "--since", str(GONE + 1)]) == 0
    assert shown(capsys) == (list(range(GONE + 1, last + 1)), "")
    assert main([*ftctl, "events", "--since", middle]) == 0
    seqs, err = shown(capsys)
    assert seqs[0] > GONE + 1 and seqs[-1] == last and not err


def test_events_named_that_are_away_are_an_error(cut, capsys):
    """Nothing else is shown in their place."""
    ftctl, _, _ = cut
    assert main([*ftctl, "events", "--since", "5"]) == 4
    out, err = capsys.readouterr()
    assert not out and f"events 5 to {GONE} " in err


@pytest.mark.parametrize("command", ["incidents", "explain", "replay --verify", "export -o never.ftlog"])
def test_what_needs_all_of_the_log_names_what_is_missing(cut, capsys, command, tmp_path, monkeypatch):
    """And both ways out."""
    monkeypatch.chdir(tmp_path)
    ftctl, _, _ = cut
    assert main([*ftctl, *command.split()]) == 4
    out, err = capsys.readouterr()
    assert not out and f"events 1 to {GONE} " in err and "--archive" in err and f"--since {GONE + 1}" in err
    assert not Path("never.ftlog").exists()
