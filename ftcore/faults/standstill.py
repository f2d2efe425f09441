"""Whether ranks that complete no step hang, or only take their time. Pure.

That no step comes proves nothing: an evaluation, a save, a download or a barrier around any of them look the same. So
lack of steps alone is an alert, and a hang only beyond a ceiling. Earlier, a hang needs evidence:

| cause | evidence |
|---|---|
| ``stopped`` | a rank was stopped by a signal, for half of ``hang_look_s`` |
| ``disk`` | a rank is in uninterruptible sleep and makes no progress, for ``hang_idle_s`` |
| ``link-cut`` | TCP connections between two nodes are retransmitted without an answer (``cuts.py``), see below |
| ``timeout`` | a rank is inside a collective for longer than its process group's timeout |
| ``mismatch`` | all ranks are inside collectives, but not the same one, and none makes progress, for ``hang_idle_s`` |
| ``absent`` | ranks are inside a collective; every other rank is outside of it and makes no progress |
| ``ceiling`` | none of the above; no sign of progress beyond the ceiling |

How long an absent rank must have made no progress depends on what could still wake it:

| it waits for | patience |
|---|---|
| a timer that ends beyond the ceiling, or its process is gone | ``hang_look_s`` |
| another thread | ``hang_idle_s`` |
| what may come from elsewhere (a socket, a file, a process), or it is not known what | ``hang_busy_s`` |
| a timer that ends before the ceiling | it is waited for |

Connections between two nodes are given 1.5 times ``hang_look_s``: a switch, a bond or a route that fails over is back
by then, and TCP goes on by itself. As long as a rank outside of all collectives is active, it is ``hang_idle_s``: that
rank may need the link only later. While other ranks complete steps, or nothing is known of them, it is an alert.

A debugger's stop is its user's business and only an alert. Ranks that have all finished their script but not their
process (``finished``) are an alert of their own: to start them again would not help anybody before the ceiling.
"""

from collections.abc import Callable, Iterable, Sequence

import attrs

from ftcore.events.worker import Cut, Stand
from ftcore.faults.cuts import told
from ftcore.faults.taxonomy import LINK_CUT
from ftcore.timing import Timing

ALERT, HANG = "alert", "hang"
TIMEOUT_MARGIN_S = 15.0
"""A collective that is over its timeout is given this long to end by itself."""

SURVIVED_TIMES = 20.0
"""The ceiling is at least so many times the longest gap that the job went on from by itself."""

FAIL_OVER_TIMES = 1.5
"""Times ``hang_look_s``: how long the kernel may get no answer from a peer before the way to it counts as cut."""

PATIENCE_DOUBLINGS_MAX = 5
RANKS_NAMED_MAX = 16
GROUPS_MAX = 12
STACK_CHARS_MAX = 700

_PAIRS = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv"})
"""One rank's send is another's recv: no mismatch."""

_DOES = {
    "runs": "is active",
    "waits": "stands",
    "stopped": "was stopped by a signal",
    "traced": "is stopped by a debugger",
    "disk": "is in uninterruptible sleep (a disk or a network file system)",
    "ended": "has finished its script but does not end",
    "gone": "has ended",
}


