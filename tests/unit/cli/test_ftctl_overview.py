"""Commands that read a long log show the same with an overview of it and without; one that does not fit is not used."""

import asyncio
import itertools
import os
import sys
from pathlib import Path

import msgspec
import pytest
from ftctl_logs import archive

from ftcore.cli import ctl_explain, ctl_overview, ctl_report
from ftcore.cli.ftctl import main
from ftcore.events.codec import GENESIS, chain, encode
from ftcore.events.envelope import Event
from ftcore.ids import JobName, Seq
from ftcore.launch.overview import LogOverview
from ftcore.logs import open_store
from ftcore.logs.archive import Footer, read_content, read_events, read_range
from ftcore.logs.overviews import cache_directory
from ftcore.logs.pieces import FileArchive
from ftcore.ports import Candidate
from ftcore.replay.overview import JobOverview
from ftcore.runtime.master.overview import SnapshotOverview
from ftcore.states.snapshot import pack, seal
from ftcore.testing.driver import JobDriver

COMMANDS = [
    [*command, "--format", form]
    for command in (["explain"], ["explain", "i1"], ["incidents"], ["goodput"], ["failures"])
    for form in ("table", "json")
]
COMMANDS.append(["report", "-o", "-"])


def story() -> JobDriver:
    """A job with two faults."""
    driver = JobDriver(nodes=3, slots=2, tick_s=0.5)
    driver.start()
    driver.make_steps(5)
    driver.fail("node1", exitcode=-9)
    driver.settle()
    driver.make_steps(5)
    return driver


