"""The job as a script sees it: registered state that is saved while training goes on, and restored at the start.

    job = ft.join()
    job.register(model=model, optimizer=optimizer, scheduler=scheduler)
    for step in job.steps(until=10_000):
        with step:
            loss = train(step.number)
            step.report(loss=loss)

Outside ``ftrun``, nothing is registered, loaded or saved, and ``steps`` counts from 1.

House rules: torch is imported by ``register`` alone. What the script does wrong is raised by ``register`` and ``load``;
an error of ours in a step is one line on standard error.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from ftcore.batch import BatchRule, BatchTotal, RankBatch, batch_total, rank_batch, wrong_sizes
from ftcore.shm.boundary import GOES_BACK, PACED, SKIPS, STAGES
from ftcore.worker._boundary import step_boundary
from ftcore.worker._keeper import KEEPER_ENV, KeeperClient
from ftcore.worker._progress import progress

if TYPE_CHECKING:
    from ftcore.shm.boundary import BoundaryWords
    from ftcore.worker.state.collect import StateCollection
    from ftcore.worker.state.load import LoadedState
    from ftcore.worker.state.shards import SavedStep
    from ftcore.worker.state.stage import StateStager

ROUND_ENV: Final = "FTCORE_ROUND"
"""The round of this process."""

LOCAL_RANK_ENV: Final = "FTCORE_LOCAL_RANK"
"""The rank of this process on its node; LOCAL_RANK may be 0 on all of them."""

RESUME_ENV: Final = "FTCORE_RESUME"
ROLLBACKS_ENV: Final = "FTCORE_ROLLBACKS"
CHECKPOINTS_ENV: Final = "FTCORE_CHECKPOINTS"
RESUME_STEP_ENV: Final = "FTCORE_RESUME_STEP"
"""After a rollback, the newest step that may be resumed from."""

BATCH_ENV: Final = "FTCORE_BATCH"
"""The global batch of this world, if ``ftrun`` has one."""

SKIP_ENV: Final = "FTCORE_SKIP"
"""What rollbacks of this run skip: after which step, and how many batches."""

PERSIST_EVERY_ENV: Final = "FTCORE_PERSIST_EVERY"
"""Steps between two saves to storage, if the master has chosen before this round."""

FLUSH_S: Final = 600.0
"""Longest wait in seconds for the last checkpoint."""

_Build = TypeVar("_Build", bound=Callable[[], object])


class TrainingStep:
    """One step of the training; a context manager around its computation.

    Args:
        job: the job.
        number: its number, counted from 1 since the start of the training.
    """

    def __init__(self, job: "TrainingJob", number: int) -> None:
        self._job = job
        self.number = number
        self._loss: float | None = None
        self._grad_norm: float | None = None
        self._batch: Any = None
        self._ended = False

    def __enter__(self) -> "TrainingStep":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.end()
        elif isinstance(error, Exception):
            self._job.step_failed()
        self._ended = True  # a step that failed is not complete, whatever the script does with the error

    @property
    def batch(self) -> Any:
        """The next batch of the registered ``data``, which starts again at its end; the same one within a step.

        Raises:
            AttributeError: nothing is registered as ``data``.
            EOFError: it has no batch, also from its beginning.
        """
        if self._batch is None:
            self._batch = self._job.next_batch(self.number - 1)
        return self._batch

    def report(self, loss: float | None = None, grad_norm: float | None = None) -> None:
        """Report the loss and the gradient norm of the step; see ``ftcore.worker.report``."""
        self._loss = None if loss is None else float(loss)
        self._grad_norm = None if grad_norm is None else float(grad_norm)

    def end(self) -> None:
        """End the step: it is reported, saved if it is time, and the job may pause here. Called by ``with``."""
        if not self._ended:
            self._ended = True
            self._job.end_step(self.number, self._loss, self._grad_norm)


class TrainingJob:
    """What this process is part of. Made by ``join``.

    Args:
        keeper: path of the keeper's socket; empty: outside ``ftrun``, nothing is saved.
    """

    def __init__(self, keeper: str) -> None:
        self._path = keeper
        self._collection: StateCollection | None = None
        self._keeper: KeeperClient | None = None
        self._stager: StateStager | None = None
        self._data: Any = None
        self._batches: Iterator[Any] | None = None
        self._save_every = self._persist_every = 0
        self._pace: BoundaryWords | None = None
        self._until: int | None = None
        self._said = ""
        self.loaded: LoadedState | None = None
        """What ``load`` restored; None: it was not called, or nothing is registered."""

    # -- the script's calls

    def register(self, **objects: Any) -> None:
        """Register what a checkpoint consists of; all ranks call it, with the same names in the same order.

        Args:
            objects: by the name in the checkpoint: modules (plain, DDP, FSDP, tensor parallel), optimizers, schedulers
                and other objects with ``state_dict`` and ``load_state_dict``, generators, dicts and lists of tensors
                and Python values. A plain tensor is the same on all ranks; ``Slice`` declares one that is not.
                ``data`` is also the source of ``step.batch``; after a rollback, ``steps`` skips batches of it.

        Raises:
            ValueError: something cannot be saved; the message has its path. Or a name is taken.
            TypeError: an object is of another kind.
        """
        self._data = objects.get("data", self._data)
        if "data" in objects:
            self.connect(self._data)
        if not self._path or not objects:
            return
        from ftcore.worker.state.collect import StateCollection
        from ftcore.worker.state.stage import StateStager

        collection = self._collection or StateCollection()
        collection.register(objects)
        if self._stager is None:
            round_ = int(os.environ.get(ROUND_ENV, "0"))
            rank, local_rank = (int(os.environ.get(name, "0")) for name in ("RANK", LOCAL_RANK_ENV))
            self._collection = collection
            self._keeper = KeeperClient(self._path, rank, local_rank, round_, _local_ranks())
            if not self._keeper.connect():
                self._say(f"saves are not possible now: {self._keeper.problem}")
            self._stager = StateStager(collection, self._keeper, round_)
            boundary = step_boundary()
            boundary.on_save(self._save_on_request)
            boundary.on_stage(self._stage_on_request)
            boundary.on_boundary(self._mark)
            words = progress().boundary_words
            if words is not None:
                words.can(STAGES | (GOES_BACK if os.environ.get(CHECKPOINTS_ENV) else 0))
        resume = _resume("")
        if resume is None or resume.source != "memory":  # else `load` reads memory that new slots may replace
            self._stager.prepare()

    def connect(self, stream: Any) -> Any:
        """Let a ``ShardStream`` of ``ftcore.data`` take its shards from the master; ``register`` does it for ``data``.

        For a script that saves its own checkpoints: it saves the stream's ``state_dict`` with them.

        Args:
            stream: the stream; anything else is left alone, and so is a stream outside ``ftrun``.

        Returns:
            The stream.
        """
        attach = getattr(stream, "attach_queue", None)
        if self._path and callable(attach):
            from ftcore.worker._queues import QueueChannel

            attach(QueueChannel(self._path, place))
        return stream

    def load(self) -> int:
        """Restore the registered state from where it is nearest: memory, other ranks, storage. All ranks call it.

        Returns:
            The number of the last completed step; 0: start from the beginning.

        Raises:
            CheckpointError: there is saved state, and none of it can be used.
        """
        if self._collection is None:
            return 0
        from ftcore.worker.state.load import ResumeChoice, StateLoader

        where = os.environ.get(CHECKPOINTS_ENV, "")
        limit = os.environ.get(RESUME_STEP_ENV, "")
        choice = ResumeChoice(_resume(where), where, int(limit) if limit else None, _rollbacks())
        loader = StateLoader(self._collection, self._keeper, choice)
        self.loaded = loader.load()
        if self._keeper is not None:
            self._keeper.loaded({**self.loaded._asdict(), "local_ranks": _local_ranks()})
        if self.loaded.source:
            progress().resumed_at(self.loaded.step)
            self._mark(self.loaded.step)
        if self._stager is not None:
            self._stager.prepare()
        return self.loaded.step

    def save(self, step: int, persist: bool = True) -> None:
        """Save the registered state after a step, while training goes on; all ranks call it after the same step.

        It returns when it has copied what the next forward and backward change. The next step of an optimizer waits for
        the rest. Nothing is raised: training does not depend on it.

        Args:
            step: the number of the last completed step.
            persist: write it to storage too, in the background; False: it is kept in memory, where it survives this
                process.
        """
        if self._stager is not None:
            try:
                self._stager.save(int(step), bool(persist))
            except Exception as error:
                self._say(f"step {step} was not saved: {error}; training goes on")

    def steps(
        self,
        until: int | None = None,
        *,
        save_every: int = 1,
        persist_every: int | Literal["auto"] = "auto",
        start: int = 0,
    ) -> Iterator[TrainingStep]:
        """Restore the state, and yield the steps that remain.

        At the end of each step the job may pause, and save on request. The last step is saved to storage.

        Args:
            until: the number of the last step; None: no last step.
            save_every: save in memory after every so many steps; 0: only on request. A copy that takes longer than a
                forward and backward delays the optimizer's step.
            persist_every: save to storage after every so many steps; 0: only the last step, and on request. ``auto``:
                the master chooses the number from the time that a save takes and the job's failures.
            start: steps that were completed before, if nothing is restored: the script has loaded a checkpoint of its
                own.

        Raises:
            ValueError: a number is below 0, or ``persist_every`` is another text.
            CheckpointError: see ``load``.
        """
        chosen: Any = 0 if persist_every == "auto" else persist_every
        if not isinstance(chosen, int) or min(save_every, chosen, until or 0, start) < 0:
            found = f"{until}, {save_every}, {persist_every}, {start}"
            raise ValueError(f"expected numbers of at least 0, or 'auto' for persist_every; found {found}")
        self._save_every, self._persist_every, self._until = save_every, chosen, until
        if persist_every == "auto":
            self._leave_interval()
        return self._steps(self.load() or start)

    def _leave_interval(self) -> None:
        """Leave the interval of saves to storage to the master, if there is a storage."""
        words = progress().boundary_words
        if self._stager is None or words is None or not os.environ.get(CHECKPOINTS_ENV):
            return
        self._persist_every, self._pace = int(os.environ.get(PERSIST_EVERY_ENV, "0")), words
        words.can(PACED)

    def _must_persist(self, number: int) -> bool:
        if self._pace is not None:
            return self._pace.must_persist(number, self._persist_every)
        return _is_due(number, self._persist_every)

    def _steps(self, number: int) -> Iterator[TrainingStep]:
        skips = _skips() if self._stager is not None and self._data is not None else {}
        go_on = getattr(self._data, "continue_after", None)
        if callable(go_on):
            go_on(number)
        while self._until is None or number < self._until:
            if number in skips:
                self._skip(number, skips[number])
            number += 1
            step = TrainingStep(self, number)
            yield step
            step.end()
        self.flush()

    def flush(self, within_s: float = FLUSH_S) -> None:
        """Wait until what was saved with ``persist`` is on storage; ``steps`` calls it after the last step.

        Args:
            within_s: longest wait in seconds, after the copy in progress.
        """
        if self._stager is None or self._keeper is None:
            return
        self._stager.flush()
        if not os.environ.get(CHECKPOINTS_ENV):
            return  # ftrun has no --checkpoints: nothing is written
        for why in self._keeper.written(within_s):
            self._say(f"the last checkpoint was not written: {why}")

    def global_batch(self, size: int, micro: int = 0) -> RankBatch:
        """Return which samples of each step this rank computes, so that all ranks together compute ``size``.

        It holds for this process: in a later round, possibly with another number of ranks, the script runs again.

        Args:
            size: samples of one optimizer step over all ranks. ``ftrun --global-batch`` replaces both arguments.
            micro: samples of one forward and backward, a divisor of ``size``; 0: all samples of the rank.

        Raises:
            ValueError: the sizes are wrong, or there are more ranks than samples.
        """
        text = os.environ.get(BATCH_ENV, "")
        rank, ranks = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
        if text:
            found = json.loads(text)
            total = BatchTotal(int(found["size"]), int(found["micro"]), float(found["lr_scale"]))
        elif why := wrong_sizes(size, micro):
            raise ValueError(f"global_batch: {why}")
        else:
            total = batch_total(size, micro, BatchRule.KEEP, 1, 1, ranks)
        if total.size < ranks:
            raise ValueError(f"global_batch: {total.size} samples cannot be shared by {ranks} ranks")
        return rank_batch(total, rank, ranks)

    def on_round(self, build: _Build) -> _Build:
        """Call a function that builds what holds a process group, now and in each later round; usable as a decorator.

        A process belongs to one round, so it is called once.
        """
        build()
        return build

    # -- steps

    def next_batch(self, step: int = 0) -> Any:
        """Return the next batch of the registered ``data``.

        Args:
            step: the number of the last completed step.
        """
        if self._data is None:
            raise AttributeError("step.batch needs register(data=...)")
        if self._batches is None:
            self._batches = iter(self._data)
            words = progress().boundary_words
            if self._stager is not None and words is not None:
                words.can(SKIPS)
        declare = getattr(self._data, "take_declaration", None)
        if self._keeper is not None and callable(declare) and os.environ.get("RANK", "0") == "0":
            declaration = declare()
            if declaration is not None:
                self._keeper.positioned({"step": step, **declaration})
        try:
            return next(self._batches)
        except StopIteration:
            self._batches = iter(self._data)
            try:
                return next(self._batches)
            except StopIteration:
                raise EOFError("the registered data has no batch left for this rank") from None

    def end_step(self, number: int, loss: float | None, grad_norm: float | None) -> None:
        """Report a completed step, save it if it is time, and reach its boundary."""
        ended = getattr(self._data, "step_ended", None)
        if callable(ended):
            ended(number)  # before the save: what a saved step has used up must be known
        progress().report(number, loss, grad_norm)
        persist = number == self._until or self._must_persist(number)
        if persist or _is_due(number, self._save_every):
            self.save(number, persist)
        step_boundary().reached(number)

    def _skip(self, step: int, batches: int) -> None:
        """Leave out batches that follow a step; the state of that step was saved before, so a restart does it again."""
        skip = getattr(self._data, "skip_batches", None)
        if callable(skip):
            skip(batches)
        else:
            for _ in range(batches):
                self.next_batch()
        if self._keeper is not None:
            self._keeper.skipped({"step": step, "batches": batches, "local_ranks": _local_ranks()})

    def step_failed(self) -> None:
        """Save in memory what was complete before a step that failed; ranks fail when another rank has died."""
        if self._stager is not None:
            with contextlib.suppress(Exception):  # the error of the step is the one that counts
                self._stager.stage_now(0.0)

    def _mark(self, step: int) -> None:
        """Remember what forward and backward will change, for a checkpoint of this step when other ranks have died."""
        assert self._stager is not None
        try:
            self._stager.boundary(step)
        except Exception as error:
            self._say(f"the state of step {step} cannot be saved: {error}; training goes on")

    def _save_on_request(self, step: int) -> None:
        assert self._stager is not None
        self._stager.save(step, persist=True, wait=True)

    def _stage_on_request(self, step: int) -> None:
        assert self._stager is not None
        self._stager.hold(step)

    def _say(self, text: str) -> None:
        problem = text.partition(": ")[2]
        if problem != self._said:
            self._said = problem
            print(f"ftcore: {text}", file=sys.stderr, flush=True)


def _is_due(number: int, every: int) -> bool:
    return every > 0 and number % every == 0


def place() -> tuple[int, int, int]:
    """Return the round of this process, its rank and the number of ranks, as they are now."""
    round_, rank, ranks = ((ROUND_ENV, "0"), ("RANK", "0"), ("WORLD_SIZE", "1"))
    return int(os.environ.get(*round_)), int(os.environ.get(*rank)), int(os.environ.get(*ranks))


def _local_ranks() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _skips() -> dict[int, int]:
    """The batches to skip, by the step after which they are."""
    found: dict[int, int] = {}
    for each in json.loads(os.environ.get(SKIP_ENV) or "[]"):
        if each["unit"] == "batches":
            found[each["step"]] = found.get(each["step"], 0) + each["amount"]
    return found


def _resume(checkpoints: str) -> "SavedStep | None":
    text = os.environ.get(RESUME_ENV, "")
    if not text:
        return None
    from ftcore.worker.state.shards import SavedStep

    found = json.loads(text)
    where = found.get("where") or checkpoints if found["source"] == "storage" else ""
    return SavedStep(int(found["step"]), int(found["round"]), found["source"], where)


def _rollbacks() -> tuple[tuple[int, int], ...]:
    found = json.loads(os.environ.get(ROLLBACKS_ENV, "[]"))
    return tuple((int(each["round"]), int(each["step"])) for each in found)


_of_process: TrainingJob | None = None


def join() -> TrainingJob:
    """Return the job of this process. Outside ``ftrun``, it registers, loads and saves nothing."""
    global _of_process
    if _of_process is None:
        _of_process = TrainingJob(os.environ.get(KEEPER_ENV, ""))
    return _of_process
