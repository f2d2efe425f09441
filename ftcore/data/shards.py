"""Data shards of a queue: which samples each of them has, and a stream of the samples that this rank is given.

Under ``ftrun`` the master gives the shards out, ahead of need, and knows what was used up after which step. So a shard
of a rank that was lost is done by another one, and after a restart from an earlier step exactly the later samples
return. Elsewhere each rank reads its part: every so many shards.

House rules: the training loop sends a message of the step to this node's keeper, and takes from what has arrived. Only
a stream that has nothing left waits, and says so.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

import torch
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from ftcore.data.order import SIZE_MAX, SampleOrder

AHEAD_MAX: Final = 1 << 16
"""Most data shards that a stream has leased in advance."""

REFILL_S: Final = 2.0
"""A stream that asks for more sooner than this, in seconds, asks for twice as many the next time."""

ASK_S: Final = 5.0
"""A stream that waits asks again after so many seconds: its node's keeper may have ended."""

SAY_S: Final = 2.0
"""A stream that has waited for so long, in seconds, says so."""


class DataShard(NamedTuple):
    """A shard of the data.

    Args:
        number: its number, from 0: the same in each epoch.
        epoch: the epoch, from 0.
        samples: how many samples it has; 0: known when it is read.
    """

    number: int
    epoch: int
    samples: int