def second_fault(driver: JobDriver) -> int:
    """Add a fault; returns how many events there were before."""
    before = len(driver.events)
    driver.fail("node2", message="RuntimeError: CUDA error: an illegal memory access was encountered")
    driver.settle()
    driver.make_steps(3)
    return before


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every log counts as long; the events that overviews were fed with."""
    for module, name, value in (
        (ctl_overview, "LONG_EVENTS", 10),
        (ctl_overview, "NEW_EVENTS", 5),
        (ctl_explain, "PRESETS_EVENTS_MAX", 10),
        (ctl_report, "PRESETS_EVENTS_MAX", 10),
    ):
        monkeypatch.setattr(module, name, value)
    seqs: list[int] = []
    feed = JobOverview.feed

    def noted(overview: JobOverview, event: Event) -> None:
        seqs.append(event.seq)
        feed(overview, event)

    monkeypatch.setattr(JobOverview, "feed", noted)
    return seqs


def shown(capsys: pytest.CaptureFixture[str], url: str) -> list[tuple[int, str, str]]:
    """What each command prints, with its exit code."""
    return [(main(["--store", url, *command]), *capsys.readouterr()) for command in COMMANDS]


def without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> list[tuple[int, str, str]]:
    """The same, without overviews: the code has no digest."""
    with monkeypatch.context() as patch:
        patch.setattr(ctl_overview, "code_digest", str)
        return shown(capsys, url)


def append(store: str, events: list[Event], after: int) -> None:
    async def write() -> None:
        logs = open_store(store)
        log = await logs.open(JobName("demo"), create=True)
        lead = await log.campaign(Candidate(host="h", pid=1, address="unix:x"))
        await log.append(events[after:], term=lead.term, expected_seq=Seq(after))
        await logs.close()

    asyncio.run(write())


def kept() -> list[Path]:
    return sorted(cache_directory().glob("*.ftview"))


def test_a_live_log_goes_on_from_the_overview(tmp_path, monkeypatch, capsys, fed):
    """The first reading keeps it; later ones read what is new, and the events of one incident."""
    driver, store = story(), f"sqlite:{tmp_path / 'store'}"
    append(store, driver.events, 0)
    expected = without(monkeypatch, capsys, store)
    assert kept() == []
    assert shown(capsys, store) == expected
    fed.clear()
    assert shown(capsys, store) == expected
    assert fed == [] and len(kept()) == 1
    before = second_fault(driver)
    append(store, driver.events, before)
    expected = without(monkeypatch, capsys, store)
    fed.clear()
    assert shown(capsys, store) == expected
    assert fed == list(range(before + 1, len(driver.events) + 1))


def test_the_first_reading_goes_on_from_the_snapshot_of_the_master(tmp_path, monkeypatch, capsys, fed):
    """With nothing in the cache; from the cache if that is newer."""
    driver, store = story(), f"sqlite:{tmp_path / 'store'}"
    before = second_fault(driver)
    append(store, driver.events, 0)
    expected = without(monkeypatch, capsys, store)

    async def save() -> None:
        logs = open_store(store)
        log = await logs.open(JobName("demo"))
        lead = await log.campaign(Candidate(host="h", pid=1, address="unix:x"))
        stored = await SnapshotOverview(log, LogOverview()).until(Seq(before))
        state = JobOverview()
        for event in driver.events[:before]:
            state.feed(event)
        await log.save_snapshot(seal(pack(state.state), stored), term=lead.term)
        await logs.close()

    asyncio.run(save())
    fed.clear()
    assert main(["--store", store, *COMMANDS[0]]) == expected[0][0]
    assert capsys.readouterr() == expected[0][1:]
    assert fed == list(range(before + 1, len(driver.events) + 1)) and len(kept()) == 1
    fed.clear()
    assert shown(capsys, store) == expected
    assert fed == []


def test_an_archived_part_of_the_log_is_covered(tmp_path, monkeypatch, capsys, fed):
    """The digest of the overview's last event is then found in the archive."""
    driver, store, root = story(), f"sqlite:{tmp_path / 'store'}", tmp_path / "archive"
    append(store, driver.events, 0)
    shown(capsys, store)
    before = second_fault(driver)
    append(store, driver.events, before)

    async def truncate() -> None:
        logs = open_store(store)
        log = await logs.open(JobName("demo"))
        lead = await log.campaign(Candidate(host="h", pid=1, address="unix:x"))
        pieces, digest, end = FileArchive(root, JobName("demo")), GENESIS, before + 3
        pieces.prepare()
        for first in range(0, end, 10):
            bodies = [encode(event) for event in driver.events[first : min(first + 10, end)]]
            pieces.add(Seq(first), digest, bodies)
            for body in bodies:
                digest = chain(digest, body)
        await log.truncate(Seq(end), term=lead.term, archive=str(root / "demo"))
        await logs.close()

    asyncio.run(truncate())
    expected = without(monkeypatch, capsys, store)
    fed.clear()
    assert shown(capsys, store) == expected
    assert fed == list(range(before + 1, len(driver.events) + 1))


def test_another_log_with_the_same_beginning_is_read(tmp_path, monkeypatch, capsys, fed):
    """Restored from an older copy, it went on in another way: the digest of the overview's last event differs."""
    driver = story()
    store = f"sqlite:{tmp_path / 'store'}"
    append(store, driver.events, 0)
    shown(capsys, store)
    cut = next(event.seq for event in driver.events if event.type == "worker.failed") - 1
    replaced = f"sqlite:{tmp_path / 'replaced'}"
    fresh = JobDriver(nodes=3, slots=2, tick_s=0.5)
    fresh.start()
    fresh.make_steps(5)
    assert fresh.events[:cut] == driver.events[:cut]
    fresh.fail("node0", message="ValueError: bad batch")
    fresh.settle()
    fresh.make_steps(40)
    append(replaced, fresh.events, 0)
    expected = without(monkeypatch, capsys, replaced)
    fed.clear()
    assert shown(capsys, replaced) == expected
    assert 1 in fed


def exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    driver, plain = story(), tmp_path / "plain.ftlog"
    second_fault(driver)
    archive(plain, driver.events)
    path = tmp_path / "demo.ftlog"
    assert main(["--store", f"file:{plain}", "export", "-o", str(path)]) == 0
    capsys.readouterr()
    return path


