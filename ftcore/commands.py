"""Commands to agents, the platform and the master, as data.

House rules: a command has no behaviour and no live object. It is recorded in ``action.ordered`` *before* it is sent,
under an effect ID that is the same on every delivery: the receiver may get it twice and must deduplicate.

A command addresses a set of nodes. The data of a single node (its slice of the world) are computed from the folded
state when the order is sent, never recorded per node.
"""

from typing import TypeAlias

import msgspec

from ftcore.ids import Round


class StartWorkers(msgspec.Struct, frozen=True, tag_field="do", tag="start_workers"):
    """Start this node's workers of a formed round; parked processes enter it and are not started again.

    Args:
        round: the round to start; an agent that has carried out an order of a newer round refuses.
    """

    round: Round


class StopWorkers(msgspec.Struct, frozen=True, tag_field="do", tag="stop_workers"):
    """Stop all workers of a round and of earlier ones: TERM, grace period, KILL, to whole process groups.

    Args:
        round: the newest round to stop.
        grace_s: grace period between TERM and KILL, in seconds.
    """

    round: Round
    grace_s: float


class OpenStore(msgspec.Struct, frozen=True, tag_field="do", tag="open_store"):
    """Open a new TCPStore on its own port for a round that is about to be formed.

    Args:
        round: the round that the store serves; stores older than the previous round's are closed.
    """

    round: Round


class ReleaseNode(msgspec.Struct, frozen=True, tag_field="do", tag="release_node"):
    """Leave the job, which has ended, with its exit code.

    Args:
        outcome: ``succeeded``, ``failed`` or ``stopped``.
        exit_code: exit code of ``ftrun``.
        reason: one sentence for the user.
    """

    outcome: str
    exit_code: int
    reason: str


class FindBoundary(msgspec.Struct, frozen=True, tag_field="do", tag="find_boundary"):
    """Let every worker stop at its next step boundary, and report which one that is.

    The next order names one boundary for all workers: the latest of the reported ones, which every worker can reach.
    If no such order follows, the workers go on by themselves.

    Args:
        round: the round of the workers.
    """

    round: Round


class PauseWorkers(msgspec.Struct, frozen=True, tag_field="do", tag="pause_workers"):
    """Pause every worker at one step boundary; processes and process groups stay alive.

    Args:
        round: the round whose workers pause.
        boundary: number of the boundary, counted from the start of the round; 0: in the terms of a plan, before it is
            chosen, and in logs before revision 7.
    """

    round: Round
    boundary: int = 0


class ResumeWorkers(msgspec.Struct, frozen=True, tag_field="do", tag="resume_workers"):
    """Resume paused workers.

    Args:
        round: the round whose workers are paused.
    """

    round: Round


class ParkWorkers(msgspec.Struct, frozen=True, tag_field="do", tag="park_workers"):
    """Park the workers: they leave their process groups and wait, alive and with their state, for the next round.

    ``StartWorkers`` of that round lets parked processes enter it, and starts a process only where one is missing.

    Args:
        round: the newest round to leave.
        grace_s: seconds after which a worker that cannot be freed is stopped instead.
    """

    round: Round
    grace_s: float


class SaveCheckpoint(msgspec.Struct, frozen=True, tag_field="do", tag="save_checkpoint"):
    """Save the state of the last completed step once, by one rank of each replica group, even if other ranks failed.

    Args:
        round: the round whose state is saved.
        ranks: global ranks that save; empty: every surviving rank.
        boundary: number of the step boundary at which every rank saves, counted from the start of the round; 0: each
            rank saves where it is, because others are missing.
        hold: save in memory only, and wait at the boundary for the order to stop. If none follows, the workers go on by
            themselves.
    """

    round: Round
    ranks: tuple[int, ...] = ()
    boundary: int = 0
    hold: bool = False


