"""Decides whether ranks that complete no step hang, or are only slow. Pure.

A missing step is not proof of a hang: an evaluation, a save, a download or a barrier around one of them look the same.
So missing steps alone are an alert, and a hang only beyond a ceiling. Before that, a hang needs evidence:

| cause | evidence |
|---|---|
| ``stopped`` | a rank is stopped by a signal, for half of ``hang_look_s`` |
| ``disk`` | a rank is in uninterruptible sleep and makes no progress, for ``hang_idle_s`` |
| ``link-cut`` | TCP connections between two nodes are retransmitted without an answer (``cuts.py``), see below |
| ``timeout`` | a rank is inside a collective for longer than its process group's timeout |
| ``mismatch`` | all ranks are inside collectives, but not the same one, for ``hang_idle_s``, see below |
| ``absent`` | ranks are inside a collective; every other rank is outside of it and makes no progress |
| ``loader`` | a worker process of a rank's data loader is stuck while the rank waits for it |
| ``limit`` | a section of the script exceeds its limit, see below |
| ``ceiling`` | none of the above; no sign of progress beyond the ceiling |

Collectives are not the same one if their names differ, the ranks' last steps differ, or the numbers differ that torch
gives the collectives of a process group: the rank with the lower number or step is behind. Ranks with other names or
steps must have made no progress; for other numbers it is enough that each rank stays where it is.

How long an absent rank must have made no progress depends on what it waits for:

| the rank waits for | patience |
|---|---|
| a timer that ends beyond the ceiling, or its process has ended | ``hang_look_s`` |
| another thread | ``hang_idle_s`` |
| an external event (a socket, a file, a process), or an unknown one | ``hang_busy_s`` |
| a timer that ends before the ceiling | until the timer ends |

A section (``shm/sections.py``) has a limit that the script or the policy file declares, or one that is learned from its
earlier times; the time between two steps has a learned one as well, from the 20th step on. A declared limit is a hang,
whatever the rank does; until then the rank is never absent, and the ceiling is at least that limit. Beyond learned
limits it is a hang only if no rank outside of a collective is active (its patience as in the table above), or if a rank
in a section whose times are known has taken longer than its limit and ``hang_busy_s``. Before its first step, a rank
that makes no progress at all hangs at the ceiling, if it has created an optimizer or an earlier round made steps.

For a cut between two nodes the patience is 1.5 times ``hang_look_s``: a failover of a switch, a bond or a route is
complete by then, and TCP recovers. While a rank outside of all collectives is active, the patience is ``hang_idle_s``:
that rank may need the link only later. While other ranks complete steps or their state is unknown, a cut is an alert.

A rank stopped by a debugger is only an alert. If all ranks have finished their script but not their process
(``finished``), that is an alert of its own: before the ceiling a restart would not help.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs
import msgspec

from ftcore.events.worker import Cut, RankState
from ftcore.faults.cuts import describe
from ftcore.faults.frames import BACKWARD
from ftcore.faults.taxonomy import LINK_CUT
from ftcore.timing import Timing
from ftcore.wording import spans

ALERT, HANG = "alert", "hang"
TIMEOUT_MARGIN_S = 15.0
"""Seconds for a collective beyond its timeout to end by itself."""

SURVIVED_TIMES = 20.0
"""Least ratio of the ceiling to the longest gap after which the job continued by itself."""

FAIL_OVER_TIMES = 1.5
"""Times ``hang_look_s``: how long a kernel may get no answer from a peer before the path to it counts as cut."""

PATIENCE_DOUBLINGS_MAX = 5
RANKS_NAMED_MAX = 16
GROUPS_MAX = 12
STACK_CHARS_MAX = 700

_PAIRS = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv"})
"""One rank's send matches another's recv: not a mismatch."""

_STATES = {
    "runs": "is active",
    "waits": "waits",
    "stopped": "was stopped by a signal",
    "traced": "is stopped by a debugger",
    "disk": "is in uninterruptible sleep (a disk or a network file system)",
    "ended": "has finished its script but does not end",
    "gone": "has ended",
}


@attrs.frozen
class StandstillAssessment:
    """The verdict on a standstill.

    Args:
        verdict: ``alert``, ``hang``, or empty.
        cause: see the module's table; of an alert also ``silent`` and ``finished``.
        to_blame: groups of the ranks to blame; empty: not known.
        message: the states of the ranks, as text.
        cuts: for ``link-cut``: nodes that cannot reach each other.
    """

    verdict: str
    cause: str = ""
    to_blame: tuple[RankState, ...] = ()
    message: str = ""
    cuts: tuple[Cut, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks to blame, the first ones."""
        return tuple(rank for group in self.to_blame for rank in group.ranks)[:RANKS_NAMED_MAX]


