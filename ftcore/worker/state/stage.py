"""Stages the state of this process in memory of the node's keeper, while the training goes on.

``save`` takes a ``StateMoment`` and returns. A thread copies the tensors during the next forward and backward, and
the optimizer's next step waits for it in a hook. A tensor whose version changed meanwhile makes the copy invalid:
it is not sealed, and this tensor is copied at step boundaries from then on.

The first rank of a replica group on each node stages tensors. The others stage their Python values alone. For a shard
that goes to storage, the first rank of a group adds the values of the others: a checkpoint has one file for each group.

When other ranks have died, the keeper orders to stage the complete state; a rank whose step fails does it by itself.
The first living rank of a group on each node then stages the tensors. The step is that of the last boundary, and
tensors are complete unless an optimizer has stepped since; on a device, unless it has reached the optimizer's step
(see ``boundaries``).

House rules: an error of ours ends a staging, never the training, and is one line on standard error. The training thread
never waits for the keeper, the storage or another rank.
"""

import atexit
import contextlib
import queue
import sys
import threading
import time
from collections.abc import Collection
from typing import Final, TypeAlias

import msgspec
import torch

from ftcore.shm import memory
from ftcore.shm.staging import StagingSlot, needed
from ftcore.worker._keeper import KeeperClient, StagingPair
from ftcore.worker.state import copying, replicas
from ftcore.worker.state.boundaries import PassedBoundaries, PassedBoundary
from ftcore.worker.state.collect import CollectedState, StateCollection
from ftcore.worker.state.copying import PendingCopies, StagedData
from ftcore.worker.state.optimizer_hooks import hook
from ftcore.worker.state.replicas import RankLink, ReplicaGroups, ReplicaStore
from ftcore.worker.state.staging_job import POLL_S, Preparation, StagingJob

AGREE_S: Final = 60.0
"""Timeout in seconds of the exchange of digests."""

VALUES_S: Final = 30.0
"""Timeout in seconds for the Python values of the other ranks of a replica group."""

VALUES_BYTES: Final = 32 << 10
"""Least memory for the Python values of a rank: generators alone have 14 KiB."""

INDEX_GROWTH: Final = 6
"""How much longer the index may be once optimizers have their state: memory is requested before."""

SOON_S: Final = 2.0
"""How long an order to stage waits for the end of an optimizer's step, in seconds."""

STAGE_S: Final = 15.0
"""How long an order to stage waits for the copy, in seconds; the keeper waits 20."""

FLUSH_S: Final = 60.0
"""How long a process that ends waits for its last copy, in seconds."""

_Lacking: TypeAlias = Collection[tuple[int, int]]
"""Ranks, each with a step of which it has staged no tensors, because its memory is damaged."""