def test_an_exported_archive_has_its_overview(tmp_path, monkeypatch, capsys, fed):
    """No event is folded again, nothing is written to the cache, and the events are those of the log."""
    path = exported(tmp_path, capsys)
    expected = without(monkeypatch, capsys, f"file:{path}")
    fed.clear()
    assert shown(capsys, f"file:{path}") == expected
    assert fed == [] and kept() == []
    assert list(read_events(path)) == list(read_events(tmp_path / "plain.ftlog"))
    assert without(monkeypatch, capsys, f"file:{tmp_path / 'plain.ftlog'}") == expected


def test_releases_without_overviews_read_such_an_archive(tmp_path, capsys, fed):
    """They take the line of the overview for the footer, and the last line, too."""
    lines = exported(tmp_path, capsys).read_bytes().splitlines()
    events = len(lines) - 3
    for line in lines[-2:]:
        fields = msgspec.json.decode(line)
        assert (fields["ftlog_end"], fields["events"], fields["digest"]) == (1, events, lines[-3][:32].decode())
    assert len(lines[-1]) < 500


def test_an_archive_without_overview_is_kept_in_the_cache(tmp_path, monkeypatch, capsys, fed):
    """By all its bytes, under any name."""
    driver = story()
    url = archive(tmp_path / "plain.ftlog", driver.events)
    expected = without(monkeypatch, capsys, url)
    assert shown(capsys, url) == expected
    (tmp_path / "plain.ftlog").rename(tmp_path / "renamed.ftlog")
    fed.clear()
    assert shown(capsys, f"file:{tmp_path / 'renamed.ftlog'}") == expected
    assert fed == [] and len(kept()) == 1


def collected_apart(monkeypatch: pytest.MonkeyPatch, processors: set[int], python: str) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: processors)
    monkeypatch.setattr(sys, "executable", python)


@pytest.mark.parametrize(
    ("processors", "python", "events"),
    [
        pytest.param({0, 1}, sys.executable, False, id="another process"),
        pytest.param({0}, sys.executable, True, id="one processor"),
        pytest.param({0, 1}, "/bin/false", True, id="a process that fails"),
        pytest.param({0, 1}, "/nonexistent", True, id="no process"),
    ],
)
def test_another_process_collects_the_overview_for_a_report(
    tmp_path, monkeypatch, capsys, fed, processors, python, events
):
    """Of an archive file without one; if that is not possible, the same process. The page is the same, and the
    overview is kept."""
    url, report = archive(tmp_path / "plain.ftlog", story().events), COMMANDS[-1]
    expected = without(monkeypatch, capsys, url)[-1]
    collected_apart(monkeypatch, processors, python)
    fed.clear()
    assert (main(["--store", url, *report]), *capsys.readouterr()) == expected
    assert bool(fed) == events and len(kept()) == 1


@pytest.mark.parametrize("damage", ["changed", "cut"])
def test_a_report_of_a_damaged_archive_does_not_need_the_other_process(tmp_path, monkeypatch, capsys, fed, damage):
    """The page shows the readable part, with the reason, whatever the other process does."""
    path = tmp_path / "plain.ftlog"
    url, report = archive(path, story().events), COMMANDS[-1]
    body = path.read_bytes()
    half = len(body) // 2
    path.write_bytes(body[:half] if damage == "cut" else body[:half] + bytes([body[half] ^ 1]) + body[half + 1 :])
    expected = without(monkeypatch, capsys, url)[-1]
    assert expected[0] != 0
    collected_apart(monkeypatch, {0, 1}, sys.executable)
    assert (main(["--store", url, *report]), *capsys.readouterr()) == expected
    assert kept() == []


