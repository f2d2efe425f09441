"""Workers that complete no step: some of them hang, others are healthy, and what their agent tells of either.

It mirrors ``runtime/agent/watch_progress.py``: workers without a sign of progress for ``hang_look_s`` are sampled every
half of it, and what changed between two samples is progress. What the kernel and the Python stacks would show follows
from the kind of standing. What it means is decided by the production engine.
"""

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from ftcore.events.worker import Stand
from ftcore.faults.cuts import RETRIES_MIN, Net, Unanswered
from ftcore.faults.standstill import merged
from ftcore.sim.clock import ns
from ftcore.timing import Timing

if TYPE_CHECKING:
    from ftcore.sim.net import Network
    from ftcore.sim.training import Gang, Ranks

MARGIN: Final = 0.6
"""Of the patience with a rank: how long a healthy one shows no progress at most. Samples are half a look apart."""

HEALTHY_S: Final = 20.0
"""The longest healthy standstill."""


@attrs.frozen
class Kind:
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


HEALTHY: Final[Mapping[str, Kind]] = {
    "evaluates": Kind("runs"),
    "waits for an upload": Kind("waits", "outside", patience="hang_busy_s"),
    "waits for a thread that saves": Kind("waits", "lock", patience="hang_idle_s"),
    "writes to slow storage": Kind("disk", patience="hang_idle_s"),
    "sleeps": Kind("waits", "sleep", ends=True),
}

HUNG: Final[Mapping[str, Kind]] = {
    "stopped": Kind("stopped"),
    "sleeps for ever": Kind("waits", "sleep", ends=True),
    "waits for a lock for ever": Kind("waits", "lock"),
    "waits for an answer for ever": Kind("waits", "outside"),
    "in uninterruptible sleep": Kind("disk"),
    "in another collective": Kind("waits", "outside", op="broadcast"),
    "polls for ever": Kind("runs"),
}
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
    kind: Kind
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


@attrs.define
class _Sampled:
    """What was found of a local rank; times in nanoseconds."""

    at: int
    doing: str
    still_since: int
    held_since: int


class StandWatch:
    """An agent's: samples its workers.

    Args:
        timing: the job's time constants.
        look_ns: how often it looks.
    """

    def __init__(self, timing: Timing, look_ns: int) -> None:
        self._timing, self._look_ns = timing, look_ns
        self._round = self._signed = self._looked = self._sampled_at = 0
        self._known: dict[int, _Sampled] = {}
        self._stands: tuple[Stand, ...] = ()
        self._net = Net()
        self._news = False

    def forget(self) -> None:
        """Another master listens: it is told everything."""
        self._news = bool(self._stands)

    def news(self) -> tuple[tuple[Stand, ...] | None, Net | None]:
        """What the next heartbeat tells; None: as before."""
        news, self._news = self._news, False
        return (self._stands, self._net) if news else (None, None)

    def look(self, ranks: "Ranks | None", gang: "Gang | None", net: "Network", now: int) -> None:
        """Look at the workers, if there are any."""
        away = now - self._looked if now - self._looked > 5 * self._look_ns + ns(1.0) else 0
        self._looked = now
        if ranks is None or gang is None or not any(ranks.alive):
            return
        if ranks.round != self._round:
            self._round, self._signed, away = ranks.round, now, 0
            self._set((), Net())
        self._signed = max(self._signed + away, ranks.mono)
        if away:
            self._known.clear()
        standing = ranks.standing
        stopped = standing is not None and standing.kind.state == "stopped"
        if ranks.paused:
            self._signed = now
        if now - self._signed < ns(self._timing.hang_look_s) and not stopped:
            self._known.clear()
            if self._stands:
                self._set((), Net())
            return
        if not self._known or now - self._sampled_at >= ns(self._timing.hang_look_s / 2):
            self._sampled_at = now
            self._sample(ranks, now)
            self._set(merged(self._stand(ranks, local, now) for local in self._known), _net(ranks, gang, net))

    def _set(self, stands: tuple[Stand, ...], net: Net) -> None:
        self._stands, self._net, self._news = stands, net, True

    def _sample(self, ranks: "Ranks", now: int) -> None:
        self._known = {local: known for local, known in self._known.items() if ranks.alive[local]}
        for local, alive in enumerate(ranks.alive):
            if not alive:
                continue
            standing = ranks.standing_of(local)
            doing = standing.name if standing is not None else "all_reduce"
            known = self._known.get(local)
            if known is None or known.doing != doing:
                self._known[local] = _Sampled(now, doing, now, now)
                continue
            if standing is not None and standing.last(now) > known.at:
                known.still_since = now
            known.at = now

    def _stand(self, ranks: "Ranks", local: int, now: int) -> Stand:
        known, standing = self._known[local], ranks.standing_of(local)
        kind = standing.kind if standing is not None else Kind("waits", "outside", op="all_reduce")
        silent_s = (now - self._signed) / 1e9
        return Stand(
            ranks=(ranks.part.base_rank + local,),
            state=kind.state,
            place=known.doing,
            op=kind.op,
            waits=kind.waits,
            still_s=(now - known.still_since) / 1e9,
            held_s=(now - known.held_since) / 1e9,
            silent_s=silent_s if ranks.steps else None,
            overdue=bool(ranks.steps) and silent_s >= self._timing.hang_idle_s,
            ends_s=(standing.until - now) / 1e9 if standing is not None and kind.ends else None,
        )


def _net(ranks: "Ranks", gang: "Gang", net: "Network") -> Net:
    """A host gets no answer from one whose frames do not reach it."""
    own = ranks.process.host.name
    peers: Sequence[str] = [other.process.host.name for other in gang.members.values() if other is not ranks]
    silent = {peer: net.silent_s(peer, own) for peer in peers}
    return Net(
        addresses=(own,),
        unanswered=tuple(
            Unanswered(
                address=peer, connections=1, silent_s=silent_s, retries=RETRIES_MIN, ranks=(ranks.part.base_rank,)
            )
            for peer, silent_s in sorted(silent.items())
            if silent_s
        ),
    )
