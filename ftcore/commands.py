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


class PauseWorkers(msgspec.Struct, frozen=True, tag_field="do", tag="pause_workers"):
    """Have every worker wait at its next step boundary, its processes and groups alive.

    Args:
        round: the round whose workers pause.
    """

    round: Round


class ResumeWorkers(msgspec.Struct, frozen=True, tag_field="do", tag="resume_workers"):
    """Let paused workers go on.

    Args:
        round: the round whose workers wait.
    """

    round: Round


class RetryStep(msgspec.Struct, frozen=True, tag_field="do", tag="retry_step"):
    """Compute the step that failed once more, in the processes there are, on the same batch.

    Args:
        round: the round.
        step: the step to compute again: the one after the last that every rank completed.
        restore: what the state before the step comes from: ``nothing`` (it is whole), ``replica`` (the ranks named
            take it from a rank that holds the same) or ``snapshot`` (every rank takes back its own).
        ranks: global ranks whose state is repaired, for ``replica``.
        tolerate: if the same step shows the same trouble again, accept it.
    """

    round: Round
    step: int
    restore: str
    ranks: tuple[int, ...] = ()
    tolerate: bool = False


class ParkWorkers(msgspec.Struct, frozen=True, tag_field="do", tag="park_workers"):
    """Have the workers leave their process groups and wait, alive and with their state, for the next round.

    Args:
        round: the newest round to leave.
        grace_s: seconds after which a worker that cannot be freed is stopped instead.
    """

    round: Round
    grace_s: float


class SaveCheckpoint(msgspec.Struct, frozen=True, tag_field="do", tag="save_checkpoint"):
    """Save the state of the last completed step once, one saver to a replica group, whatever else has failed.

    Args:
        round: the round whose state is saved.
        ranks: global ranks that save; empty: every rank that lives.
    """

    round: Round
    ranks: tuple[int, ...] = ()


class ReplaceNodes(msgspec.Struct, frozen=True, tag_field="do", tag="replace_nodes"):
    """The platform's order: give these nodes up and launch others for their places.

    Args:
        nodes: names of the nodes given up.
        isolate: keep their machines from being chosen again.
        keep: they train until the others are ready: nothing is ended before ``delete_nodes`` says so.
    """

    nodes: tuple[str, ...]
    isolate: bool
    keep: bool = False


class DeleteNodes(msgspec.Struct, frozen=True, tag_field="do", tag="delete_nodes"):
    """The platform's order: end nodes for whose places others were launched while they still trained.

    Args:
        nodes: their names.
        isolate: keep their machines from being chosen again.
    """

    nodes: tuple[str, ...]
    isolate: bool


class CheckHealth(msgspec.Struct, frozen=True, tag_field="do", tag="check_health"):
    """Check this node's devices, and its links to the others of its group.

    Args:
        round: the round that is to come.
        stage: the how-manieth grouping of this check, from 1; what a node finds by itself is looked for in the first.
        groups: nodes that exchange data with each other; a node is sent its own group alone.
        store: ``host:port`` of the store at which groups meet; empty: nothing is exchanged.
        within_s: seconds after which a node ends the check and tells what it has.
        label: the label that the nodes of each group have in common: all of them sum data up; empty: pairs exchange it.
    """

    round: Round
    stage: int = 1
    groups: tuple[tuple[str, ...], ...] = ()
    store: str = ""
    within_s: float = 60.0
    label: str = ""


class AskPolicy(msgspec.Struct, frozen=True, tag_field="do", tag="ask_policy"):
    """The master's own: ask a policy that is not ftcore's, in a process of its own, and report its answer as a fact.

    Args:
        policy: its name.
        incident: the incident it is asked about.
        revision: the incident's revision.
    """

    policy: str
    incident: str
    revision: int


Command: TypeAlias = (
    StartWorkers
    | StopWorkers
    | OpenStore
    | ReleaseNode
    | PauseWorkers
    | ResumeWorkers
    | RetryStep
    | ParkWorkers
    | SaveCheckpoint
    | ReplaceNodes
    | DeleteNodes
    | CheckHealth
    | AskPolicy
)
"""Everything that may be ordered: ``ReplaceNodes`` and ``DeleteNodes`` are the platform's, ``AskPolicy`` the master's,
the rest a node's."""

IN_PLACE = (PauseWorkers, ResumeWorkers, RetryStep, SaveCheckpoint)
"""Commands that leave the processes of a round where they are."""

PLATFORM = "@platform"
"""The addressee of orders to the platform; no node may be called so."""

ADVISER = "@adviser"
"""The addressee of questions to policies that are not ftcore's; no node may be called so."""


def tag_of(command: Command) -> str:
    """The name of a command's kind, as ``stop_workers``."""
    return str(type(command).__struct_config__.tag)
