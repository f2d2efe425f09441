"""Verification of a stored checkpoint: every byte of it is read and compared with its checksum."""

from ftcore.checkpoint.files import ShardHeader, parse_directory, read_header
from ftcore.checkpoint.manifest import ManifestFile, ManifestSummary, absent, read
from ftcore.checkpoint.problems import CheckpointProblem, ProblemKind, problem_of
from ftcore.checkpoint.sources import damaged_pieces
from ftcore.checkpoint.storage import MANIFEST, Storage
from ftcore.errors import CheckpointError


def verify(storage: Storage, directory: str, *, data: bool = True) -> list[CheckpointProblem]:
    """Return the problems of a checkpoint; none: it can be loaded.

    Args:
        storage: where.
        directory: the directory of the checkpoint.
        data: whether to read all data; otherwise manifest, sizes and headers are checked.

    Raises:
        CheckpointError: the storage cannot be read.
    """
    if parse_directory(directory) is None:
        why = f"{storage.where(directory)} is not a checkpoint: expected a name such as step-000000012-r3"
        return [CheckpointProblem(ProblemKind.MISSING, directory, why)]
    entries = storage.list(directory)
    if not entries and not storage.exists(directory):
        why = f"{storage.where(directory)} does not exist"
        return [CheckpointProblem(ProblemKind.MISSING, directory, why)]
    try:
        manifest = read(storage, directory)
    except CheckpointError as error:
        if not error.kind:
            raise
        return [problem_of(error, f"{directory}/{MANIFEST}")]
    found = absent(storage, directory, manifest, entries)
    unusable = {problem.file for problem in found}
    for file in manifest.files:
        if f"{directory}/{file.name}" not in unusable:
            found += _of_file(storage, directory, manifest, file, data)
    return found


def _of_file(
    storage: Storage, directory: str, manifest: ManifestSummary, file: ManifestFile, data: bool
) -> list[CheckpointProblem]:
    """Problems of a shard that has the size of the manifest."""
    name = f"{directory}/{file.name}"
    path = storage.where(name)
    try:
        header = read_header(storage, name)
        if why := _not_of(header, manifest, file):
            return [CheckpointProblem(ProblemKind.FOREIGN, name, f"{path}: {why}")]
        damaged = list(damaged_pieces(storage, name, header)) if data else []
    except CheckpointError as error:
        problem = problem_of(error, name)
        # The size is right, so what looks cut off is a wrong length in the header.
        kind = ProblemKind.DAMAGED if problem.kind == ProblemKind.TRUNCATED else problem.kind
        return [CheckpointProblem(kind, name, problem.message)]
    return [
        CheckpointProblem(ProblemKind.DAMAGED, name, f"{path}: the data of {piece.name} is damaged")
        for piece in damaged
    ]


def _not_of(header: ShardHeader, manifest: ManifestSummary, file: ManifestFile) -> str:
    """Why a file is not the one that the manifest names; empty: it is."""
    index = header.index
    for field in ("job", "log", "round", "step"):
        its, expected = getattr(index, field), getattr(manifest, field)
        if its != expected:
            return f"it is a shard of {field} {its}, the checkpoint is of {field} {expected}"
    if (index.rank, index.group) != (file.rank, file.group):
        return f"it is the shard of rank {index.rank}, expected that of rank {file.rank}"
    return "" if header.crc == file.crc else "it was replaced after the checkpoint was committed"