@pytest.mark.parametrize("where", ["event", "overview", "footer", "cut", "cut in the overview"])
def test_a_changed_archive_says_what_it_said_without_overviews(tmp_path, monkeypatch, capsys, fed, where):
    """Every byte of it counts."""
    path = exported(tmp_path, capsys)
    body, lines = path.read_bytes(), path.read_bytes().splitlines(keepends=True)
    at = {
        "event": len(b"".join(lines[:20])) + 60,
        "overview": len(body) - len(lines[-1]) - 400,
        "footer": len(body) - 9,
    }
    if where.startswith("cut"):
        path.write_bytes(body[: len(body) // 2] if where == "cut" else body[: at["overview"]])
    else:
        path.write_bytes(body[: at[where]] + bytes([body[at[where]] ^ 1]) + body[at[where] + 1 :])
    expected = without(monkeypatch, capsys, f"file:{path}")
    assert shown(capsys, f"file:{path}") == expected
    assert shown(capsys, f"file:{path}") == expected
    if where in ("event", "cut"):
        assert expected[0][0] != 0 and kept() == []


def damages(stored: bytes) -> list[bytes]:
    header, _, deflated = stored.partition(b"\n")
    known = msgspec.json.decode(header)
    other = {"code": "0" * 64, "version": "0.0.0", "ftview": 2, "digest": "0" * 32, "seq": known["seq"] - 1}
    changed = [msgspec.json.encode({**known, key: value}) + b"\n" + deflated for key, value in other.items()]
    return [
        *changed,
        b"",
        b"{",
        stored[:-1],
        stored[: len(stored) // 2],
        header + b"\n",
        stored + b"x",
        b"\x80\x04K\x01.",
    ]


def test_a_damaged_or_foreign_overview_is_not_used(tmp_path, monkeypatch, capsys, fed):
    """The log is read from its start, and the overview is replaced."""
    store = f"sqlite:{tmp_path / 'store'}"
    append(store, story().events, 0)
    explain = ["--store", store, "explain"]
    assert main(explain) == 0
    expected = capsys.readouterr()
    (path,) = kept()
    stored = path.read_bytes()
    for damaged in damages(stored):
        path.write_bytes(damaged)
        fed.clear()
        assert main(explain) == 0
        assert capsys.readouterr() == expected
        assert fed[0] == 1 and path.read_bytes() == stored
    path.chmod(0o644)
    fed.clear()
    assert main(explain) == 0 and fed[0] == 1


def test_records_that_contradict_each_other_are_not_used(tmp_path, monkeypatch, capsys, fed):
    """Such as an overview of which only the digest fits."""
    store, driver = f"sqlite:{tmp_path / 'store'}", story()
    append(store, driver.events, 0)
    shown(capsys, store)
    append(store, driver.events, second_fault(driver))
    expected = without(monkeypatch, capsys, store)
    restore = ctl_overview.restore_overview

    def broken(*args):
        found = restore(*args)
        if found is not None:
            found.state.membership.nodes.clear()
        return found

    monkeypatch.setattr(ctl_overview, "restore_overview", broken)
    assert shown(capsys, store) == expected


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch, capsys, fed):
    """A file in its place, or a directory that others may write."""
    store = f"sqlite:{tmp_path / 'store'}"
    append(store, story().events, 0)
    expected = without(monkeypatch, capsys, store)
    (tmp_path / "cache").write_text("")
    assert shown(capsys, store) == expected
    (tmp_path / "cache").unlink()
    cache_directory().mkdir(parents=True, mode=0o755)
    cache_directory().chmod(0o777)
    assert shown(capsys, store) == expected
    assert kept() == []


def test_a_range_of_an_intact_archive_is_found(tmp_path, monkeypatch):
    """Any range of a file whose lines are long and short."""
    driver = story()
    second_fault(driver)
    archive(tmp_path / "demo.ftlog", driver.events)
    path, count = tmp_path / "demo.ftlog", len(driver.events)
    monkeypatch.setattr("ftcore.logs.archive.NEAR_BYTES", 64)
    for after, until in itertools.product((0, 1, 7, count // 2, count - 1, count), (1, 8, count // 2, count)):
        assert [line.seq for line in read_range(path, after, until)] == list(range(after + 1, until + 1))
    content = read_content(path)
    assert content is not None and (content.seq, content.overview) == (count, None)
    assert msgspec.json.decode(path.read_bytes().splitlines()[-1], type=Footer).digest == content.digest
