"""Sources of shards: a file, and staging memory."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from stored_checkpoints import part, shard, write_checkpoint

from ftcore.checkpoint.files import write_shard
from ftcore.checkpoint.sources import FileSource, ShardSource, SlotSource
from ftcore.checkpoint.storage import Storage
from ftcore.errors import CheckpointError
from ftcore.shm.staging import StagingSlot, create, needed

PARTS = [
    part("b", np.array([True, False])),
    part("w", np.arange(1 << 19, dtype=np.float32)),
    part("h", np.arange(5, dtype=np.int16), size=(9,), offset=(4,)),
]


def fill(slot: StagingSlot, step: int = 12) -> None:
    """Stage the parts."""
    index, data = shard(PARTS, step=step)
    with slot.begin(len(data)) as view:
        view[:] = data
    slot.seal(msgspec.json.encode(index), index.step, index.round, 5)


@pytest.fixture
def slot() -> Iterator[StagingSlot]:
    """A slot with a sealed shard."""
    index, data = shard(PARTS)
    fd = create(needed(len(msgspec.json.encode(index)), len(data)))
    made = StagingSlot(fd)
    fill(made)
    yield made
    made.close()
    os.close(fd)


@pytest.mark.parametrize("url", ["{}/files", "memory://{}"])
def test_memory_and_file_give_the_same(slot: StagingSlot, tmp_path: Path, url: str) -> None:
    """Through the same protocol, also if the piece comes from the index of another replica."""
    storage = Storage(url.format(tmp_path))
    memory = SlotSource(slot)
    with slot.data() as data:
        write_shard(storage, "a", memory.index, data)
    sources: list[ShardSource] = [memory, FileSource(storage, "a")]
    for source in sources:
        assert source.index == memory.index
        for piece, (_, expected) in zip(source.index.pieces, PARTS, strict=True):
            with source.read(msgspec.structs.replace(piece, at=999_999)) as view:
                assert view == expected
                assert (view.format, view.readonly, len(view)) == ("B", False, piece.bytes)
        with pytest.raises(KeyError):
            source.read(msgspec.structs.replace(source.index.pieces[2], offset=(3,)))
        source.close()


def test_a_slot_that_is_overwritten_while_it_is_read_is_not_used(slot: StagingSlot) -> None:
    """Reading stops; and what was read before does not count, because ``close`` says so."""
    source = SlotSource(slot, "the shard of rank 3")
    source.read(source.index.pieces[0]).release()
    slot.begin(100).release()
    with pytest.raises(CheckpointError, match="the shard of rank 3 was overwritten while it was read"):
        source.read(source.index.pieces[0])
    fill(slot, step=13)
    assert not source.unchanged
    with pytest.raises(CheckpointError, match="was overwritten while it was read"):
        source.close()
    with pytest.raises(CheckpointError, match="was overwritten"), SlotSource(slot) as other:
        slot.begin(100).release()
        assert other.index.step == 13


def test_a_slot_that_is_not_sealed_is_refused(slot: StagingSlot) -> None:
    """Its writer may have died in the middle."""
    slot.begin(100).release()
    with pytest.raises(CheckpointError, match="staged shard: not a complete shard"):
        SlotSource(slot)


def test_an_index_of_nonsense_is_refused(slot: StagingSlot) -> None:
    """Memory may hold anything."""
    slot.begin(64).release()
    slot.seal(b"{}", 1, 1, 1)
    with pytest.raises(CheckpointError, match="its index cannot be read"):
        SlotSource(slot)


def test_an_index_beyond_its_data_is_refused(slot: StagingSlot) -> None:
    """Nothing outside of the shard's data is read."""
    index, _ = shard(PARTS)
    slot.begin(64).release()
    slot.seal(msgspec.json.encode(index), 1, 1, 1)
    with pytest.raises(CheckpointError, match="its index is wrong"):
        SlotSource(slot)


def test_a_file_that_is_not_the_manifests_is_refused(tmp_path: Path) -> None:
    """By the checksum of its header."""
    storage = Storage(str(tmp_path))
    name = f"{write_checkpoint(storage)}/shard-00000-of-00002.safetensors"
    header = FileSource(storage, name).header
    FileSource(storage, name, header.crc).close()
    with pytest.raises(CheckpointError, match="is not the file that the manifest names") as failed:
        FileSource(storage, name, header.crc ^ 1)
    assert failed.value.kind == "foreign"