class StateStager:
    """Stages the registered state.

    Args:
        collection: the registered state.
        keeper: the connections to the keeper.
        round_: the round of this process.
    """

    def __init__(self, collection: StateCollection, keeper: KeeperClient, round_: int) -> None:
        self._collection, self._keeper, self._round = collection, keeper, round_
        self._jobs: queue.SimpleQueue[StagingJob | Preparation] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._job: StagingJob | None = None
        self._boundaries = PassedBoundaries()
        self._device = -1
        self._hurry = threading.Event()
        self._store = ReplicaStore(self._hurry)
        self._groups: ReplicaGroups | None = None
        self._digest = ""
        self._staged: dict[int, StagedData] = {}
        self._pair: StagingPair | None = None
        self._pinned: list[StagingSlot] = []
        self._pieces: tuple[CollectedState, bytes] | None = None
        self._values_bytes = 0
        self._sealed = (-1, -1, False)
        self._said = ""
        self.waited_ns = 0
        """How long optimizers' steps have waited for copies, in nanoseconds."""
        hook(self)
        threading.Thread(target=self._run, name="ftcore-stage", daemon=True).start()
        threading.Thread(target=self._serve_orders, name="ftcore-orders", daemon=True).start()
        atexit.register(self.flush)

    # -- training thread

    def new_round(self, round_: int) -> None:
        """Go on in the next round: nothing is known of its ranks, and what was passed belongs to the round before."""
        self.flush()
        with self._changed:
            self._round = round_
            self._boundaries = PassedBoundaries()
            self._store = ReplicaStore(self._hurry)
            self._groups, self._digest, self._sealed = None, "", (-1, -1, False)
            self._job = self._pieces = None  # they have tensors of the left round

    def prepare(self) -> None:
        """Request staging memory for the registered state, in the background."""
        self._use_device()
        if self._collection.collected is not None:
            self._jobs.put(Preparation(self._collection.collected, replicas.link()))

    def _use_device(self) -> None:
        if self._device < 0 and copying.uses_cuda():
            self._device = torch.cuda.current_device()

    def boundary(self, step: int) -> None:
        """Mark a step boundary: the state after this step is complete.

        Raises:
            ValueError: something cannot be saved.
        """
        if self._boundaries.is_at(step):
            return
        moment = self._collection.moment(step)
        self._use_device()
        with self._changed:
            self._boundaries.add(moment, copying.queued())
            self._changed.notify_all()

    @property
    def has_stepped(self) -> bool:
        """Whether an optimizer has stepped since the last boundary."""
        return self._boundaries.has_stepped

    def save(self, step: int, persist: bool, wait: bool = False) -> None:
        """Stage the state after a step.

        Args:
            step: the number of the last completed step.
            persist: whether it goes to storage.
            wait: wait until it is staged; otherwise until what the training thread may change is copied.

        Raises:
            ValueError: something cannot be saved.
            RuntimeError: it could not be staged, and ``wait`` is set.
        """
        previous = self._job
        if previous is not None:
            previous.done.wait()
        self.boundary(step)
        boundary = self._boundaries.newest
        assert boundary is not None
        job = StagingJob(boundary, persist)
        with self._changed:
            self._job = job
        self._jobs.put(job)
        if not self._boundaries.stepped:
            # no optimizer's step is seen that could wait: the script has none, or replays it as a CUDA graph
            job.copied.wait()
            _wait_on_device(job)
        elif job.moment.early is None:
            job.early_copied.wait()
        if wait:
            job.done.wait()
            if job.error:
                raise RuntimeError(job.error)

    def hold(self, step: int) -> None:
        """Have the state after a step staged when it returns; a copy of this step is not made again.

        Args:
            step: the number of the last completed step.

        Raises:
            ValueError: something cannot be saved.
            RuntimeError: it could not be staged.
        """
        job = self._job
        if job is not None and job.moment.step == step:
            job.done.wait()
            if not job.error:
                return
        self.save(step, persist=False, wait=True)

    def flush(self) -> None:
        """Wait for the staging in progress."""
        job = self._job
        if job is not None and not job.done.wait(FLUSH_S):
            self._say(f"the copy of step {job.moment.step} did not end within {FLUSH_S:.0f} s")

    def before_step(self) -> None:
        """Wait until the parameters and the optimizer's state may be changed."""
        while True:
            with self._changed:
                job = self._job
                if job is None or job.copied.is_set():
                    self._boundaries.begin_step(self._device)
                    break
            began = time.monotonic_ns()
            job.copied.wait()
            self.waited_ns += time.monotonic_ns() - began
        if job is not None:
            _wait_on_device(job)

    def after_step(self) -> None:
        """Count a step of an optimizer."""
        with self._changed:
            self._boundaries.end_step()
            self._changed.notify_all()

    # -- orders thread

    def _serve_orders(self) -> None:
        while (order := self._keeper.wait_order()) is not None:
            try:
                step, slot = self.stage_now(SOON_S)
                self._keeper.answer(order, step, slot)
            except Exception as error:
                self._keeper.refuse(order, str(error))

    def stage_now(self, soon_s: float, without: Collection[int] = (), *, damaged: bool = False) -> tuple[int, int]:
        """Stage the complete state of the last step boundary, while the training thread is blocked or computes.

        Args:
            soon_s: how long to wait for the end of an optimizer's step, and for a boundary, in seconds.
            without: ranks whose memory is damaged: where they have staged no tensors, another rank does.
            damaged: the memory of this rank is damaged: it stages only what was copied at the boundary.

        Returns:
            Its step and its slot.

        Raises:
            RuntimeError: there is no complete state now.
        """
        held = self._keeper.held() if without else []
        lacking = {(each.rank, each.step) for each in held if each.rank in without and not each.tensors}
        self._hurry.set()
        try:
            return self._stage_now(soon_s, lacking, damaged)
        finally:
            self._hurry.clear()

    def _stage_now(self, soon_s: float, lacking: _Lacking, damaged: bool) -> tuple[int, int]:
        began = time.monotonic()
        with self._changed:
            if damaged and self._job is not None:
                self._job.damaged = True  # what is copied now may be what the memory has since the fault
            while True:
                waited_s = time.monotonic() - began
                found, why = self._complete(waited_s, lacking, damaged)
                if found is not None:
                    break
                limit_s = STAGE_S if self._is_copying() else max(soon_s, SOON_S if self._is_computing() else 0.0)
                if waited_s >= limit_s:
                    raise RuntimeError(why)
                self._changed.wait(limit_s - waited_s if self._device < 0 else POLL_S[1])
            if self._is_sealed(found, lacking, damaged):
                return self._sealed[:2]
            if found.moment.early is None and not damaged:
                raise RuntimeError(
                    f"step {found.moment.step} was not saved, and forward and backward change more state than is "
                    "copied at each step (64 MiB)"
                )
            held = found is not self._boundaries.newest or bool(self._boundaries.why_passed())
            has_tensors = self._must_stage_now(found, lacking) and not damaged
            job = self._job = StagingJob(found, False, ordered=True, held=held, has_tensors=has_tensors)
            job.damaged = damaged
        self._jobs.put(job)
        if not job.done.wait(STAGE_S):
            raise RuntimeError(f"the copy did not end within {STAGE_S:.0f} s")
        if job.error:
            raise RuntimeError(job.error)
        return job.moment.step, job.slot

    def _complete(self, waited_s: float, lacking: _Lacking, damaged: bool) -> tuple[PassedBoundary | None, str]:
        """A boundary whose state is complete, or why there is none; a newer one is waited for up to ``SOON_S``."""
        if self._is_copying():
            return None, "an earlier copy is still in progress"
        newest, why = self._boundaries.newest, self._boundaries.why_passed()
        if damaged:
            return newest, why
        if newest is not None and not why:
            if not self._boundaries.stepped and not self._is_sealed(newest, lacking, damaged):
                why = f"no optimizer's step was seen before the boundary of step {newest.moment.step}"
                return None, f"{why}, so nothing says whether the state has changed since"
            if newest.is_reached():
                return newest, ""
            why = f"the device has not reached the boundary of step {newest.moment.step}"
            if waited_s < SOON_S:
                return None, why
        return self._boundaries.held(), why

    def _is_sealed(self, boundary: PassedBoundary, lacking: _Lacking, damaged: bool) -> bool:
        step, _, is_complete = self._sealed
        return step == boundary.moment.step and (is_complete or damaged or not self._must_stage_now(boundary, lacking))

    def _must_stage_now(self, boundary: PassedBoundary, lacking: _Lacking) -> bool:
        without = [rank for rank, step in lacking if step == boundary.moment.step]
        return self._groups is None or self._groups.stages_now(without)

    def _is_computing(self) -> bool:
        """Whether the state of the newest boundary is complete once the device has computed it."""
        newest = self._boundaries.newest
        return newest is not None and not self._boundaries.why_passed() and not newest.is_reached()

    def _is_copying(self) -> bool:
        return self._job is not None and not self._job.done.is_set()

    # -- staging thread

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if isinstance(job, Preparation):
                self._prepare(job)
                continue
            try:
                self._stage(job)
                job.error = ""
            except Exception as error:
                job.error = f"step {job.moment.step} was not staged: {error}"
                self._say(f"{job.error}; training goes on")
            finally:
                for event in (job.early_copied, job.copied, job.done):
                    event.set()
                with self._changed:
                    self._changed.notify_all()

    def _prepare(self, job: Preparation) -> None:
        """Agree on replica groups and request memory; what fails here is tried again, and reported, at a save."""
        collected, here = job
        if here.size > 1 and here.store is None:
            return
        with contextlib.suppress(Exception):
            groups = self._groups_of(collected, here)
            expected = self._collection.expected_bytes(collected) if groups.stages else 0
            self._slots(collected, groups, expected, INDEX_GROWTH if expected > collected.bytes else 1)

    def _groups_of(self, collected: CollectedState, here: RankLink, ordered: bool = False) -> ReplicaGroups:
        if self._groups is not None and (self._digest == collected.digest or ordered):
            return self._groups
        if here.store is None:
            return replicas.alone(here.rank, here.size)
        found = self._store.agree(here, collected.digest, AGREE_S)
        if found is None:
            raise RuntimeError("not all ranks have registered or saved the same kind of state at this step")
        self._groups, self._digest = found, collected.digest
        if found.rank == 0 and here.size > 1:
            self._keeper.replicas(found.table())
        return found

    def _slots(
        self, collected: CollectedState, groups: ReplicaGroups, data_bytes: int, index_growth: int = 1
    ) -> StagingPair:
        count = len(groups.members) if groups.persists else 1
        index_bytes = index_growth * len(self._pieces_json(collected)) + count * max(self._values_bytes, VALUES_BYTES)
        pair = self._keeper.slots(needed(index_bytes, data_bytes), not groups.elsewhere)
        if pair is None:
            raise RuntimeError(self._keeper.problem or "the keeper of this node has no memory")
        if pair is not self._pair:
            for slot in self._pinned:
                copying.unpin(slot.view, self._device)
            self._pair, self._staged, self._pinned = pair, {}, []
        if not self._pinned and self._device >= 0:
            self._pinned = [slot for slot in pair.regular if copying.pin(slot.view, self._device)]
        return pair

    def _pieces_json(self, collected: CollectedState) -> bytes:
        if self._pieces is None or self._pieces[0] is not collected:
            self._pieces = collected, msgspec.json.encode([entry.piece for entry in collected.entries])
        return self._pieces[1]

    def _stage(self, job: StagingJob) -> None:
        collected = job.moment.collected
        groups = self._groups_of(collected, job.here, job.ordered)
        has_tensors = groups.stages if job.has_tensors is None else job.has_tensors
        rescued = [] if has_tensors else job.rescued(groups.stages)
        size = collected.bytes if has_tensors or rescued else 0
        text = job.moment.encoded({})
        self._values_bytes = max(self._values_bytes, len(text))
        pair = self._slots(collected, groups, size)
        step, job.slot, _ = self._sealed
        if step != job.moment.step or pair.slots[job.slot].pinned:  # else the step before it stays
            job.slot = pair.choose(memory.available)
        slot = pair.slots[job.slot]
        if self._sealed[1] == job.slot:
            self._sealed = (-1, -1, False)
        began = time.monotonic()
        view = slot.begin(size)
        if has_tensors or rescued:
            self._copy(job, self._data(job.slot, view), has_tensors)
        job.copied.set()
        staged_s = time.monotonic() - began
        if others := self._other_values(job, groups, text):
            text = job.moment.encoded(others)
        if has_tensors and job.damaged:
            raise RuntimeError("the memory of this rank was damaged while it was copied")
        pieces = self._pieces_json(collected) if has_tensors else msgspec.json.encode(rescued)
        index = self._index(job, groups, text, pieces, staged_s)
        slot.seal(index, job.moment.step, self._round, job.moment.mono)
        if not self._keeper.sealed(job.slot, job.moment.step, job.persist and groups.persists):
            raise RuntimeError(self._keeper.problem or "the keeper of this node has ended")
        self._sealed = (job.moment.step, job.slot, has_tensors)
        self._said = ""

    def _data(self, number: int, view: memoryview) -> StagedData:
        """The memory of a slot as tensors; kept while it is at the same place."""
        made = StagedData(view)
        known = self._staged.get(number)
        if known is not None and known.address == made.address:
            return known
        self._staged[number] = made
        return made

    def _copy(self, job: StagingJob, data: StagedData, has_tensors: bool) -> None:
        collected = job.moment.collected
        if has_tensors:
            job.await_device(self._hurry)
        copies = PendingCopies(job.boundary.after)
        if job.moment.early is not None:
            copies.start(data.plan([entry.piece for entry in collected.early], job.moment.early.tensors()))
        else:
            copies.start(data.plan([entry.piece for entry in collected.early], [e.data for e in collected.early]))
            copies.finish()
        job.early_copied.set()
        if not has_tensors:
            copies.finish()
            return
        late = collected.late
        copies.start(data.plan_of(late))
        versions = collected.versions_of()
        job.events = copies.events()
        job.copied.set()
        copies.finish()
        if job.held:
            if not job.boundary.is_held():
                raise RuntimeError("the device has gone on while it was copied")
        elif versions != job.versions:
            found = zip(late, job.versions, versions, strict=True)
            names = {entry.piece.name for entry, before, after in found if before != after}
            self._collection.copy_early(names)
            raise RuntimeError(
                f"{min(names)}{f' and {len(names) - 1} others' if len(names) > 1 else ''} changed outside of an "
                "optimizer's step while it was copied; from now on it is copied at the end of each step"
            )

    def _other_values(self, job: StagingJob, groups: ReplicaGroups, text: str) -> dict[int, str]:
        """Exchange the Python values of a replica group, for a shard that goes to storage."""
        if not job.persist or job.ordered or len(groups.members) == 1:
            return {}
        step = job.moment.step
        if not groups.persists:
            self._store.publish(job.here, f"values/{step}/{groups.rank}", text)
            return {}
        names = {f"values/{step}/{rank}": rank for rank in groups.members if rank != groups.rank}
        found = self._store.collect(job.here, list(names), VALUES_S)
        return {names[name]: text for name, text in found.items()}

    def _index(self, job: StagingJob, groups: ReplicaGroups, text: str, pieces: bytes, staged_s: float) -> bytes:
        """``ShardIndex`` as JSON; the pieces were encoded before. ``elsewhere`` is for the keeper."""
        has_tensors = groups.stages if job.has_tensors is None else job.has_tensors
        return msgspec.json.encode(
            {
                "job": self._keeper.job,
                "log": self._keeper.log,
                "round": self._round,
                "step": job.moment.step,
                "rank": groups.rank,
                "ranks": len(groups.group_of),
                "group": groups.group,
                "groups": groups.groups,
                "tensors": has_tensors,
                "elsewhere": groups.elsewhere,
                "staged_s": round(staged_s, 6),
                "pieces": msgspec.Raw(pieces),
                "values": text,
            }
        )

    def _say(self, text: str) -> None:
        """Write a line on standard error, once for the same problem."""
        problem = text.partition(": ")[2]
        if problem != self._said:
            self._said = problem
            print(f"ftcore: {text}", file=sys.stderr, flush=True)


def _wait_on_device(job: StagingJob) -> None:
    """Have what is queued on devices from now on wait for the copies."""
    for device, event in job.events:
        torch.cuda.current_stream(device).wait_event(event)
    job.events = []