class PersistShards(msgspec.Struct, frozen=True, tag_field="do", tag="persist_shards"):
    """Write shards from the memory of a node's keeper to storage.

    Args:
        round: the round in which they were staged.
        step: their step.
        ranks: the global ranks whose shards are written.
        writers: by node, those that it writes: others may hold copies. Empty in an agent's order, whose ``ranks`` are
            its own, and in older logs: each node writes what it has.
    """

    round: Round
    step: int
    ranks: tuple[int, ...]
    writers: tuple[tuple[str, tuple[int, ...]], ...] = ()


class CommitCheckpoint(msgspec.Struct, frozen=True, tag_field="do", tag="commit_checkpoint"):
    """Write the manifest of a checkpoint whose shards are all on storage; doing it again changes nothing.

    Args:
        round: the round in which its shards were staged.
        step: its step.
        files: the shards' files, by replica group.
    """

    round: Round
    step: int
    files: tuple[str, ...]


class PaceSaves(msgspec.Struct, frozen=True, tag_field="do", tag="pace_saves"):
    """Let workers that leave it to the master save to storage at these steps from now on.

    Args:
        round: the round of the workers.
        every: they save after each step that is a multiple of this.
        since: the first step at which they may; before it, they save nothing.
    """

    round: Round
    every: int
    since: int


class ReplaceNodes(msgspec.Struct, frozen=True, tag_field="do", tag="replace_nodes"):
    """For the platform: replace nodes.

    Args:
        nodes: names of the nodes to replace.
        isolate: cordon their machines.
        keep: they train until the replacements are ready: no node is ended before a ``delete_nodes``.
    """

    nodes: tuple[str, ...]
    isolate: bool
    keep: bool = False


class DeleteNodes(msgspec.Struct, frozen=True, tag_field="do", tag="delete_nodes"):
    """For the platform: end nodes whose replacements were launched while they still trained.

    Args:
        nodes: their names.
        isolate: cordon their machines.
    """

    nodes: tuple[str, ...]
    isolate: bool


class CheckHealth(msgspec.Struct, frozen=True, tag_field="do", tag="check_health"):
    """Check this node's devices, and its links to the other nodes of its group.

    Args:
        round: the next round.
        stage: number of the stage of this check, from 1; a node checks itself in the first only.
        groups: groups of nodes that exchange data; a node receives only its own group.
        store: ``host:port`` of the rendezvous store of the groups; empty: no exchange.
        within_s: seconds after which a node ends the check and reports its results so far.
        label: the common label of the nodes of each group: they run one all-reduce. Empty: pairs exchange data.
    """

    round: Round
    stage: int = 1
    groups: tuple[tuple[str, ...], ...] = ()
    store: str = ""
    within_s: float = 60.0
    label: str = ""


class AskPolicy(msgspec.Struct, frozen=True, tag_field="do", tag="ask_policy"):
    """For the master: ask an external policy, in its own process, and report its answer as a fact.

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
    | FindBoundary
    | PauseWorkers
    | ResumeWorkers
    | ParkWorkers
    | SaveCheckpoint
    | PersistShards
    | CommitCheckpoint
    | PaceSaves
    | ReplaceNodes
    | DeleteNodes
    | CheckHealth
    | AskPolicy
)
"""All commands. ``ReplaceNodes`` and ``DeleteNodes`` go to the platform, ``AskPolicy`` to the master."""

IN_PLACE = (FindBoundary, PauseWorkers, ResumeWorkers, SaveCheckpoint)
"""Commands that leave the processes of a round in place."""

OF_KEEPER = (PersistShards, CommitCheckpoint)
"""Commands to the keeper of a node; they need no worker."""

PLATFORM = "@platform"
"""The addressee of orders to the platform; no node may have this name."""

ADVISER = "@adviser"
"""The addressee of questions to external policies; no node may have this name."""


def tag_of(command: Command) -> str:
    """Return the name of a command's kind, for example ``stop_workers``."""
    return str(type(command).__struct_config__.tag)
