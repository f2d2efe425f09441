"""The file of a shard: a safetensors file that describes and protects itself.

| bytes | content |
|---|---|
| 8 | length of the header |
| header | JSON, padded with spaces: ``__metadata__``, then an entry for each tensor, as the safetensors format has it |
| data | the pieces, without gaps, those with the largest elements first, so each is aligned; then the Python values |

``__metadata__`` begins with ``crc32``, the CRC-32 of length and header while its own digits are zeros. Then follow the
version of this format, the ``ShardIndex``, the size of the data, and the places: offset in the data and CRC-32 of each
piece. So a changed bit is found wherever it is.

A complex tensor is a real one with a last dimension of 2; the index has its logical type. A piece that is a whole
tensor has the tensor's name; a slice is ``NAME[0:4,8:16]``. Python values are a tensor of bytes, as a header of over
100 MB is not valid.

House rules: a writer never holds a second copy of the data. Bytes that were not checked are never returned. A newer
format keeps the place of ``crc32`` and ``ftcore.shard``, so that it is refused by name.
"""

import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from ftcore.checkpoint.backend import Chunk
from ftcore.checkpoint.layout import ITEM_BYTES, Piece, ShardIndex, aligned
from ftcore.checkpoint.problems import ProblemKind
from ftcore.checkpoint.storage import MANIFEST, Storage
from ftcore.errors import CheckpointError

FORMAT: Final = 1
"""Version of the format of shards."""

HEADER_BYTES_MAX: Final = 100_000_000
"""Limit of the safetensors format."""

CHUNK_BYTES: Final = 8 << 20
"""Bytes that are read or written at once."""

VALUES: Final = "ftcore.values"
"""Name of the tensor with the Python values."""

_FIRST_READ: Final = 256 << 10
_LENGTH_BYTES: Final = 8
_PREFIX: Final = b'{"__metadata__":{"crc32":"'
_DIGITS: Final = 8
_DIRECTORY: Final = re.compile(r"step-(\d{9,})-r(\d+)")
_SHARD: Final = re.compile(r"shard-(\d{5,})-of-(\d{5,})\.safetensors")

SAFETENSORS_TYPES: Final = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
}
"""Types of the safetensors format, by type of ``layout.ITEM_BYTES``."""

_STORED: Final = {**SAFETENSORS_TYPES, "complex64": "F32", "complex128": "F64"}
"""Type in a shard. Complex numbers are pairs: the format has no type for complex128."""


class ShardFile(msgspec.Struct, frozen=True):
    """A shard that was written.

    Args:
        name: its path in the storage.
        bytes: its size.
        rank: the rank that staged it.
        group: its replica group.
        crc: CRC-32 of its header, which has the checksums of the data: equal ones mean equal files.
    """

    name: str
    bytes: int
    rank: int
    group: int
    crc: int


class PiecePlace(msgspec.Struct, frozen=True, array_like=True):
    """Where the data of a piece is.

    Args:
        at: offset in the file, in bytes.
        crc: CRC-32 of the data.
    """

    at: int
    crc: int


class ShardHeader(msgspec.Struct, frozen=True):
    """The header of a shard's file.

    Args:
        index: what the shard holds.
        places: of each piece of the index.
        bytes: size of the file.
        crc: CRC-32 of the header.
    """

    index: ShardIndex
    places: tuple[PiecePlace, ...]
    bytes: int
    crc: int


def directory_name(step: int, round_: int) -> str:
    """The directory of a checkpoint, for example ``step-000000012-r3``."""
    return f"step-{step:09d}-r{round_}"


def parse_directory(name: str) -> tuple[int, int] | None:
    """Step and round of a checkpoint's directory; None: it is no such name."""
    found = _DIRECTORY.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def shard_name(number: int, of: int) -> str:
    """The file of a shard, for example ``shard-00000-of-00004.safetensors``."""
    return f"shard-{number:05d}-of-{of:05d}.safetensors"


def parse_shard(name: str) -> tuple[int, int] | None:
    """Number and count of a shard's file; None: it is no such name."""
    found = _SHARD.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def tensor_names(pieces: Sequence[Piece]) -> list[str]:
    """Names of the pieces in a safetensors file: distinct, the tensor's own for a whole tensor."""
    taken = {"__metadata__", VALUES}
    names = []
    for piece in pieces:
        name = piece.name if piece.whole else f"{piece.name}[{_slices(piece)}]"
        while name in taken:
            name += "'"
        taken.add(name)
        names.append(name)
    return names


def _slices(piece: Piece) -> str:
    return ",".join(f"{begin}:{begin + size}" for begin, size in zip(piece.offset, piece.shape, strict=True))


