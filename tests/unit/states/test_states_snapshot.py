"""Snapshots of the folded state: equal to a fold from the start, and not used where they cannot be trusted."""

import asyncio
import zlib

import attrs
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


def test_what_is_restored_is_what_was_kept(driver):
    """State and tail come back to the byte."""
    tail = [event for event in driver.events if isinstance(event.data, AlertRaised)] or driver.events[:2]
    restored = restore(seal(pack(driver.state, tail)))
    assert restored is not None
    assert to_json(restored.state) == to_json(driver.state)
    assert restored.tail == tuple(tail)


def _with_header(kept: Snapshot, **changes) -> Snapshot:
    head, _, rest = kept.body.partition(b"\n")
    return attrs.evolve(kept, body=msgspec.json.encode({**msgspec.json.decode(head), **changes}) + b"\n" + rest)


def test_what_cannot_be_trusted_is_not_used(driver):
    """One that was cut or changed, is of another ftcore, another model, another seq, or no snapshot at all."""
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
        assert restore(attrs.evolve(kept, body=body)) is None
    assert restore(attrs.evolve(kept, seq=Seq(kept.seq + 1))) is None


def test_the_newest_one_of_use_is_recalled(driver):
    """A newer snapshot that is of no use is passed over; without any of use the fold begins at the start."""

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
    """Another shape of the state has another digest: a snapshot of a development version is told apart."""
    assert len(snapshots.model()) == 32


def test_a_live_state_with_whole_numbers_is_of_use(driver):
    """Where a master put 30 for 30.0 into its state, its snapshot is restored all the same."""
    driver.fail("node1", exitcode=-9)
    assert driver.state.incident is not None
    driver.state.incident.grace_s = 30
    restored = restore(seal(pack(driver.state)))
    assert restored is not None and restored.state.incident.grace_s == 30.0
