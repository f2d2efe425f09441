"""The ranks of a hang, read from the event log: which ranks hang, which wait for them, and where each of them is."""

from collections.abc import Sequence

import attrs

from ftcore.events.worker import RankState, StandstillJudged, WorkersStood
from ftcore.faults.standstill import describe_group

HANGS, WAITS, UNKNOWN = "hangs", "waits", "unknown"


@attrs.frozen(kw_only=True)
class HangingRanks:
    """Ranks in the same state.

    Args:
        ranks: global ranks, the lowest ones.
        count: number of ranks.
        role: ``hangs`` (they are to blame), ``waits`` (for others, inside a collective) or ``unknown``.
        node: node of the first rank to blame; empty for other ranks.
        what: what they do, as text.
        location, process_group: ``place`` and ``group`` of ``events.worker.RankState``.
        state, op, waits, still_s, silent_s, section, section_s, limit_s, step, call, loader: as there.
        frames: Python frames of one of them, innermost first.
        stacks: the file on its node with the complete stacks; empty: none.
    """

    ranks: tuple[int, ...]
    count: int
    role: str
    node: str
    what: str
    state: str
    location: str
    op: str
    waits: str
    still_s: float
    silent_s: float | None
    section: str
    section_s: float | None
    limit_s: float | None
    step: int | None
    call: int | None
    process_group: str
    loader: str
    frames: tuple[str, ...]
    stacks: str


def ranks_of(stood: WorkersStood, judged: StandstillJudged) -> tuple[HangingRanks, ...]:
    """The ranks of a hang by what they do, those to blame first, from their states and the verdict on them."""
    return tuple(sorted((_ranks_of(stand, judged) for stand in stood.stands), key=_order))


def _order(group: HangingRanks) -> tuple[bool, int]:
    return group.role != HANGS, group.count


def _ranks_of(stand: RankState, judged: StandstillJudged) -> HangingRanks:
    blamed = not set(judged.ranks).isdisjoint(stand.ranks)
    role = HANGS if blamed else WAITS if stand.op else UNKNOWN
    first: Sequence[int] = judged.ranks[:1]
    return HangingRanks(
        ranks=stand.ranks,
        count=stand.count,
        role=role,
        node=judged.node if set(first) & set(stand.ranks) else "",
        what=describe_group(stand),
        location=stand.place,
        process_group=stand.group,
        frames=tuple(line for line in stand.stack.split("\n") if line),
        **{
            name: getattr(stand, name)
            for name in ("state", "op", "waits", "still_s", "silent_s", "section", "section_s", "limit_s")
        },
        **{name: getattr(stand, name) for name in ("step", "call", "loader", "stacks")},
    )
