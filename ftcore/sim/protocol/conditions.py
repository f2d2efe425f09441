"""Conditions of a simulation: how long operations take, which of them fail, and what may legitimately stop training."""

import asyncio
import random
from collections.abc import Collection

from ftcore.sim.protocol.clock import Scheduler, ns
from ftcore.sim.protocol.hosts import SimMachine
from ftcore.sim.protocol.training import SIGKILL, JobTraining, NodeWorkers


class Conditions:
    """Draws durations and failures of operations.

    Args:
        clock: virtual time.
        chance: random generator.
        training: the training, whose workers fail on bad hosts.
        faults: the enabled kinds of fault.

    Attributes:
        on: operations may fail; false once everything is repaired.
        harms: everything that may legitimately stop training, with its virtual time in nanoseconds.
        stubborn: share of workers that use their whole grace period.
    """

    def __init__(self, clock: Scheduler, chance: random.Random, training: JobTraining, faults: Collection[str]) -> None:
        self._clock, self._chance, self._training, self._faults = clock, chance, training, faults
        self.on = True
        self.harms: list[tuple[int, str]] = []
        self.stubborn = 0.2

    def harm(self, what: str) -> str:
        """Record something that may legitimately stop training."""
        self.harms.append((self._clock.now, what))
        return what

    async def sleep(self, most_s: float) -> None:
        """Sleep for a random time of at most ``most_s`` seconds."""
        await asyncio.sleep(self._chance.uniform(0.001, most_s))

    def fails(self) -> bool:
        """Whether an operation fails."""
        return self.on and self._chance.random() < 0.2

    def dies_at_write(self) -> bool:
        """Whether to kill the master at this write."""
        return self._has("master_dies_at_write") and self._chance.random() < 0.05

    def disk_ns(self) -> int:
        """Duration of a disk operation."""
        return ns(self._chance.uniform(0.0, 0.01))

    def start_s(self) -> float:
        """Seconds for starting the workers."""
        return self._chance.uniform(0.05, 3.0 if self._chance.random() < 0.2 else 0.5)

    def unstartable(self, host: SimMachine) -> bool:
        """Whether workers cannot be started on a host."""
        bad = host.bad or (self._has("unstartable") and self._chance.random() < 0.2)
        return bad and self._chance.random() < 0.5

    def started(self, ranks: NodeWorkers) -> None:
        """Workers of a node have started; on a bad host one of them fails soon."""
        host = ranks.process.host
        if host.bad and self._chance.random() < 0.8:
            delay = ns(self._chance.uniform(0.0, 3.0))
            ranks.process.after(delay, lambda: self._training.end(ranks, 0, SIGKILL if host.bad else 1))
            self.harm(f"bad host {host.name}")

    def stop_s(self, grace_s: float) -> float:
        """Seconds for stopping the workers."""
        stubborn = self._chance.random() < self.stubborn
        return grace_s + 0.1 if stubborn else min(grace_s, self._chance.uniform(0.0, 0.5))

    def perform_s(self) -> float:
        """Seconds for an in-place order."""
        return self._chance.uniform(0.01, 1.0)

    def verdict(self, host: SimMachine) -> str:
        """Verdict of a health check of a single host; sometimes wrong."""
        honest = "faulty" if host.bad else "healthy"
        if self.on and self._chance.random() < 0.1:
            self.harm(f"wrong result of a check of {host.name}")
            return self._chance.choice(("healthy", "slow", "failed", "unavailable", "faulty"))
        return honest

    def exchange(self, broken: bool) -> str:
        """Result of an exchange of data; sometimes wrong."""
        lies = self.on and self._chance.random() < 0.1
        if lies:
            self.harm("wrong result of an exchange of data")
        return "failed" if broken != lies else "passed"

    def _has(self, kind: str) -> bool:
        return self.on and kind in self._faults
