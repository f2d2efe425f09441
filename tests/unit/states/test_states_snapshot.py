"""Snapshots of the folded state: equal to a fold from the start, and not used where they cannot be trusted."""

import asyncio
import zlib

import msgspec
import pytest

from ftcore.events.policy import AlertRaised
from ftcore.ids import JobName, Seq
from ftcore.logs.memory import MemoryStore
from ftcore.ports import Candidate, Snapshot
from ftcore.replay import fold_log
from ftcore.states import snapshot as snapshots
from ftcore.states.model import to_json
from ftcore.states.snapshot import pack, recall, restore, seal
from ftcore.testing.driver import JobDriver


@pytest.fixture
def driver():
    driver = JobDriver(nodes=2)
    driver.start()
    driver.fail("node1", exitcode=-9)
    driver.settle()
    return driver


def test_a_restored_state_equals_the_stored_one(driver):
    """State and tail are equal to the byte."""
    tail = [event for event in driver.events if isinstance(event.data, AlertRaised)] or driver.events[:2]
    restored = restore(seal(pack(driver.state, tail)))
    assert restored is not None
    assert to_json(restored.state) == to_json(driver.state)
    assert restored.tail == tuple(tail)


def _with_header(kept: Snapshot, **changes) -> Snapshot:
    head, _, rest = kept.body.partition(b"\n")
    return msgspec.structs.replace(
        kept, body=msgspec.json.encode({**msgspec.json.decode(head), **changes}) + b"\n" + rest
    )


def test_an_invalid_snapshot_is_not_used(driver):
    """It was truncated or changed, is of another ftcore, model or seq, or is no snapshot."""
    kept = seal(pack(driver.state))
    assert restore(kept) is not None
    for wrong in (
        {"version": "0.0.9"},
        {"version": "99.0.0"},
        {"model": "0" * 32},
        {"ftsnap": 2},
        {"digest": "0" * 32},
        {"seq": kept.seq - 1},
    ):
        assert restore(_with_header(kept, **wrong)) is None, wrong
    head, _, deflated = kept.body.partition(b"\n")
    changed = zlib.compress(zlib.decompress(deflated).replace(b'"node1"', b'"node7"'))
    for body in (b"", b"\n", head, kept.body[:-1], kept.body[:200], b"x" + kept.body, head + b"\n" + changed):
        assert restore(msgspec.structs.replace(kept, body=body)) is None
    assert restore(msgspec.structs.replace(kept, seq=Seq(kept.seq + 1))) is None


def test_the_newest_usable_snapshot_is_recalled(driver):
    """A newer unusable snapshot is skipped; without a usable one, the fold begins at the start of the log."""

    async def scenario() -> None:
        log = await MemoryStore("states recall").open(JobName("demo"), create=True)
        term = (await log.campaign(Candidate(host="h", pid=1, address="a"))).term
        assert (await recall(log)).state.seq == 0
        events = driver.events
        await log.append([attrs_term(event, term) for event in events], term=term, expected_seq=Seq(0))
        older = seal(pack(fold_log(events, until=20)))
        await log.save_snapshot(older, term=term)
        newer = _with_header(seal(pack(driver.state)), version="99.0.0")
        await log.save_snapshot(newer, term=term)
        assert (await recall(log)).state.seq == 20
        assert (await recall(log, Seq(19))).state.seq == 0

    def attrs_term(event, term):
        return msgspec.structs.replace(event, term=term)

    asyncio.run(scenario())


def test_the_model_has_a_digest():
    """Another schema of the state has another digest, which identifies snapshots of development versions."""
    assert len(snapshots.model()) == 32


def test_a_snapshot_with_integers_for_floats_is_usable(driver):
    """A snapshot with 30 for 30.0 is restored."""
    driver.fail("node1", exitcode=-9)
    assert driver.state.incident is not None
    driver.state.incident.plan_in_force().grace_s = 30
    restored = restore(seal(pack(driver.state)))
    assert restored is not None and restored.state.incident.plan_in_force().grace_s == 30.0
