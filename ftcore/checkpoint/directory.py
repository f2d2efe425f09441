"""The checkpoints in a storage, and which of them is the newest one.

Of one log, the newest checkpoint is that of the latest round, and in it of the highest step: after a rollback, the
checkpoints of earlier rounds with higher steps are of no use. Logs are compared by the time of their newest manifest.
"""

import time

import msgspec

from ftcore.checkpoint.backend import StoredEntry
from ftcore.checkpoint.files import parse_directory, parse_shard, read_header
from ftcore.checkpoint.manifest import ManifestSummary, absent, read_summary
from ftcore.checkpoint.problems import ProblemKind
from ftcore.checkpoint.storage import MANIFEST, Storage
from ftcore.errors import CheckpointError
from ftcore.ids import JobName


class FoundShard(msgspec.Struct, frozen=True):
    """A shard of a checkpoint in the storage.

    Args:
        name: its file, in the directory of the checkpoint.
        bytes: its size; 0 if it is missing.
        rank: the rank that staged it; None: unknown, because the checkpoint has no manifest.
        group: its replica group; None: unknown.
    """

    name: str
    bytes: int
    rank: int | None = None
    group: int | None = None


class FoundCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A directory of a checkpoint in the storage.

    Args:
        directory: its name.
        step: the number of the last completed step.
        round: the round in which it was staged.
        job: the job's name; empty: unknown.
        log: the identity of the job's log; empty: unknown.
        bytes: size of its files.
        modified: when it was changed last, in seconds since the epoch; 0: unknown.
        age_s: seconds since then; None: unknown.
        problem: why it cannot be used, a value of ``ProblemKind``; None: it is complete.
        why: the same as a sentence; empty: it is complete.
        ranks: the number of ranks of its round; None: unknown.
        shards: its shards.
    """

    directory: str
    step: int
    round: int
    job: str = ""
    log: str = ""
    bytes: int = 0
    modified: float = 0.0
    age_s: float | None = None
    problem: ProblemKind | None = None
    why: str = ""
    ranks: int | None = None
    shards: tuple[FoundShard, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether its manifest is there, and every shard with its size. ``verify`` reads the data too."""
        return self.problem is None


def checkpoints(storage: Storage, *, now: float | None = None) -> list[FoundCheckpoint]:
    """Return the checkpoints, complete or not, by step and round.

    Args:
        storage: where; none are found in a directory that does not exist.
        now: seconds since the epoch; None: the clock's.

    Raises:
        CheckpointError: the storage cannot be read.
    """
    moment = time.time() if now is None else now
    names = (entry.name for entry in storage.list() if parse_directory(entry.name) is not None)
    found = [_found(storage, name, moment) for name in names]
    return sorted(found, key=lambda each: (each.step, each.round))


def newest(storage: Storage, job: JobName | None = None) -> FoundCheckpoint | None:
    """Return the newest complete checkpoint; None: there is none.

    Args:
        storage: where.
        job: only those of this job; None: of any.

    Raises:
        CheckpointError: the storage cannot be read.
    """
    found = [each for each in checkpoints(storage) if each.complete and job in (None, each.job)]
    return by_age(found)[-1] if found else None


def by_age(found: list[FoundCheckpoint]) -> list[FoundCheckpoint]:
    """Checkpoints from the oldest to the newest one; see the module's rule."""
    times: dict[str, float] = {}
    for each in sorted(found, key=lambda each: (each.complete, each.modified)):
        times[each.log] = each.modified
    return sorted(found, key=lambda each: (times[each.log], each.log, each.round, each.step))


def _found(storage: Storage, name: str, now: float) -> FoundCheckpoint:
    step, round_ = parse_directory(name) or (0, 0)
    about = FoundCheckpoint(directory=name, step=step, round=round_)
    try:
        entries = storage.list(name)
    except CheckpointError as error:
        return msgspec.structs.replace(about, problem=ProblemKind.UNREADABLE, why=str(error))
    manifest = next((entry for entry in entries if entry.name == MANIFEST), None)
    modified = manifest.modified if manifest is not None else max((entry.modified for entry in entries), default=0.0)
    about = msgspec.structs.replace(
        about,
        bytes=sum(entry.bytes for entry in entries),
        modified=modified,
        age_s=max(0.0, now - modified) if modified else None,
        shards=tuple(FoundShard(entry.name, entry.bytes) for entry in entries if parse_shard(entry.name) is not None),
    )
    if manifest is None:
        why = f"no manifest: its save was interrupted, or goes on; it has {len(about.shards)} shards"
        return _unusable(storage, about, ProblemKind.UNFINISHED, why)
    try:
        summary = read_summary(storage, name)
    except CheckpointError as error:
        return _unusable(storage, about, ProblemKind(error.kind or ProblemKind.UNREADABLE), str(error))
    return _described(storage, about, summary, entries)


def _described(
    storage: Storage, about: FoundCheckpoint, manifest: ManifestSummary, entries: list[StoredEntry]
) -> FoundCheckpoint:
    sizes = {entry.name: entry.bytes for entry in entries}
    problems = absent(storage, about.directory, manifest, entries)
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return msgspec.structs.replace(
        about,
        job=manifest.job,
        log=manifest.log,
        ranks=manifest.ranks,
        problem=problems[0].kind if problems else None,
        why=f"{problems[0].message}{more}" if problems else "",
        shards=tuple(FoundShard(file.name, sizes.get(file.name, 0), file.rank, file.group) for file in manifest.files),
    )


def _unusable(storage: Storage, about: FoundCheckpoint, problem: ProblemKind, why: str) -> FoundCheckpoint:
    """A checkpoint without a manifest that can be read; its first readable shard tells whose it is."""
    for shard in about.shards:
        try:
            index = read_header(storage, f"{about.directory}/{shard.name}", values=False).index
        except CheckpointError:
            continue
        about = msgspec.structs.replace(about, job=index.job, log=index.log, ranks=index.ranks)
        break
    return msgspec.structs.replace(about, problem=problem, why=why)