class ShardQueue:
    """The data shards of all epochs, in the order in which they are given out.

    Args:
        name: its name; a job may have several queues.
        samples: number of samples of the data set; 0: a shard is something that the script reads, for example a file.
        shard_size: samples of a shard; the last shard of an epoch has the rest.
        shards: number of shards, if ``samples`` is 0.
        epochs: number of epochs; 0: without end.
        seed: of the order of the shards, and of the samples within each of them.
        shuffle: False: both are in their own order.

    Raises:
        ValueError: the numbers do not make a queue.
    """

    def __init__(
        self,
        name: str,
        samples: int = 0,
        shard_size: int = 0,
        *,
        shards: int = 0,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        whole = samples > 0 and shard_size > 0 and not shards
        if not name or epochs < 0 or not (whole or (shards > 0 and not samples and not shard_size)):
            raise ValueError(
                "expected a name, and either samples and shard_size or shards, above 0; found "
                f"name={name!r}, samples={samples}, shard_size={shard_size}, shards={shards}, epochs={epochs}"
            )
        self.name, self.samples, self.shard_size = name, samples, shard_size
        self.shards = -(-samples // shard_size) if whole else shards
        self.epochs, self.seed, self.shuffle = epochs, seed, shuffle
        if self.shards * max(1, epochs) > SIZE_MAX or samples * max(1, epochs) > SIZE_MAX:
            raise ValueError(f"a queue has at most {SIZE_MAX} samples in all epochs")
        self._full = samples // shard_size if whole else shards
        self._order = SampleOrder(self._full, seed, shuffle=shuffle) if self._full else None

    @property
    def spec(self) -> dict[str, Any]:
        """What defines the queue, for the job's log."""
        about = {"shards": self.shards, "epochs": self.epochs, "samples": self.samples, "size": self.shard_size}
        return {**about, "seed": self.seed, "shuffle": self.shuffle}

    def at(self, place: int) -> DataShard:
        """Return the shard at a place; place ``shards`` is the first one of the second epoch.

        The last shard of an epoch is the one with the rest of the samples, if there is a rest.
        """
        epoch, within = divmod(place, self.shards)
        if within >= self._full or self._order is None:
            return DataShard(within, epoch, self.samples - within * self.shard_size)
        number = int(self._order.at(torch.tensor([epoch * self._full + within]))[0])
        return DataShard(number, epoch, self.shard_size)

    def samples_at(self, place: int) -> list[int]:
        """Return the numbers of the samples of the shard at a place, in their order.

        Raises:
            ValueError: the queue has no samples, only shards.
        """
        shard = self.at(place)
        if not shard.samples:
            raise ValueError(f"what is in the shards of {self.name} is known when they are read")
        within = SampleOrder(shard.samples, self.seed * 1_000_003 + place + 1, shuffle=self.shuffle)
        found = within.at(torch.arange(shard.samples)) + shard.number * self.shard_size
        return [int(each) for each in found.tolist()]


class ShardStream(IterableDataset):  # type: ignore[misc]
    """The samples of the shards that this rank is given; an iteration continues where the one before it was.

    Register it as ``data`` of the job and take batches from ``step.batch``, or iterate over it. Ranks may get different
    numbers of batches: with ``epochs=0`` they never run out.

    Args:
        queue: the queue.
        source: a data set that returns the sample of a number, if the queue has samples; else a function that returns
            the samples of a ``DataShard``, always the same ones in the same order.
        batch_size: samples of a batch of this rank; None: single samples, for a ``DataLoader`` with ``num_workers=0``.
        collate: makes a batch of a list of samples; None: as a ``DataLoader`` does.
        ahead: how many shards are leased in advance at least; more if they are used up quickly.

    Raises:
        ValueError: the source does not fit the queue, or a number is below 1.
    """

    def __init__(
        self,
        queue: ShardQueue,
        source: Any,
        batch_size: int | None = None,
        *,
        collate: Callable[[list[Any]], Any] | None = None,
        ahead: int = 8,
    ) -> None:
        if bool(queue.samples) != hasattr(source, "__getitem__"):
            raise ValueError("a queue of samples needs a data set with samples by number, one of shards a function")
        if ahead < 1 or (batch_size is not None and batch_size < 1):
            raise ValueError(f"expected batch_size and ahead above 0; found {batch_size} and {ahead}")
        self.queue = queue
        self._source, self._batch_size, self._collate = source, batch_size, collate or default_collate
        self._ahead = ahead
        self._channel: Any = None
        self._told = False
        self._step = 0
        self._place: tuple[int, int, int] | None = None
        self._begin_round()

    def _begin_round(self) -> None:
        self._leases: deque[tuple[int, int, int]] = deque()
        self._leased = self._done = self._offset = self._taken = self._want = self._size = 0
        self._granted = 1
        self._reading: Iterator[Any] | None = None
        self._over = self._is_asking = self._is_open = False
        self._reported = (0, 0, 0)
        self._asked_at = 0.0
        self._skipped = False

    # -- the job

    def attach_queue(self, channel: Any) -> None:
        """Take the shards through this channel from now on; ``TrainingJob`` calls it.

        Args:
            channel: of ``ftcore.worker``: ``place()``, ``send(message)`` and ``receive(wait_s)``.
        """
        self._channel = channel
        self._begin_round()

    def new_round(self, round_: int, rank: int, world: int) -> None:
        """Note that this process takes part in another round: what was leased in the old one has expired.

        Args:
            round_: the round.
            rank: the global rank of this process in it.
            world: number of ranks.
        """
        self._place = (round_, rank, world)
        if self._channel is not None:
            self._channel.close()  # the next connection is one of the new round
        self._begin_round()

    def continue_after(self, step: int) -> None:
        """Note the last completed step, from which the training goes on; ``TrainingJob.steps`` calls it."""
        self._step, self._told = step, True
        if self._channel is not None and not self._is_open:
            self._ask()

    def skip_batches(self, count: int) -> None:
        """Take and drop batches; ``TrainingJob.steps`` calls it after a rollback.

        Args:
            count: how many.
        """
        for _ in islice(self, count):
            self._skipped = True  # the samples of the next step are more than a step takes

    def step_ended(self, step: int) -> None:
        """Note that a step is complete: what was taken since the last one belongs to it.

        ``TrainingJob.steps`` calls it. Without it, each batch is a step.

        Args:
            step: its number.
        """
        self._step, self._told = step, True
        self._report()

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """Return what defines the queue, and the step; outside of ``ftrun`` also the place."""
        state = {"name": self.queue.name, **self.queue.spec, "step": self._step}
        if self._channel is None:
            state |= {"done": self._done, "offset": self._offset, "ranks": self._where()[2]}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the saved step.

        Raises:
            ValueError: the state is that of another queue, or, outside of ``ftrun``, of another number of ranks.
        """
        here = {"name": self.queue.name, **self.queue.spec}
        wrong = [f"{name} {state[name]}, now {value}" for name, value in here.items() if state[name] != value]
        if wrong:
            raise ValueError(f"the saved state is that of another queue: {', '.join(wrong)}")
        self._step = int(state["step"])
        if self._channel is None and "ranks" in state:
            self._begin_round()
            if int(state["ranks"]) != self._where()[2]:
                raise ValueError(f"outside of ftrun, a state of {state['ranks']} ranks fits no other number of ranks")
            self._done, self._offset = int(state["done"]), int(state["offset"])

    # -- samples

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise RuntimeError("a ShardStream is read in the training process; use num_workers=0")
        while True:
            batch: list[Any] = []
            while len(batch) < (self._batch_size or 1) and (found := self._next()) is not None:
                batch.append(found[0])
            if not batch:
                self._report()
                return
            yield batch[0] if self._batch_size is None else self._collate(batch)
            if not self._told and self._batch_size is not None:
                self._step += 1
                self._report()

    def _next(self) -> tuple[Any] | None:
        """The next sample, in a tuple; None: nothing is left for this rank."""
        while True:
            if self._reading is None and not self._begin_shard():
                return None
            assert self._reading is not None
            for sample in self._reading:
                self._offset += 1
                self._taken += 1
                if self.queue.samples and self._offset >= self._size:
                    self._end_shard()
                return (sample,)
            self._end_shard()

    def _begin_shard(self) -> bool:
        place = self._next_place()
        if place is None:
            return False
        at, offset = place
        self._offset = max(offset, self._offset)
        shard = self.queue.at(at)
        self._size = shard.samples
        if self.queue.samples:
            self._reading = (self._source[number] for number in self.queue.samples_at(at)[self._offset :])
        else:
            samples: Iterable[Any] = self._source(shard)
            self._reading = islice(iter(samples), self._offset, None)
        return True

    def _end_shard(self) -> None:
        self._reading, self._offset = None, 0
        self._done += 1

    def _where(self) -> tuple[int, int, int]:
        """Round, rank and number of ranks."""
        if self._place is not None:
            return self._place
        return self._channel.place() if self._channel is not None else _place_of_process()

    # -- shards

    def _next_place(self) -> tuple[int, int] | None:
        """The place of the next shard, and the samples of it that are used; None: nothing is left."""
        if self._channel is None:
            _, rank, world = self._where()
            at, end = rank + self._done * world, self.queue.shards * self.queue.epochs
            return (at, 0) if at < end or not end else None
        if not self._leases:
            self._wait()
        if not self._leases:
            return None
        first, after, offset = self._leases[0]
        if first + 1 < after:
            self._leases[0] = (first + 1, after, 0)
        else:
            self._leases.popleft()
        return first, offset

    def _wait(self) -> None:
        """Wait until there are shards, or nothing is left.

        Raises:
            InterruptedError: this process is to leave its round; the error ends its step.
        """
        began, said = time.monotonic(), False
        while not self._leases and not self._over:
            if self._channel.must_leave():
                raise InterruptedError("the round ends while this rank waits for data shards")
            self._ask()
            self._receive(0.2)
            waited = time.monotonic() - began
            if waited > SAY_S and not said:
                said = True
                self._say("waits for data shards: no master gives any; the training waits with it")
        if said:
            self._say(f"has waited {time.monotonic() - began:.1f} s for data shards")

    def _say(self, text: str) -> None:
        print(f"ftcore: rank {self._where()[1]} {text} (queue {self.queue.name})", file=sys.stderr, flush=True)

    def _report(self) -> None:
        """Send how far this rank is after the step, and ask for more if little is left."""
        taken, self._taken = self._taken, 0
        if self._channel is None or not self._is_open:
            return
        reached = (self._step, self._done, self._offset)
        if reached == self._reported:
            return
        steady = self.queue.samples and self._step == self._reported[0] + 1 and not self._skipped
        message: dict[str, Any] = {"marks": [[*reached, taken if steady else -1]]}
        if self._is_asking:
            self._receive(0.0)
        left = self._leased - self._done
        if not self._over and not self._is_asking and left <= max(1, min(self._ahead, self._granted) // 2):
            message["want"] = self._wanted()
        if self._send(message):
            self._reported, self._skipped = reached, False

    def _ask(self) -> None:
        """Open the queue, or ask for more; again if nothing has come for a while."""
        again = self._is_asking and time.monotonic() >= self._asked_at + ASK_S
        if self._is_asking and not again:
            return
        message: dict[str, Any] = {"want": self._want if again else self._wanted()}
        if again or not self._is_open:
            message |= {"open": self.queue.spec, "step": self._reported[0] if self._is_open else self._step}
        self._asked_at = time.monotonic()
        if self._send(message) and not self._is_open:
            self._is_open, self._reported = True, (self._step, 0, 0)

    def _wanted(self) -> int:
        """Decide how many shards to ask for: twice as many each time if they do not last."""
        now = time.monotonic()
        if self._is_open and now < self._asked_at + REFILL_S:
            self._ahead = min(2 * self._ahead, AHEAD_MAX)
        self._want = max(self._want, self._done + self._ahead)
        self._is_asking, self._asked_at = True, now
        return self._want

    def _send(self, message: dict[str, Any]) -> bool:
        round_, rank, _ = self._where()
        sent = bool(self._channel.send({"queue": self.queue.name, "round": round_, "rank": rank, **message}))
        if not sent and "want" in message:
            self._is_asking = False
        return sent

    def _receive(self, wait_s: float) -> None:
        round_, rank, _ = self._where()
        for message in self._channel.receive(wait_s):
            if (message.get("queue"), message.get("round"), message.get("rank")) != (self.queue.name, round_, rank):
                continue
            if message["refused"]:
                raise ValueError(f"queue {self.queue.name}: {message['refused']}")
            before = self._leased
            for at, first, after, offset in message["leases"]:
                known = self._leased - at
                if 0 <= known < after - first:  # the rest is new
                    self._leases.append((first + known, after, 0 if known else offset))
                    self._leased = at + after - first
            self._granted = max(1, self._leased - before)
            self._over = self._over or bool(message["over"])
            self._is_asking = False


def _place_of_process() -> tuple[int, int, int]:
    """Round, rank and number of ranks outside of ``ftrun``."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return 0, torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
