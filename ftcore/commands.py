"""What we want done: imperatives as data.

House rules: a command carries no behaviour and no live object. It is recorded inside ``action.ordered`` *before* it is
issued, under an effect id that is the same on every delivery, so whoever carries it out may see it twice.

Commands address a set of nodes; what a single node needs beyond the command (its slice of the world) is computed from
the folded state when the order is sent, never recorded per node.
"""

from typing import TypeAlias

import msgspec

from ftcore.ids import Round


class StartWorkers(msgspec.Struct, frozen=True, tag_field="do", tag="start_workers"):
    """Start this node's workers of a round that was formed.

    Args:
        round: the round to start; an agent that has obeyed a newer one refuses.
    """

    round: Round


class StopWorkers(msgspec.Struct, frozen=True, tag_field="do", tag="stop_workers"):
    """Stop all workers of a round and of any before it: TERM, grace, KILL, whole process groups.

    Args:
        round: the newest round to stop.
        grace_s: seconds between TERM and KILL.
    """

    round: Round
    grace_s: float


class OpenStore(msgspec.Struct, frozen=True, tag_field="do", tag="open_store"):
    """Serve a fresh TCPStore for a round that is about to be formed, on a port of its own.

    Args:
        round: the round that the store will serve; stores of rounds before the previous one are closed.
    """

    round: Round


class ReleaseNode(msgspec.Struct, frozen=True, tag_field="do", tag="release_node"):
    """The job has ended: leave, with the job's exit code.

    Args:
        outcome: ``succeeded``, ``failed`` or ``stopped``.
        exit_code: what ``ftrun`` exits with.
        reason: one sentence for the user.
    """

    outcome: str
    exit_code: int
    reason: str


Command: TypeAlias = StartWorkers | StopWorkers | OpenStore | ReleaseNode
"""Everything that the master may order."""
