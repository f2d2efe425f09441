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
import os
import sys
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from ftcore.batch import RankBatch
from ftcore.errors import CheckpointError
from ftcore.shm.boundary import GOES_BACK, PARKS, RESIZES, RETRIES, STAGES
from ftcore.shm.page import PageWriter
from ftcore.worker import _batch, _connections, _environment, _groups, _rate, _rounds
from ftcore.worker._abnormal import AbnormalStep, StepLimits
from ftcore.worker._boundary import step_boundary
from ftcore.worker._data import RegisteredData
from ftcore.worker._interval import PersistInterval, is_due
from ftcore.worker._keeper import KEEPER_ENV, KeeperClient
from ftcore.worker._progress import progress
from ftcore.worker._rounds import COLLECTIVE, NORM, UCE
from ftcore.worker._sections import sections
from ftcore.worker._step import TrainingStep

if TYPE_CHECKING:
    from ftcore.worker.state.collect import StateCollection
    from ftcore.worker.state.load import LoadedState
    from ftcore.worker.state.stage import StateStager

FLUSH_S: Final = 600.0
"""Longest wait in seconds for the last checkpoint."""

_Build = TypeVar("_Build", bound=Callable[[], object])


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
        self._data = RegisteredData()
        self._save_every = 0
        self._interval = PersistInterval()
        self._until: int | None = None
        self._resizes = False
        self._said = ""
        self._builders: list[Callable[[], object]] = []
        self._link: _rounds.RoundLink | None = None
        self._has_left, self._is_damaged, self._marked = False, False, 0
        self._limits = StepLimits()
        self.loaded: LoadedState | None = None
        """What ``load`` restored; None: it was not called, or nothing is registered."""

    # -- the script's calls

    def register(self, **objects: Any) -> None:
        """Register what a checkpoint consists of; all ranks call it, with the same names in the same order.

        Args:
            objects: by the name in the checkpoint: modules (plain, DDP, FSDP, tensor parallel), optimizers, schedulers
                and other objects with ``state_dict`` and ``load_state_dict``, generators, dicts and lists of tensors
                and Python values. A plain tensor is the same on all ranks; ``Slice`` declares one that is not.
                ``data`` is also the source of ``step.batch``; after a rollback, ``steps`` skips batches of it. What is
                registered in a function of ``on_round`` is replaced by what it registers in the next round.

        Raises:
            ValueError: something cannot be saved; the message has its path. Or a name is taken.
            TypeError: an object is of another kind.
        """
        if "data" in objects:
            self._data.source = self.connect(objects["data"])
            if self._data.is_stateful:
                objects["data"] = self._data
        if not self._path or not objects:
            return
        from ftcore.worker.state.collect import StateCollection
        from ftcore.worker.state.stage import StateStager

        collection = self._collection or StateCollection()
        collection.register(objects, rebuilt=_groups.is_building())
        if self._stager is None:
            rank, local_rank, round_ = _environment.ranks_and_round()
            self._collection = collection
            self._keeper = KeeperClient(self._path, rank, local_rank, round_, _environment.local_ranks())
            if not self._keeper.connect():
                self._say(f"saves are not possible now: {self._keeper.problem}")
            self._stager = StateStager(collection, self._keeper, round_)
            self._data.positioned = self._keeper.positioned
            self._link = _rounds.open_link()
            boundary = step_boundary()
            boundary.on_save(self._save_on_request)
            boundary.on_stage(self._stage_on_request)
            boundary.on_boundary(self._mark)
            words = progress().boundary_words
            if words is not None:
                words.can(STAGES | (GOES_BACK if os.environ.get(_environment.CHECKPOINTS_ENV) else 0))
        resume = _environment.resume("")
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

            attach(QueueChannel(self._path, _environment.place, lambda: self._link is not None and self._link.ordered))
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

        where = os.environ.get(_environment.CHECKPOINTS_ENV, "")
        limit = os.environ.get(_environment.RESUME_STEP_ENV, "")
        choice = ResumeChoice(
            _environment.resume(where), where, int(limit) if limit else None, _environment.rollbacks()
        )
        loader = StateLoader(self._collection, self._keeper, choice)
        self.loaded = loader.load()
        if self._keeper is not None:
            self._keeper.loaded({**self.loaded._asdict(), "local_ranks": _environment.local_ranks()})
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
        resizes: bool = False,
        tokens: int = 0,
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
            resizes: this process can go on with another number of ranks, when the job shrinks or grows: in functions of
                ``on_round``, the script takes anew what depends on that number, as ``global_batch`` or ``WORLD_SIZE``.
            tokens: tokens of one step of all ranks, so that a rollback can skip registered data by tokens; 0: unknown.

        Raises:
            ValueError: a number is below 0, or ``persist_every`` is another text.
            CheckpointError: see ``load``.
        """
        chosen: Any = 0 if persist_every == "auto" else persist_every
        if not isinstance(chosen, int) or min(save_every, chosen, until or 0, start, tokens) < 0:
            found = f"{until}, {save_every}, {persist_every}, {start}, {tokens}"
            raise ValueError(f"expected numbers of at least 0, or 'auto' for persist_every; found {found}")
        self._save_every, self._until, self._resizes = save_every, until, resizes
        self._interval.set(persist_every, progress().boundary_words if self._stager is not None else None)
        self._data.tokens = tokens
        return self._steps(self.load() or start)

    def _steps(self, number: int) -> Iterator[TrainingStep]:
        self._publish()
        skips = self._data.skips()
        self._data.continue_after(number)
        while self._until is None or number < self._until:
            if number in skips:
                self._skip(number, skips[number])
            number += 1
            step = TrainingStep(self, number)
            _groups.begin_step()
            yield step
            step.end()
            if self._has_left:
                number, skips = self._next_round(), self._data.skips()
                self._data.continue_after(number)
        self.flush()

    def flush(self, within_s: float = FLUSH_S) -> None:
        """Wait until what was saved with ``persist`` is on storage; ``steps`` calls it after the last step.

        Args:
            within_s: longest wait in seconds, after the copy in progress.
        """
        if self._stager is None or self._keeper is None:
            return
        self._stager.flush()
        if not os.environ.get(_environment.CHECKPOINTS_ENV):
            return  # ftrun has no --checkpoints: nothing is written
        for why in self._keeper.written(within_s):
            self._say(f"the last checkpoint was not written: {why}")

    def global_batch(self, size: int, micro: int = 0) -> RankBatch:
        """Return which samples of each step this rank computes, so that all ranks together compute ``size``.

        It holds for this round. The script runs again in a round with another number of ranks, or calls this again in a
        function of ``on_round`` (``steps(resizes=True)``).

        Args:
            size: samples of one optimizer step over all ranks. ``ftrun --global-batch`` replaces both arguments.
            micro: samples of one forward and backward, a divisor of ``size``; 0: all samples of the rank.

        Raises:
            ValueError: the sizes are wrong, or there are more ranks than samples.
        """
        return _batch.batch_of_round(size, micro)

    def on_round(self, build: _Build) -> _Build:
        """Call a function that builds what holds a process group, now and in each later round; usable as a decorator.

        After a fault that left this process alive, it goes on in the next round, with new groups. If all groups and DDP
        models are made in such functions, it also does if another rank is a new process. The default group may be made
        before, from the environment. Register the module itself, not the DDP model around it.

        Args:
            build: makes groups and models, in the same order on all ranks; it may use collectives.
        """
        self._builders.append(build)
        _groups.build([build])
        return build

    # -- steps

    def next_batch(self, step: int = 0) -> Any:
        """Return the next batch of the registered ``data``.

        Args:
            step: the number of the last completed step.
        """
        return self._data.next_batch(step)

    def end_step(self, number: int, loss: float | None, grad_norm: float | None) -> None:
        """Report a completed step, save it if it is time, and reach its boundary."""
        if self._link is not None and self._ended_by_fault(self._link, number):
            self._has_left = True
            return
        self._data.step_ended(number)
        progress().report(number, loss, grad_norm)
        complete = not _groups.has_failed()
        persist = number == self._until or self._interval.is_due(number)
        if complete and (persist or is_due(number, self._save_every)):
            self.save(number, persist)
        step_boundary().reached(number, complete)

    def check(self, number: int, loss: float | None, norm: float | None) -> None:
        """End a step whose values are abnormal, unless it is tolerated. After the optimizer's step a loss is not.

        Raises:
            AbnormalStep: the step is to be computed again.
        """
        if self._limits.limit is None or self._link is None or self._collection is None or self._stager is None:
            return
        found = self._limits.check(None if self._stager.has_stepped else loss, norm, self._collection.scales)
        if found is not None and number in self._limits.tolerated:
            text = f"{found} at step {number} again; it is accepted"
            self._link.report(NORM, number - 1, text, norm=found.norm, at=number, limit=found.limit, again=1.0)
        elif found is not None and self._can_leave():
            raise found

    def _skip(self, step: int, batches: int) -> None:
        """Leave out batches that follow a step; the state of that step was saved before, so a restart does it again."""
        self._data.skip(batches, step)
        if self._keeper is not None:
            self._keeper.skipped({"step": step, "batches": batches, "local_ranks": _environment.local_ranks()})

    def step_failed(self, number: int, error: Exception) -> bool:
        """Leave the round if the fault leaves this process alive; else save in memory what was complete.

        Args:
            number: the step.
            error: what it raised.

        Returns:
            Whether this process goes on in the next round.
        """
        if self._leaves(error, number):
            self._has_left = True
        elif self._stager is not None:  # ranks fail when another rank has died
            with contextlib.suppress(Exception):  # the error of the step is the one that counts
                self._stager.stage_now(0.0)
        return self._has_left

    # -- rounds

    def _publish(self) -> None:
        """Publish before the first step whether this process can go on in another round."""
        self._limits.new_round()
        if self._link is None or self._collection is None:
            return
        words = progress().boundary_words
        if words is not None and _groups.can_retry() and not self._collection.refers_to_groups():
            parks = PARKS | (RESIZES if self._resizes else 0)
            words.can(RETRIES | (parks if _groups.can_park() else 0))

    def _can_leave(self) -> bool:
        words = progress().boundary_words
        able = words is not None and bool(words.able & RETRIES)
        return able and self._link is not None and _groups.can_retry()

    def _leaves(self, error: Exception, number: int) -> bool:
        """Whether an error is no reason to end this process; it is reported, unless an order to leave came before."""
        if not self._can_leave():
            return False
        assert self._link is not None
        if self._link.ordered:
            return True
        kind = _rounds.kind_of(error)
        if not kind:
            return False
        self._is_damaged = kind == UCE
        if isinstance(error, AbnormalStep):
            values = {"norm": error.norm, "at": number, "limit": error.limit}
            self._link.report(kind, number - 1, f"{error} at step {number}", **values)
        else:
            self._link.report(kind, number - 1, f"{type(error).__name__}: {error}")
        return True

    def _ended_by_fault(self, link: _rounds.RoundLink, number: int) -> bool:
        """Whether this process leaves its round although the script has ended the step without an error."""
        assert self._stager is not None
        has_stepped, failed = self._stager.has_stepped, _groups.has_failed()
        if not (link.ordered or failed or (not has_stepped and _connections.is_cut())) or not self._can_leave():
            return False
        if not link.ordered:
            link.report(COLLECTIVE, number - 1, "a collective of this step has failed; the script handled the error")
        elif has_stepped and not failed:
            self._data.step_ended(number)
            self._mark(number)
        return True

    def _next_round(self) -> int:
        """Leave the round, wait, and enter the next one; returns the last completed step."""
        while True:
            found = self._leave()
            try:
                return self._enter(found)
            except Exception as error:  # another fault meanwhile
                if not self._leaves(error, self._marked + 1):
                    raise

    def _leave(self) -> _rounds.NextRound:
        """Leave all groups, save in memory what is complete, and wait for the next round."""
        assert self._link is not None
        _connections.drain_and_shut_down()
        self._stage_left()
        _groups.leave()
        self._link.out()
        while (order := self._link.wait_order()) is not None:
            if isinstance(order, _rounds.NextRound):
                return order
            without, number = order
            self._stage_left(without)
            self._link.left(number)
        raise ConnectionError("the agent of this process has ended")

    def _stage_left(self, without: Collection[int] = ()) -> None:
        assert self._stager is not None
        with contextlib.suppress(Exception):  # what was saved before counts
            self._stager.stage_now(0.0, without, damaged=self._is_damaged)

    def _enter(self, found: _rounds.NextRound) -> int:
        """Enter the next round, and go back to the state that all its ranks have; returns its step.

        Raises:
            CheckpointError: there is no such state.
        """
        assert self._link is not None and self._collection is not None
        assert self._keeper is not None and self._stager is not None
        page = PageWriter(_rounds.become(found))
        progress().new_round(page)
        sections().new_round(page.sections)
        step_boundary().new_round(page.boundary)
        self._interval.new_round(page.boundary)
        self._limits.new_round()
        _rate.install()
        rank, local_rank, round_ = _environment.ranks_and_round()
        self._keeper.new_round(rank, local_rank, round_, _environment.local_ranks())
        self._stager.new_round(round_)
        self._collection.leave_round()
        self._collection.forget_gradients()
        self._has_left = self._is_damaged = False
        self._data.new_round()
        self._link.entered()
        _groups.enter(self._builders)
        self._collection.enter_round()
        step = self.load()
        if self.loaded is None or not self.loaded.source:
            raise CheckpointError("no saved state is left, and this process has gone on from it")
        return step

    def _mark(self, step: int) -> None:
        """Remember what forward and backward will change, for a checkpoint of this step when other ranks have died."""
        assert self._stager is not None
        self._marked = step
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


_of_process: TrainingJob | None = None


def join() -> TrainingJob:
    """Return the job of this process. Outside ``ftrun``, it registers, loads and saves nothing."""
    global _of_process
    if _of_process is None:
        _of_process = TrainingJob(os.environ.get(KEEPER_ENV, ""))
    return _of_process