def ceiling_s(timing: Timing, longest_gap_s: float, earlier: int) -> float:
    """Return the ceiling: seconds without a step after which that alone is a hang.

    Args:
        timing: the job's time constants.
        longest_gap_s: the longest gap between steps after which the job continued by itself, in seconds.
        earlier: hangs that the ceiling has found in this run; each doubles it.
    """
    doubled = 1 << min(earlier, PATIENCE_DOUBLINGS_MAX)
    return float(max(timing.hang_ceiling_s * doubled, SURVIVED_TIMES * longest_gap_s))


def merged(stands: Iterable[RankState]) -> tuple[RankState, ...]:
    """Group ranks in the same state, the smallest group first: a single rank in another state is the one to look at.

    If there are more than ``GROUPS_MAX`` groups, the place is ignored; further groups are dropped.
    """
    groups = _grouped(stands, lambda group: (*_kind(group), group.loader, group.place, *_position(group)))
    if len(groups) > GROUPS_MAX:
        groups = _grouped(groups, lambda group: (*_kind(group), *_position(group)))
    if len(groups) > GROUPS_MAX:
        groups = _grouped(groups, _kind)
    return tuple(sorted(groups, key=lambda group: (group.count, group.ranks))[:GROUPS_MAX])


def _kind(group: RankState) -> tuple[Any, ...]:
    return group.state, group.op, group.waits, group.section, group.declared


def _position(group: RankState) -> tuple[Any, ...]:
    """How far ranks inside a collective have come."""
    return (group.step, group.group, group.call) if group.op else ()


def _grouped(stands: Iterable[RankState], key: Callable[[RankState], tuple[Any, ...]]) -> list[RankState]:
    groups: dict[tuple[Any, ...], RankState] = {}
    for group in stands:
        known = groups.get(key(group))
        groups[key(group)] = group if known is None else _combine(known, group)
    return list(groups.values())


def _combine(one: RankState, other: RankState) -> RankState:
    silent = [group.silent_s for group in (one, other) if group.silent_s is not None]
    ends = [group.ends_s for group in (one, other) if group.ends_s is not None]
    timeouts = [group.timeout_s for group in (one, other) if group.timeout_s is not None]
    inside = [group.section_s for group in (one, other) if group.section_s is not None]
    limits = [group.limit_s for group in (one, other) if group.limit_s is not None]
    same_call = (one.group, one.call) == (other.group, other.call)
    return msgspec.structs.replace(
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
        section_s=min(inside) if len(inside) == 2 else None,
        limit_s=max(limits) if len(limits) == 2 else None,
        step=one.step if one.step == other.step else None,
        call=one.call if same_call else None,
        group=one.group if same_call else "",
        trains=one.trains and other.trains,
        loader=one.loader or other.loader,
    )


