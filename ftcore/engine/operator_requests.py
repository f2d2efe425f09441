"""What an operator may ask for, and whether it makes sense now: judged before it becomes a fact. Pure.

House rules: only what is plain from the state is judged here (a node that nobody knows, a job that has ended); whether
somebody can carry a wish out is for the chain to say, with its reason, in the log. What is true already is no error.
"""

import difflib

import attrs

from ftcore.engine.dispatch import NAMES_MAX
from ftcore.states.model import Contradicted, JobState
from ftcore.states.node import OUTGOING
from ftcore.states.phases import has_ended, is_deferred, is_paused, is_stuck
from ftcore.wording import listed

WISHES = ("pause", "resume", "drain", "evict", "admit", "checkpoint", "stop")
"""Every command of ``operator.commanded``."""

ABOUT_NODES = ("drain", "evict", "admit")
"""Those that name a node."""

HELD = "held"
LET_GO = "let go"
TAKEN_BACK = "taken back"
ADMITTED = "admitted"
RESUMED = "resumed"
RECORDED = "recorded"


@attrs.frozen
class Answer:
    """What can be said of a wish before anybody is asked to carry it out.

    Args:
        reason: for people.
        unknown: it names something that does not exist.
        fulfilled: it is true already, so nothing need be recorded.
    """

    reason: str
    unknown: bool = False
    fulfilled: bool = False


def judge(state: JobState, command: str, node: str = "") -> Answer | None:
    """Why a wish is not worth to be recorded; None: it is.

    Args:
        state: the folded state.
        command: one of ``WISHES``.
        node: the node, for those about nodes.
    """
    if command not in WISHES:
        return Answer(f"no command {command!r}; expected one of {', '.join(WISHES)}")
    if bool(node) != (command in ABOUT_NODES):
        return Answer(f"{command} needs the name of a node" if not node else f"{command} is about no node")
    if not state.run and not is_stuck(state):
        return Answer("no run was submitted yet; try again in a moment")
    if has_ended(state) and not (command == "resume" and state.contradicted is Contradicted.OPEN):
        return Answer(f"job {state.job} has {state.phase} already")
    if command == "stop" or state.contradicted is Contradicted.OPEN:
        return (
            None if command in ("stop", "resume") else Answer("the log is contradicted: resume or stop the job first")
        )
    if state.stop is not None:
        return Answer(f"the job is being stopped: {state.stop.who} asked for it")
    if is_stuck(state) and command != "resume":
        return Answer("the job is stuck, and nothing is decided until it is resumed or stopped")
    if command == "admit":
        return _judge_admission(state, node)
    if command in ABOUT_NODES:
        return _judge_node(state, command, node)
    return _judge_pause(state, command)


def _judge_node(state: JobState, command: str, node: str) -> Answer | None:
    known = state.nodes.get(node)
    if known is None:
        names = [found.node for found in state.alive()]
        near = difflib.get_close_matches(node, names) if len(names) > NAMES_MAX else []
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        there = f"there are: {listed(names, NAMES_MAX)}" if names else "none takes part now"
        return Answer(f"no node {node!r}; {hint}{there}", unknown=True)
    if not known.alive:
        return Answer(f"{node} takes no part any more: it is {known.phase}", fulfilled=True)
    if known.phase in OUTGOING:
        return Answer(f"{node} is on its way out already", fulfilled=True)
    if _is_leaving(state, command, node):
        return Answer(f"{node} leaves once its replacement is ready", fulfilled=True)
    return None


def _is_leaving(state: JobState, command: str, node: str) -> bool:
    """Whether a node trains until another one is ready for its place, and is kept out then, if that is asked for."""
    known = state.incident
    if known is None or not is_deferred(known):
        return False
    return node in (known.terms.exclude if command == "drain" else known.terms.quarantine)


def _judge_admission(state: JobState, node: str) -> Answer | None:
    if node in state.quarantined:
        return None
    if node in state.nodes:
        return Answer(f"{node} is not kept out of this job: it is {state.nodes[node].phase}", fulfilled=True)
    kept_out = ", ".join(list(state.quarantined)[:NAMES_MAX]) or "no node"
    return Answer(f"no node {node!r} was ever here; kept out: {kept_out}", unknown=True)


def _judge_pause(state: JobState, command: str) -> Answer | None:
    paused = is_paused(state) or state.paused_for is not None
    if command == "pause" and state.held:
        return Answer("the job is held already: no recovery begins until it is resumed", fulfilled=True)
    if command == "pause" and is_paused(state):
        return Answer("the job is paused already", fulfilled=True)
    waits = state.request is not None and state.request.command == "pause"
    if command == "resume" and not (paused or state.held or waits or is_stuck(state)):
        return Answer(f"the job is {state.phase}: it is neither paused nor held nor stuck", fulfilled=True)
    return None


def came_of(command: str, before: tuple[bool, str], state: JobState) -> str:
    """What a wish did by itself, as soon as it was a fact: ``held``, ``let go``, ``taken back``,
    ``admitted``, ``resumed`` (from a log that was contradicted, in which the job has ended), or only ``recorded``.

    Args:
        command: the wish.
        before: whether the job was held, and the wish that waited (or nothing), before the fact.
        state: the folded state behind it.
    """
    held, waited = before
    if command == "admit":
        return ADMITTED
    if command == "resume" and state.contradicted is Contradicted.RESUMED:
        return RESUMED
    if command == "pause" and state.held:
        return HELD
    if command == "resume" and held and not state.held:
        return LET_GO
    if command == "resume" and waited == "pause" and state.request is None:
        return TAKEN_BACK
    return RECORDED
