"""The manifest: the file that makes a directory of shards a checkpoint.

It names every shard with size and checksum, and every tensor with its global shape, type and slices: file, place and
checksum of each. A reader of any world size plans from it without opening other files.

It is written last, when all shards are durable, from their headers alone: so the same shards give the same bytes, and a
repeated commit changes nothing. Like a shard, it begins with its own checksum.

House rules: a committed checkpoint never changes. A slice that several groups hold is named once, in the file of the
first one.
"""

import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Final, TypeVar

import msgspec

from ftcore.checkpoint.backend import StoredEntry
from ftcore.checkpoint.files import ShardHeader, parse_directory, parse_shard, read_header
from ftcore.checkpoint.layout import Piece, Shape
from ftcore.checkpoint.problems import CheckpointProblem, ProblemKind
from ftcore.checkpoint.storage import MANIFEST, Storage
from ftcore.errors import CheckpointError

VERSION: Final = 1
"""Version of the manifest."""

_PREFIX: Final = b'{"crc32":"'
_DIGITS: Final = 8
_READERS: Final = 16
"""Headers read at once: an object store takes 50 ms for each."""


class ManifestFile(msgspec.Struct, frozen=True):
    """A shard of a checkpoint.

    Args:
        name: its file, in the directory of the checkpoint.
        rank: the rank that staged it.
        group: its replica group.
        bytes: its size.
        crc: CRC-32 of its header.
    """

    name: str
    rank: int
    group: int
    bytes: int
    crc: int


class TensorSlice(msgspec.Struct, frozen=True, array_like=True):
    """A slice of a tensor.

    Args:
        file: number of its file in ``CheckpointManifest.files``.
        offset: where it begins in the tensor, by dimension.
        shape: its shape.
        at: where its data begins in the file, in bytes.
        crc: CRC-32 of its data.
    """

    file: int
    offset: Shape
    shape: Shape
    at: int
    crc: int


class StoredTensor(msgspec.Struct, frozen=True):
    """A tensor of a checkpoint.

    Args:
        dtype: a key of ``layout.ITEM_BYTES``.
        shape: its global shape.
        slices: together they are the tensor, and no two have an element in common.
    """

    dtype: str
    shape: Shape
    slices: tuple[TensorSlice, ...]


class ManifestSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest without its tensors.

    Args:
        version: version of the manifest.
        job: the job's name.
        log: the identity of the job's log.
        round: the round in which it was staged.
        step: the number of the last completed step.
        ranks: the number of ranks of that round.
        groups: the number of replica groups.
        files: one shard of each replica group, by group.
    """

    version: int
    job: str
    log: str
    round: int
    step: int
    ranks: int
    groups: int
    files: tuple[ManifestFile, ...]

    @property
    def bytes(self) -> int:
        """Size of all shards."""
        return sum(file.bytes for file in self.files)


class CheckpointManifest(ManifestSummary, frozen=True, kw_only=True):
    """A manifest: ``ManifestSummary``, and the tensors.

    Args:
        tensors: by name.
    """

    tensors: dict[str, StoredTensor]

    def pieces(self) -> Iterable[tuple[Piece, TensorSlice]]:
        """Each slice as a piece, and where it is."""
        for name, tensor in self.tensors.items():
            for each in tensor.slices:
                yield Piece(name, tensor.dtype, tensor.shape, each.offset, each.shape), each


_Summary = TypeVar("_Summary", bound=ManifestSummary)


class _Version(msgspec.Struct):
    version: int


def read(storage: Storage, directory: str) -> CheckpointManifest:
    """Read the manifest of a checkpoint.

    Args:
        storage: where.
        directory: the directory of the checkpoint.

    Raises:
        CheckpointError: there is none (kind ``unfinished``), it is damaged or of a newer version, or it is that of
            another checkpoint (kind ``foreign``).
    """
    return _read(storage, directory, CheckpointManifest)


def read_summary(storage: Storage, directory: str) -> ManifestSummary:
    """Read the manifest of a checkpoint without its tensors; see ``read``."""
    return _read(storage, directory, ManifestSummary)


def _read(storage: Storage, directory: str, kind: type[_Summary]) -> _Summary:
    name = f"{directory}/{MANIFEST}"
    path = storage.where(name)
    try:
        raw = storage.read(name)
    except CheckpointError as error:
        if error.kind != ProblemKind.MISSING:
            raise
        raise CheckpointError(f"{storage.where(directory)} has no {MANIFEST}", ProblemKind.UNFINISHED) from error
    begin = len(_PREFIX)
    crc = zlib.crc32(raw[begin + _DIGITS :])
    if raw[:begin] != _PREFIX or raw[begin : begin + _DIGITS] != f"{crc:08x}".encode():
        raise CheckpointError(f"{path} is damaged: it does not have its checksum", ProblemKind.DAMAGED)
    try:
        version = msgspec.json.decode(raw, type=_Version).version
        if version > VERSION:
            why = f"version {version} is newer than this ftcore, which reads up to {VERSION}; update ftcore"
            raise CheckpointError(f"{path}: {why}", ProblemKind.NEWER)
        found = msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{path} is not a manifest of ftcore: {error}", ProblemKind.DAMAGED) from error
    if parse_directory(directory) != (found.step, found.round):
        why = f"it is the manifest of step {found.step}, round {found.round}"
        raise CheckpointError(f"{path}: {why}: the directory was renamed, or the file copied", ProblemKind.FOREIGN)
    if wrong := [file.name for file in found.files if parse_shard(file.name) is None]:
        raise CheckpointError(f"{path}: {wrong[0]!r} is not the name of a shard", ProblemKind.DAMAGED)
    return found


def absent(
    storage: Storage, directory: str, manifest: ManifestSummary, entries: Iterable[StoredEntry]
) -> list[CheckpointProblem]:
    """Shards of a manifest that do not exist, or have another size.

    Args:
        storage: where.
        directory: the directory of the checkpoint.
        manifest: its manifest.
        entries: the entries of the directory.
    """
    sizes = {entry.name: entry.bytes for entry in entries}
    found = []
    for file in manifest.files:
        name = f"{directory}/{file.name}"
        path = storage.where(name)
        size = sizes.get(file.name)
        if size is None:
            why = f"{path} is missing: the shard of rank {file.rank}, replica group {file.group}"
            found.append(CheckpointProblem(ProblemKind.MISSING, name, why))
        elif size != file.bytes:
            how = "is truncated" if size < file.bytes else "is too long"
            why = f"{path} {how}: {size} bytes, expected {file.bytes}"
            found.append(CheckpointProblem(ProblemKind.TRUNCATED, name, why))
    return found


def commit(storage: Storage, directory: str, names: Iterable[str], *, log: str = "") -> CheckpointManifest:
    """Make a directory of shards a checkpoint.

    If it is one of this log already, nothing changes, whichever shards of its replica groups it has.

    Args:
        storage: where.
        directory: the directory, as ``files.directory_name``.
        names: the files of the shards in it: at least one of each replica group. Of several, the one of the lowest
            rank is used.
        log: the identity of the log that the shards must have; empty: the same one, whichever it is.

    Returns:
        The manifest of the checkpoint.

    Raises:
        StorageFull: no space is left.
        CheckpointError: a shard is missing, damaged or of another job, log, round or step; or a part of a tensor is
            in no shard; or the manifest cannot be written.
    """
    chosen = sorted(set(names))
    if not chosen:
        raise CheckpointError(f"{storage.where(directory)}: no shard to commit", ProblemKind.MISSING)
    with ThreadPoolExecutor(min(_READERS, len(chosen)), "ftcore-headers") as pool:
        headers = pool.map(lambda name: read_header(storage, f"{directory}/{name}", values=False), chosen)
        found = dict(zip(chosen, headers, strict=True))
    made = _gathered(storage, directory, found, log)
    if (there := _committed(storage, directory, made)) is not None:
        return there
    text = msgspec.json.encode(made)
    rest = b'",' + text.removeprefix(b"{")
    storage.write(f"{directory}/{MANIFEST}", [_PREFIX + f"{zlib.crc32(rest):08x}".encode() + rest])
    return made


def _committed(storage: Storage, directory: str, made: CheckpointManifest) -> CheckpointManifest | None:
    """The manifest that makes the directory a checkpoint already; None: there is none, or it is of no use."""
    try:
        there = read(storage, directory)
    except CheckpointError as error:
        if error.kind in (ProblemKind.UNFINISHED, ProblemKind.DAMAGED, ProblemKind.FOREIGN):
            return None
        raise
    if there == made:
        return there
    if there.log != made.log:
        raise CheckpointError(
            f"{storage.where(directory)} is a checkpoint of another log, of job {there.job}; use another checkpoint "
            "path, or remove the directory if its job is of no use",
            ProblemKind.FOREIGN,
        )
    return None if absent(storage, directory, there, storage.list(directory)) else there


def _gathered(storage: Storage, directory: str, headers: dict[str, ShardHeader], log: str) -> CheckpointManifest:
    """The manifest of these shards; see ``commit``."""
    where = storage.where(directory)
    first_name, first = next(iter(headers.items()))
    about = first.index
    if log and about.log != log:
        why = f"it is of another log, of job {about.job}"
        raise CheckpointError(f"{where}/{first_name}: {why}", ProblemKind.FOREIGN)
    if parse_directory(directory) != (about.step, about.round):
        why = f"it is of step {about.step}, round {about.round}"
        raise CheckpointError(f"{where}/{first_name}: {why}", ProblemKind.FOREIGN)
    for name, header in headers.items():
        for field in ("job", "log", "round", "step", "ranks", "groups"):
            its, expected = getattr(header.index, field), getattr(about, field)
            if its != expected:
                why = f"{field} is {its}, that of {first_name} is {expected}"
                raise CheckpointError(f"{where}/{name}: {why}", ProblemKind.FOREIGN)
    by_group: dict[int, tuple[str, ShardHeader]] = {}
    for name, header in sorted(headers.items(), key=lambda each: (each[1].index.group, each[1].index.rank)):
        by_group.setdefault(header.index.group, (name, header))
    if gone := sorted(set(range(about.groups)) - set(by_group)):
        several = f"{len(gone)} replica groups, the first is" if len(gone) > 1 else "replica group"
        raise CheckpointError(f"{where}: no shard of {several} {gone[0]} of {about.groups}", ProblemKind.MISSING)
    files = [
        ManifestFile(name, header.index.rank, group, header.bytes, header.crc)
        for group, (name, header) in by_group.items()
    ]
    return CheckpointManifest(
        version=VERSION,
        job=about.job,
        log=about.log,
        round=about.round,
        step=about.step,
        ranks=about.ranks,
        groups=about.groups,
        files=tuple(files),
        tensors=_tensors(where, [header for _, header in by_group.values()]),
    )


def _tensors(where: str, headers: Sequence[ShardHeader]) -> dict[str, StoredTensor]:
    """The tensors of these shards, by name; ``CheckpointError`` if a part of one is missing or ambiguous."""
    abouts: dict[str, Piece] = {}
    slices: dict[str, dict[tuple[Shape, Shape], TensorSlice]] = {}
    for number, header in enumerate(headers):
        for piece, place in zip(header.index.pieces, header.places, strict=True):
            about = abouts.setdefault(piece.name, piece)
            if (about.dtype, about.size) != (piece.dtype, piece.size):
                raise CheckpointError(
                    f"{where}: {piece.name} is {about.dtype} of shape {list(about.size)} in one shard, "
                    f"{piece.dtype} of shape {list(piece.size)} in another",
                    ProblemKind.FOREIGN,
                )
            boxes = slices.setdefault(piece.name, {})
            if prod(piece.shape) or not prod(piece.size):
                found = TensorSlice(number, piece.offset, piece.shape, place.at, place.crc)
                boxes.setdefault((piece.offset, piece.shape), found)
    return {name: _tensor(where, about, slices[name].values()) for name, about in sorted(abouts.items())}


def _tensor(where: str, about: Piece, slices: Iterable[TensorSlice]) -> StoredTensor:
    """A tensor of these slices; ``CheckpointError`` if they are not exactly the whole tensor."""
    ordered = tuple(sorted(slices, key=lambda each: (each.offset, each.shape)))
    if overlapping(ordered):
        raise CheckpointError(f"{where}: slices of {about.name} overlap partly", ProblemKind.FOREIGN)
    wanted, covered = prod(about.size), sum(prod(each.shape) for each in ordered)
    if covered != wanted:
        why = f"{wanted - covered} of {wanted} elements of {about.name} are in no shard"
        raise CheckpointError(f"{where}: {why}", ProblemKind.MISSING)
    return StoredTensor(about.dtype, about.size, ordered)


def overlapping(slices: Sequence[TensorSlice]) -> bool:
    """Whether two slices of one tensor have an element in common.

    A sweep along the dimension that is split the most, so that a slice is compared with few others.
    """
    if len(slices) < 2:
        return False
    dims = range(len(slices[0].shape))
    along = max(dims, key=lambda dim: len({each.offset[dim] for each in slices}), default=None)
    if along is None:
        return True  # two slices of a tensor with one element
    active: list[TensorSlice] = []
    for each in sorted(slices, key=lambda one: one.offset[along]):
        begin = each.offset[along]
        active = [one for one in active if one.offset[along] + one.shape[along] > begin]
        if any(_meet(one, each) for one in active):
            return True
        active.append(each)
    return False


def _meet(one: TensorSlice, other: TensorSlice) -> bool:
    return all(
        max(a, b) < min(a + m, b + n)
        for a, m, b, n in zip(one.offset, one.shape, other.offset, other.shape, strict=True)
    )
