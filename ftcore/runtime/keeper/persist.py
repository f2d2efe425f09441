"""Writes shards from staging memory to storage, and makes checkpoints of them; in threads, never in the event loop.

One shard is written at a time, so that a keeper takes a bounded part of the storage and of the processors. Manifests
and retention have a thread of their own: they wait for no shard. A shard that was overwritten while it was read is
dropped.

If there is no agent to order a manifest, the keeper writes it, once all replica groups are in the directory. So the
last of several nodes makes the checkpoint.

If the storage fails, the memory keeps the shard, and the keeper writes it again after a pause. If newer steps replace
it meanwhile, the keeper waits until one of them stays: the training is paused then, or its steps take long.

House rules: whatever the storage does is a result, never an exception in the event loop. Only the first failure of a
rank is reported until a write succeeds.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import msgspec

from ftcore.runtime.keeper.config import KeeperConfig
from ftcore.runtime.keeper.slots import KeptSlot, ShardOrigin, SlotMemory

if TYPE_CHECKING:
    from ftcore.checkpoint.layout import ShardIndex
    from ftcore.checkpoint.storage import Storage

PAUSES_S: Final = (2.0, 60.0)
"""First and longest pause before a shard is written again; doubled each time."""

MEMORY_ONLY: Final = "this job has no path for checkpoints: shards stay in memory"

T = TypeVar("T")


@attrs.frozen
class PersistResult:
    """How the write of a shard ended.

    Args:
        shard: where it comes from.
        local_rank: the local rank that staged it.
        file: its name in the checkpoint's directory.
        bytes: size of the file.
        seconds: how long it took.
        error: why it failed; empty: it is on storage.
        away: the storage failed, and the memory still has the shard.
    """

    shard: ShardOrigin
    local_rank: int
    file: str = ""
    bytes: int = 0
    seconds: float = 0.0
    error: str = ""
    away: bool = False

    @property
    def moment(self) -> tuple[int, int]:
        """Round and step of the shard."""
        return self.shard.round, self.shard.step

    def message(self) -> dict[str, Any]:
        """Return the fields of the message to the agent."""
        if self.error:
            about = {"round": self.shard.round, "step": self.shard.step, "rank": self.shard.rank}
            return {**about, "error": self.error, "away": self.away}
        about = msgspec.structs.asdict(self.shard)
        del about["tensors"]
        return {
            **about,
            "local_rank": self.local_rank,
            "file": self.file,
            "bytes": self.bytes,
            "seconds": self.seconds,
        }


@attrs.frozen
class _NextTry:
    timer: asyncio.TimerHandle
    pause_s: float


class _ShardValues(msgspec.Struct, frozen=True):
    values: str


class Persister:
    """Writes to one storage.

    Args:
        slots: the staging memory.
        report: called with a message to the agent for each shard.
    """

    def __init__(self, slots: SlotMemory, report: Callable[[dict[str, Any]], None]) -> None:
        self._slots = slots
        self._report = report
        self._config: KeeperConfig | None = None
        self._storage: Storage | None = None
        self._shards = ThreadPoolExecutor(1, "persist")
        self._manifests = ThreadPoolExecutor(1, "commit")
        self._jobs: dict[tuple[int, int, int], asyncio.Task[PersistResult]] = {}
        self._written: dict[tuple[int, int], tuple[int, PersistResult]] = {}
        self._last: dict[int, PersistResult] = {}
        self._again: dict[int, _NextTry] = {}
        self._uncommitted: set[tuple[int, int]] = set()
        self._retaining: asyncio.Task[None] | None = None

    def configure(self, config: KeeperConfig) -> None:
        """Use this storage from now on."""
        before, self._config = self._config, config
        if before is None or (before.url, before.bandwidth) != (config.url, config.bandwidth):
            self._storage = None

    # -- shards

    def persist(self, kept: KeptSlot) -> "asyncio.Task[PersistResult]":
        """Write a slot's complete shard, after those that wait already; once, however often this is called."""
        origin, sequence = kept.origin(), kept.sequence
        assert origin is not None
        key = kept.local_rank, kept.number, sequence
        if key not in self._jobs:
            done = self._written.get(key[:2])
            if done is not None and done[0] == sequence:
                return asyncio.ensure_future(_returned(done[1]))
            kept.pin(queued=1)
            task = self._jobs[key] = asyncio.ensure_future(self._persist(kept, origin, sequence))
            task.add_done_callback(lambda _: self._jobs.pop(key, None))
            task.add_done_callback(lambda ended: self._tell(ended, kept, sequence))
        return self._jobs[key]

    def failed(self, round_: int, step: int, rank: int, error: str) -> None:
        """Report that a shard was lost before it could be written."""
        origin = ShardOrigin(round=round_, step=step, rank=rank, ranks=0, group=0, groups=0)
        self._last[rank] = result = PersistResult(origin, -1, error=error)
        self._report({"failed": result.message()})

    async def written(self, round_: int) -> list[PersistResult]:
        """Wait until no shard of a round waits to be written; return the newest failures, by rank."""
        for _ in range(3):  # let those that serve workers read what was sent before this was asked
            await asyncio.sleep(0)
        await self._idle()
        return [last for _, last in sorted(self._last.items()) if last.shard.round == round_ and last.error]

    async def _idle(self) -> None:
        while self._jobs:
            await asyncio.wait(self._jobs.values())

    async def _persist(self, kept: KeptSlot, origin: ShardOrigin, sequence: int) -> PersistResult:
        loop = asyncio.get_running_loop()

        async def begin() -> dict[str, str]:
            kept.pin(readers=1, queued=-1)
            return self._values_of_others(origin)

        def write() -> PersistResult:
            others = asyncio.run_coroutine_threadsafe(begin(), loop).result()
            return self._write(kept, origin, sequence, others)

        def failed(why: str) -> PersistResult:
            lasts = not kept.closed and kept.holds(sequence) and not kept.is_copy  # a copy's own node writes it again
            away = self._config is not None and bool(self._config.url) and lasts
            return PersistResult(origin, kept.local_rank, error=why, away=away)

        result = await _in_thread(self._shards, write, failed)
        kept.pin(readers=-1)
        self._last[origin.rank] = result
        if not result.error:
            self._written[kept.local_rank, kept.number] = sequence, result
            self._uncommitted.add(result.moment)
        self._slots.tidy()
        return result

    def _tell(self, task: "asyncio.Task[PersistResult]", kept: KeptSlot, sequence: int) -> None:
        if task.cancelled():
            return
        result, rank = task.result(), kept.local_rank
        if kept.is_copy:
            self._report({"failed" if result.error else "persisted": result.message()})
            return
        if not result.error:
            if again := self._again.pop(rank, None):
                again.timer.cancel()
            self._report({"persisted": result.message()})
            return
        known = rank in self._again
        if result.away or known:
            self._write_later(kept, sequence)
        if not known:
            self._report({"failed": result.message()})

    def _write_later(self, kept: KeptSlot, sequence: int) -> None:
        before, pause_s = self._again.get(kept.local_rank), PAUSES_S[0]
        if before is not None:
            before.timer.cancel()
            pause_s = min(2 * before.pause_s, PAUSES_S[1])
        timer = asyncio.get_running_loop().call_later(pause_s, self._write_again, kept, sequence)
        self._again[kept.local_rank] = _NextTry(timer, pause_s)

    def _write_again(self, kept: KeptSlot, sequence: int) -> None:
        """Write a shard again, or wait for a newer one that stays; there is none after the memory was given up."""
        if not kept.closed and kept.holds(sequence):
            self.persist(kept)
        elif (newest := self._slots.newest(kept.local_rank)) is not None:
            self._write_later(newest, newest.sequence)
        else:
            del self._again[kept.local_rank]

    def _write(self, kept: KeptSlot, origin: ShardOrigin, sequence: int, others: dict[str, str]) -> PersistResult:
        from ftcore.checkpoint import files
        from ftcore.checkpoint.layout import ShardIndex
        from ftcore.errors import CheckpointError

        began = time.monotonic()
        directory = files.directory_name(origin.step, origin.round)
        file = files.shard_name(origin.rank, origin.ranks)
        storage = self._opened()
        index = kept.slot.index()
        if index is None or not kept.holds(sequence):
            raise CheckpointError(
                "a newer save overwrote it before it was written: the storage is slower than the saves; save to "
                "storage less often"
            )
        with kept.slot.data() as data:
            shard = _with_others(msgspec.json.decode(index, type=ShardIndex), others)
            name = f"{directory}/{file}"
            made = files.write_shard(storage, name, shard, data, unchanged=lambda: kept.holds(sequence))
        seconds = time.monotonic() - began
        return PersistResult(origin, kept.local_rank, file=file, bytes=made.bytes, seconds=seconds)

    def _values_of_others(self, shard: ShardOrigin) -> dict[str, str]:
        """Python values that other ranks of a shard's replica group have staged on this node, by rank."""
        found = {}
        for kept in self._slots.sealed():
            origin, index = kept.origin(), kept.slot.index()
            if origin is None or index is None or origin.tensors or origin.rank == shard.rank:
                continue
            if (origin.round, origin.step, origin.group) == (shard.round, shard.step, shard.group):
                found[str(origin.rank)] = msgspec.json.decode(index, type=_ShardValues).values
        return found

    # -- manifests

    async def commit(self, round_: int, step: int, names: Iterable[str]) -> dict[str, Any]:
        """Write a manifest, then remove what retention does not keep; the answer to the agent."""
        answer = await _in_thread(
            self._manifests, lambda: self._commit(round_, step, names), lambda why: {"error": why}
        )
        if "committed" in answer:
            self._uncommitted = {moment for moment in self._uncommitted if moment > (round_, step)}
            self._retaining = asyncio.ensure_future(self._retain())
        return answer

    def _commit(self, round_: int, step: int, names: Iterable[str]) -> dict[str, Any]:
        from ftcore.checkpoint import files, manifest

        assert self._config is not None
        began = time.monotonic()
        directory, storage = files.directory_name(step, round_), self._opened()
        made = manifest.commit(storage, directory, names, log=self._config.log)
        seconds = time.monotonic() - began
        return {"committed": {"path": storage.where(directory), "bytes": made.bytes, "seconds": seconds}}

    async def _retain(self) -> None:
        why = await _in_thread(self._manifests, self._remove_old, lambda why: why)
        if why:
            self._report({"note": f"old checkpoints were not removed: {why}; the next checkpoint tries again"})

    def _remove_old(self) -> str:
        from ftcore.checkpoint import directory, retention

        config = self._config
        if config is None or config.keep <= 0:
            return ""
        storage = self._opened()
        found = directory.checkpoints(storage)
        for each in retention.to_remove(found, config.keep, config.keep_every, job=config.job):
            storage.remove(each)
        return ""

    # -- without an agent

    async def save_all(self) -> None:
        """Save what is in memory, so that a checkpoint of it is on storage; of several steps the newest possible one.

        A step of which this node holds all of its replica groups comes first, and in it one shard of each group. Older
        steps follow until a checkpoint is complete: other nodes may hold those.
        """
        await self._idle()
        if self._config is None or not self._config.url:
            return
        moments: list[tuple[int, int]] = []
        for moment, shards in self._by_moment():
            if not shards:
                continue
            moments.append(moment)
            await asyncio.gather(*map(self.persist, shards))
            if await self._commit_present(moment):
                return
        for moment in moments:  # other nodes have written meanwhile
            if await self._commit_present(moment):
                return

    async def finish(self, *, save: bool) -> None:
        """Finish what is being written, and commit what is complete.

        Args:
            save: also save what is in memory.
        """
        if save:
            await self.save_all()
        await self._idle()
        for moment in sorted(self._uncommitted, reverse=True):
            if await self._commit_present(moment):
                break
        if self._retaining is not None:
            await self._retaining

    def _by_moment(self) -> list[tuple[tuple[int, int], list[KeptSlot]]]:
        """Slots with shards that count, by round and step, in the order in which they are saved."""
        moments: dict[tuple[int, int], list[KeptSlot]] = {}
        groups: dict[tuple[int, int], set[int]] = {}
        for kept in self._slots.sealed():
            origin = kept.origin()
            if origin is not None and origin.tensors and not kept.is_copy:  # the node that staged it writes it
                moments.setdefault((origin.round, origin.step), []).append(kept)
                groups.setdefault((origin.round, origin.step), set()).add(origin.group)
        newest = max(moments, default=(0, 0))[0]
        every = {group for (round_, _), found in groups.items() if round_ == newest for group in found}
        order = sorted(moments, key=lambda moment: (groups[moment] >= every, moment), reverse=True)
        return [(moment, _one_of_each_group_first(moments[moment])) for moment in order]

    async def _commit_present(self, moment: tuple[int, int]) -> bool:
        """Commit the shards of a directory if all replica groups are there; returns whether it is committed."""
        round_, step = moment

        def commit() -> dict[str, Any]:
            from ftcore.checkpoint import files

            entries = self._opened().list(files.directory_name(step, round_))
            return self._commit(
                round_, step, [each.name for each in entries if files.parse_shard(each.name) is not None]
            )

        answer: dict[str, Any] = await _in_thread(self._manifests, commit, lambda why: {"error": why})
        if "committed" not in answer:
            return False
        self._uncommitted = {each for each in self._uncommitted if each > moment}
        self._report({"committed": {"round": round_, "step": step, "path": answer["committed"]["path"]}})
        self._retaining = asyncio.ensure_future(self._retain())
        return True

    def _opened(self) -> "Storage":
        """The storage; opened in the thread that needs it first, because that may import its library."""
        from ftcore.checkpoint.storage import Storage
        from ftcore.errors import CheckpointError

        config = self._config
        if config is None or not config.url:
            raise CheckpointError(MEMORY_ONLY)
        if self._storage is None:
            self._storage = Storage(config.url, config.bandwidth)
        return self._storage