def judge(
    stands: Sequence[RankState],
    size: int,
    timing: Timing,
    ceiling: float,
    cuts: Sequence[Cut] = (),
    *,
    limits: Mapping[str, float] = MappingProxyType({}),
    steps_expected: bool = False,
) -> StandstillAssessment:
    """Judge a standstill.

    Args:
        stands: the states of the ranks; several entries with the same state are allowed.
        size: number of ranks in the world.
        timing: the job's time constants.
        ceiling: see ``ceiling_s``.
        cuts: nodes whose workers get no answer from other nodes.
        limits: declared limits of sections in seconds, by name.
        steps_expected: an earlier round of this run made steps.
    """
    groups = merged(_declared(group, limits) for group in stands)
    known = sum(group.count for group in groups) == size
    ceiling = max([ceiling, *(group.limit_s or 0.0 for group in groups if group.declared)])
    found = (
        _stopped(groups, timing)
        or _cut(groups, timing, cuts, known)
        or (_absent_or_mismatched(groups, timing, ceiling) if known and size > 1 else None)
        or _loader(groups, timing, ceiling)
        or _timed_out(groups)
        or _limit(groups, timing, ceiling, known)
        or _ceiling(groups, ceiling)
        or (_idle_before_steps(groups, ceiling, steps_expected) if known else None)
        or (_finished(groups, timing) if known else None)
        or _silent(groups)
    )
    return found or StandstillAssessment("")


def _declared(group: RankState, limits: Mapping[str, float]) -> RankState:
    """The same ranks with the policy file's limit of their section; the script's own one comes first."""
    limit_s = limits.get(group.section) if not group.declared else None
    return group if limit_s is None else msgspec.structs.replace(group, limit_s=limit_s, declared=True)


def _stopped(groups: Sequence[RankState], timing: Timing) -> StandstillAssessment | None:
    for cause, patience_s in (("stopped", timing.hang_look_s / 2), ("disk", timing.hang_idle_s)):
        affected = [group for group in groups if group.state == cause and group.still_s >= patience_s]
        if affected:
            return _judgement(HANG, cause, affected, groups)
    return None


def _cut(groups: Sequence[RankState], timing: Timing, cuts: Sequence[Cut], known: bool) -> StandstillAssessment | None:
    """Nodes that cannot reach each other, while all ranks wait."""
    lasting = tuple(cut for cut in cuts if cut.silent_s >= FAIL_OVER_TIMES * timing.hang_look_s)
    if not lasting:
        return None
    active = any(group.state == "runs" and not group.op for group in groups)
    patient = active and max(cut.silent_s for cut in lasting) < timing.hang_idle_s
    verdict = HANG if known and not patient else ALERT
    return StandstillAssessment(verdict, LINK_CUT[1], message=f"{describe(lasting)} ({_waited(groups)})", cuts=lasting)


def _absent_or_mismatched(groups: Sequence[RankState], timing: Timing, ceiling: float) -> StandstillAssessment | None:
    """Ranks wait in collectives that can never complete: ranks are absent, or the collectives differ."""
    inside = [group for group in groups if group.op and group.state in ("waits", "runs")]
    outside = [group for group in groups if group not in inside]
    if not inside or any(group.held_s < timing.hang_look_s for group in inside):
        return None
    if outside:
        return _judgement(HANG, "absent", outside, groups) if _is_lasting(outside, timing, ceiling) else None
    return _mismatched(inside, groups, timing)


def _mismatched(
    inside: Sequence[RankState], groups: Sequence[RankState], timing: Timing
) -> StandstillAssessment | None:
    """All ranks are inside collectives, but not the same one."""
    ops = {group.op for group in inside}
    calls = {group.call for group in inside if group.call is not None}
    counted = all(group.call is not None for group in inside) and len({group.group for group in inside}) == 1
    if counted and len(calls) > 1 and all(group.held_s >= timing.hang_idle_s for group in inside):
        return _judgement(HANG, "mismatch", [group for group in inside if group.call == min(calls)], groups)
    if ops <= _PAIRS or any(group.still_s < timing.hang_idle_s for group in inside):
        return None
    steps = {group.step for group in inside if group.step is not None}
    stepped = len(steps) > 1 and all(group.step is not None for group in inside)
    if len(ops) > 1 or stepped:
        behind = [group for group in inside if group.step == min(steps)] if stepped else inside[:1]
        return _judgement(HANG, "mismatch", behind, groups)
    return None


