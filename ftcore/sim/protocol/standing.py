"""Workers that complete no step: some hang, others are healthy; and what the kernel and their stacks show of either.

What an agent makes of that, and a master of what the agent tells, is production's own.
"""

import random
from collections.abc import Mapping
from typing import Final

import attrs

from ftcore.sim.protocol.clock import ns
from ftcore.timing import Timing

MARGIN: Final = 0.15
"""Of the patience with a rank: how long a healthy one shows no progress at most. What falls between a sample's question
and its answer is not seen, and here, where all is made to go quickly, that is a tenth of all."""

HEALTHY_S: Final = 20.0
"""The longest healthy standstill."""


@attrs.frozen
class StandingKind:
    """A way of standing still, as samples show it.

    Args:
        state, waits: as in ``events.worker.Stand``.
        op: the collective that it stands in.
        patience: the time constant that its progress keeps below; empty: it makes progress all the time.
        ends: the kernel tells when its wait ends.
    """

    state: str
    waits: str = ""
    op: str = ""
    patience: str = ""
    ends: bool = False

    @property
    def letter(self) -> str:
        """The state of its main thread, as the kernel has it."""
        return {"runs": "R", "waits": "S", "disk": "D", "stopped": "T"}[self.state]

    def dump(self, name: str) -> str:
        """Its stacks, as faulthandler prints them.

        Args:
            name: what it does, for the innermost function of the script.
        """
        collective = f'  File "/torch/distributed/distributed_c10d.py", line 1 in {self.op}\n' if self.op else ""
        own = f'  File "train.py", line 7 in {name.replace(" ", "_") or "step"}\n'
        return f"Current thread 0x1 (most recent call first):\n{collective}{own}"


HEALTHY: Final[Mapping[str, StandingKind]] = {
    "evaluates": StandingKind("runs"),
    "waits for an upload": StandingKind("waits", "outside", patience="hang_busy_s"),
    "waits for a thread that saves": StandingKind("waits", "lock", patience="hang_idle_s"),
    "writes to slow storage": StandingKind("disk", patience="hang_idle_s"),
    "sleeps": StandingKind("waits", "sleep", ends=True),
}

HUNG: Final[Mapping[str, StandingKind]] = {
    "stopped": StandingKind("stopped"),
    "sleeps for ever": StandingKind("waits", "sleep", ends=True),
    "waits for a lock for ever": StandingKind("waits", "lock"),
    "waits for an answer for ever": StandingKind("waits", "outside"),
    "in uninterruptible sleep": StandingKind("disk"),
    "in another collective": StandingKind("waits", "outside", op="broadcast"),
    "polls for ever": StandingKind("runs"),
}
WAITS_FOR_OTHERS: Final = StandingKind("waits", "outside", op="all_reduce")
"""A rank that would go on if the others did."""

EVER_NS: Final = ns(1e6)


@attrs.frozen
class Standing:
    """What a rank does instead of a step.

    Args:
        name: of its kind, in ``HEALTHY`` or ``HUNG``.
        kind: what samples show.
        local_rank: which of the node's; None: all.
        since: when it began, in nanoseconds.
        until: when it ends by itself.
        every: nanoseconds between two signs of progress; 0: all the time.
    """

    name: str
    kind: StandingKind
    local_rank: int | None
    since: int
    until: int
    every: int

    @property
    def hangs(self) -> bool:
        """It never ends."""
        return self.until >= EVER_NS

    def last(self, now: int) -> int:
        """When it made progress last."""
        if self.kind.state == "runs":
            return now
        return self.since if self.hangs or not self.every else now - (now - self.since) % self.every


def hang(chance: random.Random, local_rank: int, now: int) -> Standing:
    """A rank that never goes on."""
    name = chance.choice(list(HUNG))
    return Standing(name, HUNG[name], local_rank, now, EVER_NS, 0)


def pause(chance: random.Random, local_rank: int | None, now: int, timing: Timing) -> Standing:
    """A rank that takes its time."""
    name = chance.choice(list(HEALTHY))
    kind = HEALTHY[name]
    longest_s = MARGIN * getattr(timing, kind.patience) if kind.patience else 0.0
    every = ns(chance.uniform(0.1, 1.0) * longest_s)
    return Standing(name, kind, local_rank, now, now + ns(chance.uniform(0.1, 1.0) * HEALTHY_S), every)