@attrs.frozen
class Judgement:
    """What a standstill is taken for.

    Args:
        verdict: ``alert``, ``hang``, or empty.
        cause: see the module's table; ``silent`` and ``finished`` of an alert.
        to_blame: the ranks to blame, the first group first; empty: not known.
        message: who does what, for people.
        cuts: nodes that cannot reach each other, of ``link-cut``.
    """

    verdict: str
    cause: str = ""
    to_blame: tuple[Stand, ...] = ()
    message: str = ""
    cuts: tuple[Cut, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks to blame, the first ones."""
        return tuple(rank for stand in self.to_blame for rank in stand.ranks)[:RANKS_NAMED_MAX]


def ceiling_s(timing: Timing, longest_gap_s: float, earlier: int) -> float:
    """How long no step may be completed before that alone is a hang.

    Args:
        timing: the job's time constants.
        longest_gap_s: the longest time without a step that the job went on from by itself.
        earlier: how many hangs the ceiling has found in this run: each doubles it.
    """
    doubled = 1 << min(earlier, PATIENCE_DOUBLINGS_MAX)
    return float(max(timing.hang_ceiling_s * doubled, SURVIVED_TIMES * longest_gap_s))


def merged(stands: Iterable[Stand]) -> tuple[Stand, ...]:
    """Ranks that do the same put together, the fewest first: where one does something else, it is the one to look at.

    At most ``GROUPS_MAX``; what is beyond is put together by state, collective and what is waited for alone.
    """
    groups = _grouped(stands, lambda stand: (stand.state, stand.op, stand.waits, stand.place))
    if len(groups) > GROUPS_MAX:
        groups = _grouped(groups, lambda stand: (stand.state, stand.op, stand.waits))
    return tuple(sorted(groups, key=lambda stand: (stand.count, stand.ranks))[:GROUPS_MAX])


def _grouped(stands: Iterable[Stand], key: Callable[[Stand], tuple[str, ...]]) -> list[Stand]:
    groups: dict[tuple[str, ...], Stand] = {}
    for stand in stands:
        known = groups.get(key(stand))
        groups[key(stand)] = stand if known is None else _put_together(known, stand)
    return list(groups.values())


def _put_together(one: Stand, other: Stand) -> Stand:
    silent = [stand.silent_s for stand in (one, other) if stand.silent_s is not None]
    ends = [stand.ends_s for stand in (one, other) if stand.ends_s is not None]
    timeouts = [stand.timeout_s for stand in (one, other) if stand.timeout_s is not None]
    return attrs.evolve(
        one,
        ranks=tuple(sorted({*one.ranks, *other.ranks}))[:RANKS_NAMED_MAX],
        count=one.count + other.count,
        place=one.place if one.place == other.place else "",
        still_s=min(one.still_s, other.still_s),
        held_s=min(one.held_s, other.held_s),
        silent_s=min(silent) if len(silent) == 2 else None,
        overdue=one.overdue or other.overdue,
        ends_s=min(ends, default=None),
        timeout_s=max(timeouts) if len(timeouts) == 2 else None,
        stack=one.stack or other.stack,
    )


def judge(stands: Sequence[Stand], size: int, timing: Timing, ceiling: float, cuts: Sequence[Cut] = ()) -> Judgement:
    """What a standstill is to be taken for.

    Args:
        stands: what the ranks do; several for the same are allowed.
        size: ranks in the world.
        timing: the job's time constants.
        ceiling: see ``ceiling_s``.
        cuts: nodes whose workers get no answer from other nodes.
    """
    groups = merged(stands)
    known = sum(stand.count for stand in groups) == size
    found = (
        _stopped(groups, timing)
        or _cut(groups, timing, cuts, known)
        or (_apart(groups, timing, ceiling) if known and size > 1 else None)
        or _timed_out(groups)
        or _ceiling(groups, ceiling)
        or (_finished(groups, timing) if known else None)
        or _silent(groups)
    )
    return found or Judgement("")


def _stopped(groups: Sequence[Stand], timing: Timing) -> Judgement | None:
    for cause, patience_s in (("stopped", timing.hang_look_s / 2), ("disk", timing.hang_idle_s)):
        ill = [stand for stand in groups if stand.state == cause and stand.still_s >= patience_s]
        if ill:
            return _judgement(HANG, cause, ill, groups)
    return None


def _cut(groups: Sequence[Stand], timing: Timing, cuts: Sequence[Cut], known: bool) -> Judgement | None:
    """Nodes that cannot reach each other, while all ranks wait."""
    lasting = tuple(cut for cut in cuts if cut.silent_s >= FAIL_OVER_TIMES * timing.hang_look_s)
    if not lasting:
        return None
    active = any(stand.state == "runs" and not stand.op for stand in groups)
    patient = active and max(cut.silent_s for cut in lasting) < timing.hang_idle_s
    verdict = HANG if known and not patient else ALERT
    return Judgement(verdict, LINK_CUT[1], message=f"{told(lasting)} ({_waited(groups)})", cuts=lasting)


def _apart(groups: Sequence[Stand], timing: Timing, ceiling: float) -> Judgement | None:
    """Ranks that wait for each other: nobody is left who could end it."""
    inside = [stand for stand in groups if stand.op and stand.state in ("waits", "runs")]
    outside = [stand for stand in groups if stand not in inside]
    if not inside or any(stand.held_s < timing.hang_look_s for stand in inside):
        return None
    if outside:
        lasting = all(stand.still_s >= _patience_s(stand, timing, ceiling) for stand in outside)
        return _judgement(HANG, "absent", outside, groups) if lasting else None
    ops = {stand.op for stand in inside}
    if len(ops) > 1 and not ops <= _PAIRS and all(stand.still_s >= timing.hang_idle_s for stand in inside):
        return _judgement(HANG, "mismatch", inside[:1], groups)
    return None


def _patience_s(stand: Stand, timing: Timing, ceiling: float) -> float:
    if stand.state == "gone":
        return timing.hang_look_s
    if stand.state not in ("waits", "ended"):
        return float("inf")
    if stand.ends_s is not None:
        return timing.hang_look_s if stand.ends_s > ceiling else float("inf")
    return timing.hang_idle_s if stand.waits == "lock" else timing.hang_busy_s


def _timed_out(groups: Sequence[Stand]) -> Judgement | None:
    over = [
        stand
        for stand in groups
        if stand.op and stand.timeout_s is not None and stand.held_s >= stand.timeout_s + TIMEOUT_MARGIN_S
    ]
    if not over:
        return None
    return _judgement(HANG, "timeout", [stand for stand in groups if not stand.op] or over, groups)


def _ceiling(groups: Sequence[Stand], ceiling: float) -> Judgement | None:
    late = [stand for stand in groups if stand.silent_s is not None and stand.silent_s >= ceiling]
    if not late:
        return None
    suspects = [stand for stand in groups if not stand.op and stand.state != "gone"]
    return _judgement(HANG, "ceiling", suspects if len(suspects) < len(groups) else (), groups)


def _finished(groups: Sequence[Stand], timing: Timing) -> Judgement | None:
    ended = [stand for stand in groups if stand.state == "ended"]
    if not ended or any(stand.state not in ("ended", "gone") for stand in groups):
        return None
    return _judgement(ALERT, "finished", ended, groups) if all(e.still_s >= timing.hang_idle_s for e in ended) else None


def _silent(groups: Sequence[Stand]) -> Judgement | None:
    if not any(stand.overdue or (stand.state == "traced" and stand.silent_s is not None) for stand in groups):
        return None
    suspects = [stand for stand in groups if not stand.op and stand.state != "gone"]
    return _judgement(ALERT, "silent", suspects if len(suspects) < len(groups) else (), groups)


def _judgement(verdict: str, cause: str, to_blame: Sequence[Stand], groups: Sequence[Stand]) -> Judgement:
    rest = [stand for stand in groups if stand not in to_blame]
    does = [_does(stand) for stand in to_blame]
    others = [_does(stand, "all others" if len(rest) == 1 and to_blame else "") for stand in rest]
    does_what = ", ".join([*does, *others][:GROUPS_MAX])
    return Judgement(verdict, cause, tuple(to_blame), f"{_WHY[cause]}{does_what} ({_waited(groups)})")


def _waited(groups: Sequence[Stand]) -> str:
    silent = [stand.silent_s for stand in groups if stand.silent_s is not None]
    return f"no step for {max(silent):.0f} s" if silent else f"no progress for {max(s.still_s for s in groups):.0f} s"


_WHY = {"timeout": "a collective is older than its timeout: ", "mismatch": "ranks are inside different collectives: "}
_WHY |= dict.fromkeys(("stopped", "disk", "absent", "ceiling", "silent", "finished"), "")


def _does(stand: Stand, who: str = "") -> str:
    """What a group of ranks does, for people."""
    plural = bool(who) or stand.count > 1
    if not who:
        who = f"rank{'s' if plural else ''} {spans(stand.ranks)}"
        who += f" and {stand.count - len(stand.ranks)} more" if stand.count > len(stand.ranks) else ""
    place = f" in {stand.place}" if stand.place else ""
    if stand.op and stand.state in ("waits", "runs"):
        return f"{who} wait{'' if plural else 's'} in {stand.op}"
    does = _DOES[stand.state]
    if plural:
        does = _PLURAL[stand.state]
    if stand.state == "gone":
        return f"{who} {does}"
    if stand.state == "waits" and not place:
        does = "wait" if plural else "waits"
    return f"{who} {does}{place}"


_PLURAL = {
    "runs": "are active",
    "waits": "stand",
    "stopped": "were stopped by a signal",
    "traced": "are stopped by a debugger",
    "disk": "are in uninterruptible sleep (a disk or a network file system)",
    "ended": "have finished their script but do not end",
    "gone": "have ended",
}


def spans(ranks: Sequence[int]) -> str:
    """Ranks in short, as ``0-3, 7``."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in found)