def _with_others(shard: "ShardIndex", others: dict[str, str]) -> "ShardIndex":
    """Add the Python values of other ranks of the replica group: storage has one shard of a group."""
    from ftcore.checkpoint import values

    own = values.decode(shard.values) if others else None
    if not isinstance(own, dict):
        return shard
    own["others"] = {**others, **own.get("others", {})}
    text = values.encode(own, f"the values of rank {shard.rank}")
    return msgspec.structs.replace(shard, values=text)


def _one_of_each_group_first(shards: list[KeptSlot]) -> list[KeptSlot]:
    seen: set[int] = set()
    first: list[KeptSlot] = []
    others: list[KeptSlot] = []
    for kept in shards:
        origin = kept.origin()
        if origin is not None:
            (others if origin.group in seen else first).append(kept)
            seen.add(origin.group)
    return first + others


async def _returned(result: PersistResult) -> PersistResult:
    return result


async def _in_thread(pool: ThreadPoolExecutor, work: Callable[[], T], failed: Callable[[str], T]) -> T:
    """Run something in a thread; what it raises becomes a result."""
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work)
    except Exception as error:  # a storage's library has its own errors
        from ftcore.errors import FtcoreError

        return failed(str(error) if isinstance(error, FtcoreError) else f"{type(error).__name__}: {error}")
