"""Standstills of workers, hanging or healthy, with the process states and stacks that they show.

The production agent and master evaluate them.
"""

import random
from collections.abc import Mapping
from typing import Final

import attrs

from ftcore.sim.protocol.clock import ns
from ftcore.timing import Timing

MARGIN: Final = 0.15
"""Longest time without progress of a healthy rank, as a fraction of the hang timeout. The margin is large because
progress during a sample is not seen, and with the shortened time constants a sample takes a tenth of the time."""

HEALTHY_S: Final = 20.0
"""Longest healthy standstill in seconds."""


@attrs.frozen
class StandingKind:
    """A kind of standstill, as samples show it.

    Args:
        state, waits: as in ``events.worker.RankState``.
        op: the collective in which the rank waits.
        patience: the time constant below which its gaps of progress stay; empty: it makes progress all the time.
        ends: the kernel reports when its wait ends.
    """

    state: str
    waits: str = ""
    op: str = ""
    patience: str = ""
    ends: bool = False

    @property
    def letter(self) -> str:
        """State letter of its main thread in ``/proc``."""
        return {"runs": "R", "waits": "S", "disk": "D", "stopped": "T"}[self.state]

    def dump(self, name: str) -> str:
        """Its stacks, as faulthandler prints them.

        Args:
            name: name of the standstill, for the innermost function of the script.
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
"""A rank that waits for other ranks."""

EVER_NS: Final = ns(1e6)


@attrs.frozen
class Standing:
    """A standstill of a rank.

    Args:
        name: name of its kind, in ``HEALTHY`` or ``HUNG``.
        kind: its kind.
        local_rank: the rank on the node; None: all.
        since: start, in nanoseconds.
        until: end, in nanoseconds.
        every: nanoseconds between two signs of progress; 0: continuous progress.
    """

    name: str
    kind: StandingKind
    local_rank: int | None
    since: int
    until: int
    every: int

    @property
    def hangs(self) -> bool:
        """Whether it never ends."""
        return self.until >= EVER_NS

    def last(self, now: int) -> int:
        """Time of the last progress."""
        if self.kind.state == "runs":
            return now
        return self.since if self.hangs or not self.every else now - (now - self.since) % self.every


def hang(chance: random.Random, local_rank: int, now: int) -> Standing:
    """A random hang."""
    name = chance.choice(list(HUNG))
    return Standing(name, HUNG[name], local_rank, now, EVER_NS, 0)


def pause(chance: random.Random, local_rank: int | None, now: int, timing: Timing) -> Standing:
    """A random healthy standstill."""
    name = chance.choice(list(HEALTHY))
    kind = HEALTHY[name]
    longest_s = MARGIN * getattr(timing, kind.patience) if kind.patience else 0.0
    every = ns(chance.uniform(0.1, 1.0) * longest_s)
    return Standing(name, kind, local_rank, now, now + ns(chance.uniform(0.1, 1.0) * HEALTHY_S), every)