def write_shard(
    storage: Storage,
    name: str,
    index: ShardIndex,
    data: memoryview,
    *,
    unchanged: Callable[[], bool] = lambda: True,
) -> ShardFile:
    """Write a shard, atomically and durably. A shard of a committed checkpoint is never replaced.

    Args:
        storage: where.
        name: its path in the storage: ``directory_name`` and ``shard_name``.
        index: what the shard holds.
        data: its data: contiguous bytes.
        unchanged: called when all data was read, before the file gets its name; False: the data was overwritten
            meanwhile, and the file is dropped.

    Returns:
        What was written; equal to what an earlier call with the same arguments returned.

    Raises:
        StorageFull: no space is left.
        CheckpointError: it cannot be written; or the checkpoint is committed already, with another shard of this name.
    """
    check_index(index, len(data), storage.where(name))
    values = index.values.encode()
    with data.cast("B") as flat:
        crcs = [_crc_of(flat, piece) for piece in index.pieces]
        header, crc = _encoded(index, crcs, values, storage.where(name))
        size = len(header) + sum(piece.bytes for piece in index.pieces) + len(values)
        made = ShardFile(name, size, index.rank, index.group, crc)
        if _committed(storage, made):
            return made
        chunks = _chunks(flat, index, header, values)
        storage.write(name, _confirmed(chunks, unchanged, storage.where(name)), size)
    return made


def _confirmed(chunks: Iterator[Chunk], unchanged: Callable[[], bool], path: str) -> Iterator[Chunk]:
    yield from chunks
    if not unchanged():
        raise CheckpointError(f"{path} was not written: a newer save overwrote its memory meanwhile")


def _committed(storage: Storage, made: ShardFile) -> bool:
    """Whether an equal file is part of a committed checkpoint.

    The manifest is looked for only if the file exists: NFS remembers for a minute that a file did not exist.
    """
    if not storage.exists(made.name) or not storage.exists(f"{made.name.rpartition('/')[0]}/{MANIFEST}"):
        return False
    if read_header(storage, made.name, values=False).crc == made.crc:
        return True
    raise CheckpointError(
        f"{storage.where(made.name)} was not written: this checkpoint is committed, with another shard of this name; "
        "use another checkpoint path, or remove the directory if its job is of no use",
        ProblemKind.FOREIGN,
    )


def _chunks(flat: memoryview, index: ShardIndex, header: bytes, values: bytes) -> Iterator[Chunk]:
    yield header
    for number in _file_order(index.pieces):
        piece = index.pieces[number]
        for at in range(piece.at, piece.at + piece.bytes, CHUNK_BYTES):
            with flat[at : min(at + CHUNK_BYTES, piece.at + piece.bytes)] as chunk:
                yield chunk
    if values:
        yield values


def _crc_of(flat: memoryview, piece: Piece) -> int:
    with flat[piece.at : piece.at + piece.bytes] as data:
        return zlib.crc32(data)


def _file_order(pieces: Sequence[Piece]) -> list[int]:
    """Numbers of the pieces as their data follows in the file."""
    return sorted(range(len(pieces)), key=lambda number: (-ITEM_BYTES[pieces[number].dtype], number))