def _loader(groups: Sequence[RankState], timing: Timing, ceiling: float) -> StandstillAssessment | None:
    """A rank waits for a process of its data loader that is stuck."""
    stuck = [group for group in groups if group.loader and _is_lasting([group], timing, ceiling)]
    return _judgement(HANG, "loader", stuck, groups) if stuck else None


def _limit(groups: Sequence[RankState], timing: Timing, ceiling: float, known: bool) -> StandstillAssessment | None:
    """A section, or the time without a step, exceeds its limit."""
    declared = [group for group in groups if group.declared and _is_over(group)]
    if declared:
        return _judgement(HANG, "limit", _outside(declared) or declared, groups)
    longer = [group for group in groups if group.section and _is_over(group, timing.hang_busy_s)]
    if longer:
        return _judgement(HANG, "limit", _outside(longer) or longer, groups)
    if not known or not all(map(_is_over, groups)) or not _is_lasting(_outside(groups), timing, ceiling):
        return None
    inside = [group for group in groups if group.op]
    if any(group.held_s < timing.hang_idle_s or _computes(group) for group in inside):
        return None
    return _judgement(HANG, "limit", _outside(groups) if inside else (), groups)


def _computes(group: RankState) -> bool:
    """Whether ranks in a backward pass may compute; in a named collective they spin."""
    return group.state == "runs" and group.op == BACKWARD


def _outside(groups: Iterable[RankState]) -> list[RankState]:
    return [group for group in groups if not group.op and group.state != "gone"]


def _is_over(group: RankState, least_s: float = 0.0) -> bool:
    """Whether ranks have exceeded the limit of their section, or of the time without a step."""
    lasts = group.section_s if group.section else group.silent_s
    return group.limit_s is not None and lasts is not None and lasts >= max(group.limit_s, least_s)


def _is_lasting(groups: Iterable[RankState], timing: Timing, ceiling: float) -> bool:
    """Whether all of these ranks have made no progress for longer than what they wait for allows."""
    return all(group.still_s >= _patience_s(group, timing, ceiling) for group in groups)


def _patience_s(group: RankState, timing: Timing, ceiling: float) -> float:
    if group.state == "gone":
        return timing.hang_look_s
    if group.state not in ("waits", "ended") or (group.declared and not _is_over(group)):
        return float("inf")
    if group.ends_s is not None:
        return timing.hang_look_s if group.ends_s > ceiling else float("inf")
    return timing.hang_idle_s if group.waits == "lock" else timing.hang_busy_s


def _timed_out(groups: Sequence[RankState]) -> StandstillAssessment | None:
    over = [
        group
        for group in groups
        if group.op and group.timeout_s is not None and group.held_s >= group.timeout_s + TIMEOUT_MARGIN_S
    ]
    if not over:
        return None
    return _judgement(HANG, "timeout", [group for group in groups if not group.op] or over, groups)


def _ceiling(groups: Sequence[RankState], ceiling: float) -> StandstillAssessment | None:
    if not any(group.silent_s is not None and group.silent_s >= ceiling for group in groups):
        return None
    suspects = _outside(groups)
    return _judgement(HANG, "ceiling", suspects if len(suspects) < len(groups) else (), groups)


def _idle_before_steps(
    groups: Sequence[RankState], ceiling: float, steps_expected: bool
) -> StandstillAssessment | None:
    """All ranks will make steps, have made none yet, and have made no progress of any kind since the ceiling."""
    for group in groups:
        if group.silent_s is not None or not (group.trains or steps_expected) or group.still_s < ceiling:
            return None
    suspects = _outside(groups)
    return _judgement(HANG, "ceiling", suspects if len(suspects) < len(groups) else (), groups)


