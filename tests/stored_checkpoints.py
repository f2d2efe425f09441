"""Makes shards and checkpoints from NumPy arrays, and the S3 server and child processes of their tests."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from ftcore.checkpoint.files import directory_name, shard_name, write_shard
from ftcore.checkpoint.layout import Piece, ShardIndex, placed
from ftcore.checkpoint.manifest import commit
from ftcore.checkpoint.storage import Storage
from ftcore.checkpoint.values import encode

Part = tuple[Piece, bytes]
"""A piece, and its data."""


def part(name: str, array: np.ndarray, *, size: Sequence[int] = (), offset: Sequence[int] = ()) -> Part:
    """A piece with the data of an array: the whole tensor, or a slice of one of this size."""
    shape = array.shape
    made = Piece(name, str(array.dtype), tuple(size) or shape, tuple(offset) or (0,) * len(shape), shape)
    return made, array.tobytes()


def shard(parts: Sequence[Part], **fields: object) -> tuple[ShardIndex, bytearray]:
    """The index and data of a shard; fields replace those of the index."""
    pieces, total = placed(piece for piece, _ in parts)
    data = bytearray(total)
    for piece, (_, raw) in zip(pieces, parts, strict=True):
        data[piece.at : piece.at + piece.bytes] = raw
    index = ShardIndex(
        job="demo",
        log="5a1e",
        round=3,
        step=12,
        rank=0,
        ranks=1,
        group=0,
        groups=1,
        pieces=pieces,
        values=encode({"lr": 0.1}, "scheduler"),
    )
    return msgspec.structs.replace(index, **fields), data


def rows(number: int, of: int, step: int) -> list[Part]:
    """Rows of a matrix that are the share of one of so many ranks, and a tensor that all of them have."""
    matrix = np.arange(of * 2 * 5, dtype=np.float32).reshape(of * 2, 5) + step
    mine = part("model/w", matrix[number * 2 : number * 2 + 2], size=matrix.shape, offset=(number * 2, 0))
    return [part("model/flag", np.array([True, False, True])), mine]


def write_shards(storage: Storage, step: int = 12, round_: int = 3, count: int = 2, **fields: object) -> list[str]:
    """Write the shards of a checkpoint; returns their names."""
    directory = directory_name(step, round_)
    names = []
    for rank in range(count):
        about = {"step": step, "round": round_, "rank": rank, "ranks": count, "group": rank, "groups": count}
        index, data = shard(rows(rank, count, step), **(about | fields))
        names.append(shard_name(rank, count))
        write_shard(storage, f"{directory}/{names[-1]}", index, memoryview(data))
    return names


def write_checkpoint(storage: Storage, step: int = 12, round_: int = 3, count: int = 2, **fields: object) -> str:
    """Write and commit a checkpoint; returns its directory."""
    names = write_shards(storage, step, round_, count, **fields)
    commit(storage, directory_name(step, round_), names)
    return directory_name(step, round_)


def visible(root: Path) -> set[str]:
    """All files below a directory, temporary ones too."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@contextmanager
def child(code: str, *argv: str) -> Iterator["subprocess.Popen[str]"]:
    """A process with this code; killed in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
