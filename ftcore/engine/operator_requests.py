"""Validate an operator's request before it is recorded as a fact. Pure.

Only obvious problems are reported here, such as an unknown node or a job that has ended. Whether a policy can carry out
the request is decided by the chain, and recorded. A request that is already fulfilled is not an error.
"""

import difflib

import attrs

from ftcore.engine.dispatch import NAMES_MAX
from ftcore.events.operator import NOTE_CHARS_MAX
from ftcore.states.model import Contradicted, JobState
from ftcore.states.node import OUTGOING, NodePhase
from ftcore.states.phases import has_ended, is_deferred, is_paused, is_stuck, is_up
from ftcore.wording import listed

REQUESTS = ("pause", "resume", "drain", "evict", "admit", "checkpoint", "stop")
"""Every command of ``operator.commanded``."""

NOTE = "note"
"""The command that records a person's note; it requests nothing, so it is not one of ``REQUESTS``."""

ABOUT_NODES = ("drain", "evict", "admit")
"""The commands that name a node."""

HELD = "held"
LET_GO = "let go"
KEPT = "kept"
TAKEN_BACK = "taken back"
ADMITTED = "admitted"
RESUMED = "resumed"
RECORDED = "recorded"


@attrs.frozen
class ImmediateAnswer:
    """The answer to a request that is not recorded.

    Args:
        reason: why; shown to users.
        unknown: the request names an unknown node.
        fulfilled: the requested state already holds.
    """

    reason: str
    unknown: bool = False
    fulfilled: bool = False


def judge_note(text: str) -> str:
    """Why a note is not recorded; empty if it is. A note is recorded in any state of the job."""
    if not text.strip():
        return "the note is empty"
    if len(text) > NOTE_CHARS_MAX:
        return f"the note has {len(text)} characters; at most {NOTE_CHARS_MAX} are recorded"
    return ""


def judge(state: JobState, command: str, node: str = "") -> ImmediateAnswer | None:
    """Why a request is not recorded; None if it is.

    Args:
        state: the folded state.
        command: one of ``REQUESTS``.
        node: name of the node, for the commands in ``ABOUT_NODES``.
    """
    if command not in REQUESTS:
        return ImmediateAnswer(f"unknown command {command!r}; expected one of {', '.join(REQUESTS)}")
    if bool(node) != (command in ABOUT_NODES):
        return ImmediateAnswer(f"{command} needs the name of a node" if not node else f"{command} does not take a node")
    if not state.run and not is_stuck(state):
        return ImmediateAnswer("the job has not started yet; try again in a few seconds")
    if has_ended(state) and not (command == "resume" and state.log.contradicted is Contradicted.OPEN):
        return ImmediateAnswer(f"job {state.job} has already {state.phase}")
    if command == "stop" or state.log.contradicted is Contradicted.OPEN:
        return (
            None
            if command in ("stop", "resume")
            else ImmediateAnswer("the log is contradicted: a node has seen another one; resume or stop the job first")
        )
    if state.requests.stop is not None:
        return ImmediateAnswer(f"the job is being stopped: {state.requests.stop.who} asked for it")
    if is_stuck(state) and command != "resume":
        return ImmediateAnswer("the job is stuck: it decides nothing until it is resumed or stopped")
    if command == "admit":
        return _judge_admission(state, node)
    if command in ABOUT_NODES:
        return _judge_node(state, command, node)
    return _judge_pause(state, command)


def _judge_node(state: JobState, command: str, node: str) -> ImmediateAnswer | None:
    known = state.membership.nodes.get(node)
    if known is None:
        names = [found.node for found in state.membership.alive()]
        near = difflib.get_close_matches(node, names) if len(names) > NAMES_MAX else []
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        existing = f"expected one of: {listed(names, NAMES_MAX)}" if names else "the job has no nodes now"
        return ImmediateAnswer(f"no node {node!r}; {hint}{existing}", unknown=True)
    if not known.alive:
        return ImmediateAnswer(f"{node} no longer takes part: it is {known.phase}", fulfilled=True)
    if known.phase in OUTGOING:
        return ImmediateAnswer(f"{node} is already leaving", fulfilled=True)
    if _is_leaving(state, command, node):
        return ImmediateAnswer(f"{node} leaves once its replacement is ready", fulfilled=True)
    return None


def _is_leaving(state: JobState, command: str, node: str) -> bool:
    """Whether a node already trains only until its replacement is ready and, for evict, will be quarantined then."""
    incident = state.incident
    if incident is None or not is_deferred(incident):
        return False
    terms = incident.plan_in_force().terms
    return node in (terms.exclude if command == "drain" else terms.quarantine)


def _judge_admission(state: JobState, node: str) -> ImmediateAnswer | None:
    if node in state.membership.quarantined:
        return None
    if node in state.membership.nodes:
        phase = state.membership.nodes[node].phase
        if phase is NodePhase.LEFT:
            return None  # the launcher of `--local-nodes` starts a drained node again when the request is recorded
        return ImmediateAnswer(f"{node} is not quarantined: it is {phase}", fulfilled=True)
    quarantined = ", ".join(list(state.membership.quarantined)[:NAMES_MAX]) or "no node"
    return ImmediateAnswer(f"no node {node!r} in this job; quarantined: {quarantined}", unknown=True)


def _judge_pause(state: JobState, command: str) -> ImmediateAnswer | None:
    paused = is_paused(state) or state.requests.paused_for is not None
    if command == "pause" and state.requests.held:
        return ImmediateAnswer("the job is already held: no recovery begins until it is resumed", fulfilled=True)
    if command == "pause" and is_paused(state) and state.awaited() is None:
        return ImmediateAnswer("the job is already paused", fulfilled=True)
    waits = state.requests.pending is not None and state.requests.pending.command == "pause"
    still = state.membership.count(NodePhase.PAUSED) > 0 and is_up(state)
    if command == "resume" and not (paused or still or state.requests.held or waits or is_stuck(state)):
        return ImmediateAnswer(f"the job is {state.phase}: it is not paused, held or stuck", fulfilled=True)
    return None


def immediate_effect(command: str, before: tuple[bool, str], state: JobState) -> str:
    """The effect of a request as soon as it is recorded: one of the constants above.

    ``kept`` is for a job that a policy has paused; ``resumed`` is for a job that has ended and whose log was
    contradicted.

    Args:
        command: the request.
        before: whether the job was held, and the pending request or an empty text, before the fact.
        state: the folded state after the fact.
    """
    held, waited = before
    if command == "admit":
        return ADMITTED
    if command == "resume" and state.log.contradicted is Contradicted.RESUMED:
        return RESUMED
    if command == "pause" and state.requests.held:
        return HELD
    if command == "pause" and is_paused(state):
        return KEPT
    if command == "resume" and held and not state.requests.held:
        return LET_GO
    if command == "resume" and waited == "pause" and state.requests.pending is None:
        return TAKEN_BACK
    return RECORDED