def _encoded(index: ShardIndex, crcs: Sequence[int], values: bytes, path: str) -> tuple[bytes, int]:
    """The length and header of a file, and their CRC-32."""
    names = tensor_names(index.pieces)
    places: list[Any] = [None] * len(names)
    entries: dict[str, Any] = {}
    at = 0
    for number in _file_order(index.pieces):
        piece = index.pieces[number]
        shape = [*piece.shape, 2] if piece.dtype.startswith("complex") else piece.shape
        ends = at + piece.bytes
        entries[names[number]] = {"dtype": _STORED[piece.dtype], "shape": shape, "data_offsets": [at, ends]}
        places[number] = PiecePlace(at, crcs[number])
        at = ends
    entries[VALUES] = {"dtype": "U8", "shape": [len(values)], "data_offsets": [at, at + len(values)]}
    about = {
        "crc32": "0" * _DIGITS,
        "ftcore.shard": str(FORMAT),
        "format": "pt",
        "ftcore.index": msgspec.json.encode(msgspec.structs.replace(index, values="")).decode(),
        "ftcore.bytes": str(at + len(values)),
        "ftcore.places": msgspec.json.encode([*places, PiecePlace(at, zlib.crc32(values))]).decode(),
    }
    text = msgspec.json.encode({"__metadata__": about, **entries})
    text = text.ljust(aligned(_LENGTH_BYTES + len(text)) - _LENGTH_BYTES)
    if len(text) > HEADER_BYTES_MAX:
        raise CheckpointError(
            f"{path} was not written: {len(names)} tensors need a header of {len(text)} bytes, the limit of "
            f"safetensors is {HEADER_BYTES_MAX}; stack small tensors"
        )
    header = bytearray(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
    crc = zlib.crc32(header)
    begin = _LENGTH_BYTES + len(_PREFIX)
    header[begin : begin + _DIGITS] = f"{crc:08x}".encode()
    return bytes(header), crc


def check_index(index: ShardIndex, data_bytes: int, path: str) -> None:
    """Check that an index describes data of this size.

    Args:
        index: the index.
        data_bytes: size of the shard's data in memory.
        path: of the shard, for errors.

    Raises:
        CheckpointError: it does not (kind ``damaged``).
    """
    for piece in index.pieces:
        same_rank = len(piece.size) == len(piece.offset) == len(piece.shape)
        if (
            piece.dtype not in ITEM_BYTES
            or not same_rank
            or any(
                begin < 0 or count < 0 or begin + count > size
                for size, begin, count in zip(piece.size, piece.offset, piece.shape, strict=True)
            )
            or not 0 <= piece.at <= data_bytes - piece.bytes
        ):
            raise CheckpointError(
                f"{path}: its index is wrong: {piece} with {data_bytes} bytes of data", ProblemKind.DAMAGED
            )


def read_header(storage: Storage, name: str, *, values: bool = True) -> ShardHeader:
    """Read and check the header of a shard.

    Args:
        storage: where.
        name: its path in the storage.
        values: whether to read the Python values too; otherwise those of the index are empty.

    Raises:
        CheckpointError: the file is missing, truncated, damaged, or of a newer format.
    """
    path = storage.where(name)
    size = storage.size(name)
    raw = storage.read(name, 0, _FIRST_READ)
    ends = _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES], "little")
    if len(raw) < _LENGTH_BYTES:
        raise CheckpointError(f"{path} is truncated: {size} bytes", ProblemKind.TRUNCATED)
    if ends > HEADER_BYTES_MAX + _LENGTH_BYTES:
        raise CheckpointError(f"{path} is damaged: the length of its header is {ends}", ProblemKind.DAMAGED)
    if ends > size:
        why = f"{size} bytes, expected a header of {ends}; or it is not a shard of ftcore"
        raise CheckpointError(f"{path} is truncated: {why}", ProblemKind.TRUNCATED)
    if len(raw) < ends:
        raw += storage.read(name, len(raw), ends - len(raw))
    about, crc = _metadata(raw[:ends], path)
    index, places = _decoded(about, ends, size, path)
    if values:
        index = msgspec.structs.replace(index, values=_values(storage, name, places[-1], size))
    return ShardHeader(index, places[:-1], size, crc)


def _metadata(raw: bytes, path: str) -> tuple[dict[str, str], int]:
    """``__metadata__`` of a header, checked, and the header's CRC-32."""
    begin = _LENGTH_BYTES + len(_PREFIX)
    digits = raw[begin : begin + _DIGITS]
    crc = zlib.crc32(raw[:begin] + b"0" * _DIGITS + raw[begin + _DIGITS :])
    if raw[_LENGTH_BYTES:begin] != _PREFIX or digits != f"{crc:08x}".encode():
        why = "its header does not have its checksum; it is damaged, or not a shard of ftcore"
        raise CheckpointError(f"{path}: {why}", ProblemKind.DAMAGED)
    try:
        about = msgspec.json.decode(raw[_LENGTH_BYTES:], type=dict[str, Any])["__metadata__"]
        version = int(about["ftcore.shard"])
    except (msgspec.DecodeError, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: not a shard of ftcore: {error}", ProblemKind.DAMAGED) from error
    if version > FORMAT:
        raise CheckpointError(
            f"{path}: format {version} of shards is newer than this ftcore, which reads up to {FORMAT}; update ftcore",
            ProblemKind.NEWER,
        )
    return about, crc


def _decoded(about: dict[str, str], data_at: int, size: int, path: str) -> tuple[ShardIndex, tuple[PiecePlace, ...]]:
    """The index, and the places of its pieces and, at the end, of its values."""
    try:
        index = msgspec.json.decode(about["ftcore.index"], type=ShardIndex)
        found = msgspec.json.decode(about["ftcore.places"], type=tuple[PiecePlace, ...])
        ends = data_at + int(about["ftcore.bytes"])
    except (msgspec.DecodeError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: its index cannot be read: {error}", ProblemKind.DAMAGED) from error
    if size != ends:
        raise CheckpointError(
            f"{path} {'is truncated' if size < ends else 'is too long'}: {size} bytes, expected {ends}",
            ProblemKind.TRUNCATED,
        )
    places = tuple(PiecePlace(data_at + place.at, place.crc) for place in found)
    check_index(index, sys.maxsize, path)
    in_file = zip(index.pieces, places, strict=False)
    if len(places) != len(index.pieces) + 1 or any(place.at + piece.bytes > ends for piece, place in in_file):
        raise CheckpointError(f"{path}: its places do not match its index", ProblemKind.DAMAGED)
    return index, places


def _values(storage: Storage, name: str, place: PiecePlace, size: int) -> str:
    """The Python values: from their place to the end of the file."""
    found = storage.read(name, place.at, size - place.at)
    if zlib.crc32(found) != place.crc:
        path = storage.where(name)
        raise CheckpointError(f"{path}: its Python values are damaged", ProblemKind.DAMAGED)
    return found.decode()
