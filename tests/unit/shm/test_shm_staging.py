"""Staging memory: what counts as a complete shard, for a writer that dies at any point and for readers beside it."""

import contextlib
import fcntl
import mmap
import os
from collections.abc import Iterator

import pytest

from ftcore.shm import prefault, staging
from ftcore.shm.staging import FREE, PAGE, QUEUED, READ, StagingSlot

INDEX = b'{"step": 3}'
DATA = b"d" * 10_000


@pytest.fixture
def fd() -> Iterator[int]:
    """A new slot for an index and data of these sizes."""
    made = staging.create(staging.needed(len(INDEX), len(DATA)))
    yield made
    os.close(made)


@pytest.fixture
def slot(fd: int) -> Iterator[StagingSlot]:
    """The slot as its writer has mapped it."""
    made = StagingSlot(fd)
    yield made
    made.close()


def write(slot: StagingSlot, *, step: int = 3, index: bytes = INDEX, data: bytes = DATA) -> None:
    slot.begin(len(data))[:] = data
    slot.seal(index, step, 2, 77)


def test_a_new_slot_is_empty(slot: StagingSlot) -> None:
    """Nothing was written, so nothing is read."""
    assert (slot.header().state, slot.header().sealed, slot.index(), slot.pinned) == (staging.EMPTY, False, None, FREE)


def test_a_sealed_shard_is_read_by_another_mapping(fd: int, slot: StagingSlot) -> None:
    """A reader with a read-only descriptor finds index, data, step, round and time."""
    write(slot)
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    reader = StagingSlot(own, writable=False)
    os.close(own)
    head = reader.header()
    assert reader.index() == INDEX
    assert (head.step, head.round, head.mono, head.sequence) == (3, 2, 77, 1)
    with reader.data() as data:
        assert bytes(data) == DATA
    with pytest.raises(TypeError):
        reader.view[0] = 1
    reader.close()


def test_a_write_that_was_cut_off_is_no_shard(slot: StagingSlot) -> None:
    """From its begin on, neither the new shard nor the one before counts."""
    write(slot)
    slot.begin(len(DATA))[:5] = b"torn!"
    assert slot.header().state == staging.WRITING
    assert slot.index() is None


def test_a_reader_notices_a_write_beside_it(slot: StagingSlot) -> None:
    """State and sequence change with the begin, and the sequence stays another one after the seal."""
    write(slot)
    before = slot.header()
    write(slot, step=4)
    assert slot.header().sealed and slot.header().sequence == before.sequence + 1


@pytest.mark.parametrize("at", [staging.INDEX_AT, staging.INDEX_AT + len(INDEX) - 1])
def test_a_damaged_index_is_no_index(slot: StagingSlot, at: int) -> None:
    """Its CRC-32 does not match."""
    write(slot)
    slot.view[at] ^= 1
    assert slot.index() is None


@pytest.mark.parametrize("word", [5, 7, 8])
@pytest.mark.parametrize("value", [-1, 0, 1 << 40, (1 << 63) - 1, -(1 << 63)])
def test_places_outside_of_the_slot_are_no_shard(slot: StagingSlot, word: int, value: int) -> None:
    """Length of the index, place and length of the data: a stray write into the header is never followed."""
    write(slot)
    slot.view[:PAGE].cast("q")[word] = value
    index = slot.index()
    if index is not None:  # no data is a valid length of data
        assert (word, value) == (8, 0)


def test_other_memory_is_refused() -> None:
    """Too short, of an odd length, or with another first word."""
    for size in (0, 100, PAGE, 2 * PAGE + 1, 2 * PAGE):
        fd = os.memfd_create("other")
        os.ftruncate(fd, size)
        with pytest.raises(ValueError, match="not a staging slot"):
            StagingSlot(fd)
        os.close(fd)


def test_its_size_never_changes(fd: int) -> None:
    """A process that holds the descriptor cannot take pages from another one that reads them."""
    size = os.fstat(fd).st_size
    for other in (0, size - PAGE, size + PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, other)
    seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    assert seals & fcntl.F_SEAL_SEAL


def test_an_index_may_grow_by_an_eighth(slot: StagingSlot) -> None:
    """So a later save with longer Python values fits; a much longer one is refused, and the slot stays torn."""
    write(slot, index=b"i" * (len(INDEX) + PAGE))
    assert slot.index() is not None
    assert not slot.fits(3 * PAGE, len(DATA))
    slot.begin(len(DATA))
    with pytest.raises(ValueError, match="does not fit"):
        slot.seal(b"i" * 3 * PAGE, 4, 2, 78)
    assert slot.index() is None


@pytest.mark.parametrize("count", [-1, 1 << 30])
def test_data_that_does_not_fit_changes_nothing(slot: StagingSlot, count: int) -> None:
    """The shard of the slot is still there."""
    write(slot)
    with pytest.raises(ValueError, match="do not fit"):
        slot.begin(count)
    assert slot.index() == INDEX and slot.header().step == 3


def test_an_empty_index_is_refused(slot: StagingSlot) -> None:
    """A shard without an index says nothing about its data."""
    slot.begin(0)
    with pytest.raises(ValueError, match="does not fit"):
        slot.seal(b"", 1, 1, 1)


@pytest.mark.parametrize("count", [0, 1, PAGE - 1, PAGE, PAGE + 1, 100_000])
@pytest.mark.parametrize("index", [1, PAGE - 1, PAGE, 50_000])
def test_what_needed_returns_is_enough(index: int, count: int) -> None:
    """For every alignment of index and data."""
    fd = staging.create(staging.needed(index, count))
    slot = StagingSlot(fd)
    os.close(fd)
    assert slot.fits(index, count)
    write(slot, index=b"i" * index, data=b"d" * count)
    assert slot.index() == b"i" * index
    with slot.data() as data:
        assert bytes(data) == b"d" * count
    slot.close()


def test_pins_are_seen_by_the_writer(fd: int, slot: StagingSlot) -> None:
    """The keeper's mapping sets them, the worker's reads them."""
    keeper = StagingSlot(fd)
    for pin in (QUEUED, READ, FREE):
        keeper.pin(pin)
        assert slot.pinned == pin
    keeper.close()


def test_a_view_in_use_keeps_the_memory_mapped(fd: int) -> None:
    """A copy that still runs when the slot is closed does not crash the process."""
    slot = StagingSlot(fd)
    view = slot.begin(len(DATA))
    slot.close()
    view[:] = DATA
    assert bytes(view) == DATA
    view.release()


def test_populated_memory_is_taken_and_unchanged(fd: int, slot: StagingSlot) -> None:
    """Population works beside a writer: it writes nothing."""
    write(slot)
    if not prefault.populate(slot):
        pytest.skip("the kernel has no MADV_POPULATE_WRITE (Linux 5.14)")
    assert 512 * os.fstat(fd).st_blocks == slot.size
    assert slot.index() == INDEX
    with slot.data() as data:
        assert bytes(data) == DATA
    slot.close()
    with contextlib.suppress(ValueError), mmap.mmap(fd, PAGE) as view:  # it can be mapped again
        assert view[:8] == staging.MAGIC.to_bytes(8, "little")
