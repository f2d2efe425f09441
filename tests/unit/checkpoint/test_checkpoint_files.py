"""Files of shards: the safetensors library and ftcore read what was staged, of every type and shape."""

import json
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from stored_checkpoints import part, shard, visible, write_checkpoint, write_shards

from ftcore.checkpoint import files
from ftcore.checkpoint.files import directory_name, parse_directory, parse_shard, read_header, shard_name, write_shard
from ftcore.checkpoint.layout import ITEM_BYTES, Piece, ShardIndex
from ftcore.checkpoint.sources import FileSource
from ftcore.checkpoint.storage import Storage
from ftcore.errors import CheckpointError

NAME = "step-000000012-r3/shard-00000-of-00001.safetensors"
SHAPES = [(), (1,), (7,), (3, 5), (2, 0, 3), (0,)]


def raw(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor's elements."""
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


def random_tensor(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of random bytes."""
    count = int(np.prod(shape)) * ITEM_BYTES[dtype]
    data = random.Random(f"{dtype}{shape}").randbytes(count)
    if dtype == "bool":
        data = bytes(byte & 1 for byte in data)
    if not data:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).reshape(shape)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """An empty storage."""
    return Storage(str(tmp_path / "checkpoints"))


def write(storage: Storage, index: ShardIndex, data: bytearray) -> Path:
    write_shard(storage, NAME, index, memoryview(data))
    return Path(storage.url) / NAME


def test_every_type_and_shape_is_read_by_safetensors_and_by_ftcore(storage: Storage) -> None:
    """Also bool, bfloat16, float8, complex, unsigned, without dimensions and without elements; in one file."""
    tensors = {f"{dtype}/{shape}": random_tensor(dtype, shape) for dtype in ITEM_BYTES for shape in SHAPES}
    parts = []
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        parts.append((Piece(name, name.partition("/")[0], shape, (0,) * len(shape), shape), raw(tensor)))
    random.Random(1).shuffle(parts)
    index, data = shard(parts)
    path = write(storage, index, data)

    found = load_file(path)
    assert set(found) == {*tensors, files.VALUES}
    for name, tensor in tensors.items():
        expected = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        assert (found[name].dtype, found[name].shape) == (expected.dtype, expected.shape)
        assert raw(found[name]) == raw(expected), name
    with FileSource(storage, NAME) as source:
        assert source.index == index
        for piece, (_, bytes_) in zip(index.pieces, parts, strict=True):
            assert bytes(source.read(piece)) == bytes_


def test_slices_have_names_of_their_own(storage: Storage) -> None:
    """A whole tensor has its own name; names never collide, not even with the names of the format."""
    matrix = np.arange(24, dtype=np.int32).reshape(4, 6)
    parts = [
        part("w", matrix[:2, 3:], size=(4, 6), offset=(0, 3)),
        part("w", matrix[2:], size=(4, 6), offset=(2, 0)),
        part("w[2:4,0:6]", np.ones(2, dtype=np.uint8)),
        part("__metadata__", np.ones(3, dtype=np.uint8)),
        part("ftcore.values", np.ones(4, dtype=np.uint8)),
        part("ä \"'\n/", np.ones(5, dtype=np.uint8)),
    ]
    index, data = shard(parts)
    found = load_file(write(storage, index, data))
    assert {name: tuple(tensor.shape) for name, tensor in found.items() if name != files.VALUES} == {
        "w[0:2,3:6]": (2, 3),
        "w[2:4,0:6]": (2, 6),
        "w[2:4,0:6]'": (2,),
        "__metadata__'": (3,),
        "ftcore.values'": (4,),
        "ä \"'\n/": (5,),
    }
    with FileSource(storage, NAME) as source:
        for piece, (_, bytes_) in zip(index.pieces, parts, strict=True):
            assert bytes(source.read(piece)) == bytes_


def test_the_file_is_aligned_and_says_whose_it_is(storage: Storage) -> None:
    """Data begins at a multiple of 64, each piece at one of its elements' size; the metadata is text."""
    parts = [part(f"t{n}", np.zeros(3, dtype=dtype)) for n, dtype in enumerate(("bool", "int64", "int16", "float32"))]
    index, data = shard(parts)
    path = write(storage, index, data)
    header = read_header(storage, NAME)
    assert [place.at % ITEM_BYTES[piece.dtype] for piece, place in zip(index.pieces, header.places, strict=True)] == [
        0
    ] * 4
    assert min(place.at for place in header.places) % 64 == 0
    with safe_open(path, "pt") as opened:
        about = opened.metadata()
    assert about["format"] == "pt"
    assert about["ftcore.shard"] == "1"
    assert json.loads(about["ftcore.index"])["step"] == 12


def test_ten_thousand_small_tensors(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are written and read with a few accesses of the storage."""
    parts = [part(f"layers.{n}.weight", np.full(n % 50, n, dtype=np.float32)) for n in range(10_000)]
    index, data = shard(parts)
    path = write(storage, index, data)
    assert len(load_file(path)) == 10_001
    reads = []
    for name in ("read", "read_into"):
        kept = getattr(Storage, name)
        monkeypatch.setattr(Storage, name, lambda *args, kept=kept: (reads.append(1), kept(*args))[1])
    with FileSource(storage, NAME) as source:
        assert all(bytes(source.read(piece)) == bytes_ for piece, (_, bytes_) in zip(index.pieces, parts, strict=True))
    assert len(reads) <= 5


def test_values_may_be_large(storage: Storage) -> None:
    """They are data, not header: the limit of safetensors headers is 100 MB."""
    index, data = shard([part("w", np.ones(1))], values=json.dumps(list(range(300_000))))
    write(storage, index, data)
    assert read_header(storage, NAME).index == index
    assert read_header(storage, NAME, values=False).index == msgspec.structs.replace(index, values="")


def test_a_header_that_safetensors_cannot_read_is_refused(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many tensors for one file; nothing is written."""
    monkeypatch.setattr(files, "HEADER_BYTES_MAX", 4000)
    index, data = shard([part(f"t{n}", np.ones(1)) for n in range(50)])
    with pytest.raises(CheckpointError, match=r"50 tensors need a header of .* the limit of safetensors is 4000"):
        write(storage, index, data)
    assert visible(Path(storage.url).parent) == set()


def test_the_data_is_never_held_twice(storage: Storage) -> None:
    """A chunk at a time goes to the storage, and none is kept: the memory can be unmapped afterwards."""
    seen = []

    class Watching(Storage):
        def write(self, name, chunks, expected=0):
            return super().write(name, self._seen(chunks), expected)

        def _seen(self, chunks):
            for chunk in chunks:
                seen.append(len(chunk))
                yield chunk

    big = np.arange(5 << 20, dtype=np.float32)
    index, data = shard([part("w", big), part("b", np.ones(3, dtype=np.uint8))])
    write_shard(Watching(storage.url), NAME, index, memoryview(data))
    assert sum(seen) == (Path(storage.url) / NAME).stat().st_size
    assert max(seen) == files.CHUNK_BYTES
    data.clear()  # BufferError if a view of it were left


def test_a_write_is_dropped_if_the_data_changed_meanwhile(storage: Storage) -> None:
    """The owner of the memory is asked after all of it was read, before the file has its name."""
    index, data = shard([part("w", np.ones(1000))])
    asked = []

    def unchanged() -> bool:
        asked.append(visible(Path(storage.url)))
        return False

    with memoryview(data) as view, pytest.raises(CheckpointError, match="a newer save overwrote its memory"):
        write_shard(storage, NAME, index, view, unchanged=unchanged)
    assert len(asked) == 1 and NAME not in asked[0]
    assert visible(Path(storage.url)) == set()
    data.clear()  # BufferError if a view of it were left


@pytest.mark.parametrize(
    "change",
    [
        {"at": 64},
        {"at": -8},
        {"dtype": "int4"},
        {"size": (2, 1)},
        {"offset": (-1,)},
        {"offset": (9,)},
        {"shape": (11,)},
    ],
    ids=str,
)
def test_an_index_that_does_not_fit_its_data_is_refused(storage: Storage, change: dict[str, object]) -> None:
    """A slot may hold anything: its index is checked before the data is accessed."""
    index, data = shard([part("w", np.ones(10))])
    wrong = msgspec.structs.replace(index.pieces[0], **change)
    with pytest.raises(CheckpointError, match="its index is wrong"):
        write(storage, msgspec.structs.replace(index, pieces=(wrong,)), data)


def test_a_shard_of_a_committed_checkpoint_is_never_replaced(storage: Storage) -> None:
    """An equal one is success, another one is refused; before the commit, it is replaced."""
    write_shards(storage)
    directory = write_checkpoint(storage)
    name = f"{directory}/{shard_name(0, 2)}"
    with FileSource(storage, name) as source:
        index = source.index
        data = bytearray(source.read(index.pieces[0])).ljust(64, b"\0") + source.read(index.pieces[1])
    before = (Path(storage.url) / name).stat()
    again = write_shard(storage, name, index, memoryview(data))
    assert (again.crc, again.bytes) == (read_header(storage, name).crc, before.st_size)
    assert (Path(storage.url) / name).stat().st_ino == before.st_ino
    with pytest.raises(
        CheckpointError, match="this checkpoint is committed, with another shard of this name"
    ) as failed:
        write_shard(storage, name, msgspec.structs.replace(index, values="[]"), memoryview(data))
    assert failed.value.kind == "foreign"


def test_names_are_read_back() -> None:
    """Of directories and shards, also large numbers; other names are none."""
    assert directory_name(12, 3) == "step-000000012-r3"
    assert parse_directory(directory_name(10**12, 345)) == (10**12, 345)
    assert parse_shard(shard_name(7, 123_456)) == (7, 123_456)
    assert [parse_directory(name) for name in ("step-12-r3", "step-000000012", "x/step-000000012-r3", "")] == [None] * 4
    assert [parse_shard(name) for name in ("../shard-00000-of-00001.safetensors", "model.safetensors")] == [None] * 2
