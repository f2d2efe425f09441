"""The outbox keeps an agent's facts until they are durable, and hands them to its successor once."""

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from ftcore.events.codec import decode_fact
from ftcore.events.node import NodeLeft
from ftcore.events.operator import OperatorCommanded
from ftcore.runtime.agent.link import outbox as subject
from ftcore.runtime.agent.link.journal import FileJournal
from ftcore.runtime.agent.link.outbox import Outbox
from ftcore.runtime.clock import at


def outbox(path: Path, life: str) -> Outbox:
    made = Outbox("a", life, lambda: None)
    made.open(lambda: FileJournal(path))
    return made


def wait_until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.001)


def close(box: Outbox) -> None:
    asyncio.run(box.close())


def left(life: str) -> NodeLeft:
    return NodeLeft(node="a", incarnation=life, reason="test")


def inherited(box: Outbox) -> list[tuple[str, int]]:
    found = asyncio.run(box.inherited())
    close(box)
    return [(fact.id.incarnation, fact.id.n) for fact in map(decode_fact, found)]


def test_a_successor_inherits_unacknowledged_facts(tmp_path):
    """All facts of the last incarnation, unless all were acknowledged; duplicates are detected by their numbers."""
    first = outbox(tmp_path / "o", "1")
    for _ in range(3):
        first.add(left("1"), at())
    first.acknowledge(2)
    assert (first.acked, [n for n, _ in first.unacknowledged(0)]) == (2, [3])
    close(first)
    assert inherited(outbox(tmp_path / "o", "2")) == [("1", 1), ("1", 2), ("1", 3)]


def test_nothing_is_inherited_when_all_was_acknowledged(tmp_path):
    """The file is then empty."""
    first = outbox(tmp_path / "o", "1")
    first.add(left("1"), at())
    first.acknowledge(1)
    close(first)
    assert inherited(outbox(tmp_path / "o", "2")) == []


def test_only_the_last_life_is_inherited(tmp_path):
    """Facts of an older incarnation may be in the log already, where duplicates of it are not detected."""
    for life in ("1", "2"):
        box = outbox(tmp_path / "o", life)
        box.add(left(life), at())
        close(box)
    assert inherited(outbox(tmp_path / "o", "3")) == [("2", 1)]


def test_a_torn_line_spoils_no_other(tmp_path):
    """A fact truncated by a full disk is lost; earlier and later facts are not."""
    box = outbox(tmp_path / "o", "1")
    box.add(left("1"), at())
    with (tmp_path / "o").open("ab") as file:
        file.write(b'\n{"id":["a","1",2],"ty')
    box.add(left("1"), at())
    close(box)
    assert inherited(outbox(tmp_path / "o", "2")) == [("1", 1), ("1", 2)]


def test_a_stop_request_is_not_inherited(tmp_path):
    """A stop request that no master received does not stop the next ftrun."""
    box = outbox(tmp_path / "o", "1")
    box.add(left("1"), at())
    box.add(OperatorCommanded(command="stop", who="SIGINT to ftrun", exit_code=130), at())
    close(box)
    assert inherited(outbox(tmp_path / "o", "2")) == [("1", 1)]


def test_a_file_that_cannot_be_written_costs_only_itself(tmp_path):
    """An outbox whose directory is a file keeps its facts in memory."""
    (tmp_path / "file").write_text("")
    box = outbox(tmp_path / "file" / "o", "1")
    assert box.add(left("1"), at()) == 1
    assert [n for n, _ in box.unacknowledged(0)] == [1]
    close(box)


def test_a_stalled_disk_delays_no_fact(tmp_path):
    """Facts are added, sent and acknowledged during the stall; the file then gets only the remaining facts."""
    box = outbox(tmp_path / "o", "1")
    asyncio.run(box.inherited())
    os.mkfifo(tmp_path / "o")  # to open it is to wait for a reader: a disk that does not answer
    for _ in range(3):
        box.add(left("1"), at())
    assert [n for n, _ in box.unacknowledged(0)] == [1, 2, 3]
    box.acknowledge(3)
    box.add(left("1"), at())
    with (tmp_path / "o").open("rb") as disk:
        close(box)
        written = [decode_fact(line).id.n for line in disk.read().split()]
    assert written == [4]


def test_an_agent_that_ends_does_not_wait_for_its_disk(tmp_path, monkeypatch):
    """Late writes do not appear as facts of the next agent."""
    monkeypatch.setattr(subject, "CLOSE_S", 0.05)
    box = outbox(tmp_path / "o", "1")
    asyncio.run(box.inherited())
    os.mkfifo(tmp_path / "o")
    box.add(left("1"), at())
    close(box)
    with (tmp_path / "o").open("rb") as disk:
        assert disk.read() == b""


def test_the_wait_for_the_predecessors_facts_is_limited(tmp_path, monkeypatch):
    """A stalled disk delays neither the new agent nor its facts; the facts on the disk are lost."""
    monkeypatch.setattr(subject, "READ_S", 0.05)
    monkeypatch.setattr(subject, "CLOSE_S", 0.05)
    os.mkfifo(tmp_path / "o")
    box = outbox(tmp_path / "o", "2")
    box.add(left("2"), at())
    assert asyncio.run(box.inherited()) == []
    assert [n for n, _ in box.unacknowledged(0)] == [1]
    close(box)
    with (tmp_path / "o").open("wb") as disk:
        disk.write(b"")


def test_the_predecessors_facts_are_sent_until_the_first_acknowledgement(tmp_path):
    """A broken stream does not lose them; after a fact of the newer incarnation they would look new."""
    first = outbox(tmp_path / "o", "1")
    first.add(left("1"), at())
    close(first)
    box = outbox(tmp_path / "o", "2")
    box.add(left("2"), at())
    box.add(left("2"), at())
    told = [asyncio.run(box.inherited()) for _ in range(2)]
    assert told[0] == told[1] != []
    box.acknowledge(1)
    assert inherited(box) == []


def test_facts_of_one_log_never_reach_another(tmp_path):
    """An outbox writes nothing before its log is known; then it writes all earlier facts to the file of that log."""
    first = outbox(tmp_path / "log1" / "o", "1")
    first.add(left("1"), at())
    close(first)
    second = Outbox("a", "2", lambda: None)
    second.add(left("2"), at())
    assert asyncio.run(second.inherited()) == []
    second.open(lambda: FileJournal(tmp_path / "log2" / "o"))
    assert asyncio.run(second.inherited()) == []
    second.open(lambda: FileJournal(tmp_path / "log1" / "o"))
    assert asyncio.run(second.inherited()) == []
    close(second)
    assert inherited(outbox(tmp_path / "log2" / "o", "3")) == [("2", 1)]
    assert inherited(outbox(tmp_path / "log1" / "o", "3")) == [("1", 1)]


def test_an_outbox_with_nothing_to_leave_leaves_no_file(tmp_path):
    """Nor its directory, of which each log of a job has one."""
    box = outbox(tmp_path / "log" / "o", "1")
    box.add(left("1"), at())
    box.acknowledge(1)
    close(box)
    assert list(tmp_path.iterdir()) == []


def test_a_removed_file_is_created_again(tmp_path):
    """Facts added after the directory was removed are kept for the next incarnation."""
    box = outbox(tmp_path / "log" / "o", "1")
    box.add(left("1"), at())
    wait_until(lambda: (tmp_path / "log" / "o").exists() and (tmp_path / "log" / "o").stat().st_size > 0)
    shutil.rmtree(tmp_path / "log")
    box.add(left("1"), at())
    close(box)
    assert inherited(outbox(tmp_path / "log" / "o", "2")) == [("1", 2)]