def _finished(groups: Sequence[RankState], timing: Timing) -> StandstillAssessment | None:
    ended = [group for group in groups if group.state == "ended"]
    if not ended or any(group.state not in ("ended", "gone") for group in groups):
        return None
    return _judgement(ALERT, "finished", ended, groups) if all(e.still_s >= timing.hang_idle_s for e in ended) else None


def _silent(groups: Sequence[RankState]) -> StandstillAssessment | None:
    if not any(group.overdue or (group.state == "traced" and group.silent_s is not None) for group in groups):
        return None
    suspects = [group for group in groups if not group.op and group.state != "gone"]
    return _judgement(ALERT, "silent", suspects if len(suspects) < len(groups) else (), groups)


def _judgement(
    verdict: str, cause: str, to_blame: Sequence[RankState], groups: Sequence[RankState]
) -> StandstillAssessment:
    rest = [group for group in groups if group not in to_blame]
    far = cause == "mismatch"
    does = [describe_group(group, far=far) for group in to_blame]
    others = [describe_group(group, "all others" if len(rest) == 1 and to_blame else "", far) for group in rest]
    does_what = ", ".join([*does, *others][:GROUPS_MAX])
    return StandstillAssessment(verdict, cause, tuple(to_blame), f"{_WHY[cause]}{does_what} ({_waited(groups)})")


def _waited(groups: Sequence[RankState]) -> str:
    silent = [group.silent_s for group in groups if group.silent_s is not None]
    return f"no step for {max(silent):.0f} s" if silent else f"no progress for {max(s.still_s for s in groups):.0f} s"


_WHY = {"timeout": "a collective exceeded its timeout: ", "mismatch": "ranks are inside different collectives: "}
_WHY |= {"limit": "longer than the limit: "}
_WHY |= dict.fromkeys(("stopped", "disk", "absent", "loader", "ceiling", "silent", "finished"), "")


def describe_group(group: RankState, subject: str = "", far: bool = False) -> str:
    """Describe the state of a group of ranks.

    Args:
        group: the ranks.
        subject: what to call them, in the plural; empty: by their numbers.
        far: also how far they have come.
    """
    plural = bool(subject) or group.count > 1
    if not subject:
        subject = f"rank{'s' if plural else ''} {spans(group.ranks)}"
        subject += f" and {group.count - len(group.ranks)} more" if group.count > len(group.ranks) else ""
    place = f" in {group.place}" if group.place else ""
    if group.op and group.state in ("waits", "runs"):
        return f"{subject} wait{'' if plural else 's'} in {group.op}{_reached(group) if far else ''}{_during(group)}"
    if group.loader:
        return f"{subject} wait{'' if plural else 's'}{place} for its data loader: {group.loader}{_during(group)}"
    state = (_STATES_OF_SEVERAL if plural else _STATES)[group.state]
    return f"{subject} {state}" if group.state == "gone" else f"{subject} {state}{place}{_during(group)}"


def _during(group: RankState) -> str:
    """The section of ranks, with its limit once that is exceeded."""
    if not group.section or group.section_s is None:
        return ""
    limit = f", limit {group.limit_s:.0f} s" if group.limit_s is not None and _is_over(group) else ""
    return f" ({group.section} for {group.section_s:.0f} s{limit})"


def _reached(group: RankState) -> str:
    """How far ranks inside a collective have come."""
    call = f" number {group.call} of {group.group}" if group.call is not None else ""
    return f"{call}{f' after step {group.step}' if group.step is not None else ''}"


_STATES_OF_SEVERAL = {
    "runs": "are active",
    "waits": "wait",
    "stopped": "were stopped by a signal",
    "traced": "are stopped by a debugger",
    "disk": "are in uninterruptible sleep (a disk or a network file system)",
    "ended": "have finished their script but do not end",
    "gone": "have ended",
}
