"""Policies that are not ftcore's own: what they declare, how they are asked, what an answer of theirs must be.

They come by entry point, group ``ftcore.policies``, and are asked in a process of their own (``runtime/advise.py``),
because they may raise, sleep, print or crash. Whatever comes back is judged here before it becomes a fact: after that
it is a verdict like any other.

House rules: nothing that such a policy declares or answers is believed before it was looked at; a fault of a policy is
one line, for the log and for whoever wrote it. A policy that changed what it was given has faulted, although it was
given a copy: in a test on its author's machine there is no copy.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs
import msgspec

from ftcore.commands import IN_PLACE, PauseWorkers, ResumeWorkers, RetryStep, SaveCheckpoint, tag_of
from ftcore.errors import UsageError
from ftcore.events.policy import PolicyAnswered, PolicyFaulted, PolicyLoaded, Terms
from ftcore.faults.extra import extra_rules
from ftcore.policies.base import Ability, Pass, PlanKind, Policy, Take
from ftcore.policies.chain import BUILT_IN
from ftcore.policies.options import Option, Options, described, filled
from ftcore.states.model import JobState, to_json
from ftcore.states.world import usable
from ftcore.wording import format_duration, plural

GROUP = "ftcore.policies"
"""The group of entry points whose objects are policies."""

RULES_GROUP = "ftcore.faults"
"""The group of entry points whose objects are lists of rules, or functions that return them."""

INCIDENTS = ("fault", "warning", "request", "opportunity", "interrupted")
WISHES = ("stop", "pause", "resume", "checkpoint", "drain", "evict", "grow")
"""What a policy may deal with: kinds of incidents, and what a request may ask for."""

RESERVED = ("faults", "optional")
"""Keys of every entry of a chain; no option may be called so."""

REASON_CHARS_MAX = 500
ALERT_CHARS_MAX = 4000
NAMES_MAX = 10_000
SECONDS_MAX = 30 * 86400.0
"""No plan waits longer: whoever wants that wants the job to end."""
_SECONDS_TOLD = f"{SECONDS_MAX:.0f} ({format_duration(SECONDS_MAX)})"

THEN: Mapping[type[Any], tuple[str, ...]] = {
    PauseWorkers: ("pause",),
    ResumeWorkers: ("resolve",),
    RetryStep: ("verify",),
    SaveCheckpoint: ("continue", "resolve"),
}
"""What may be ordered in place, and what may follow it."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@attrs.frozen(kw_only=True)
class External:
    """What a policy declares.

    Args:
        name: its name in the chain: that of its entry point.
        origin: distribution and version that it comes from.
        doc, conditions, kinds, needs: as in ``policies.base.Policy``.
        options: what it may be told, by name.
        error: why it cannot be used; then nothing else is known of it.
    """

    name: str
    origin: str
    doc: str = ""
    conditions: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    needs: tuple[Ability, ...] = ()
    options: Mapping[str, Option] = attrs.field(factory=dict)
    error: str = ""


@attrs.frozen(kw_only=True)
class Offered:
    """What installed packages offer, as far as a policy file's words may refer to it.

    Args:
        names: of their policies.
        details: gives the details of numeric faults that their rules tell; called only where a word is not known else.
    """

    names: Collection[str] = ()
    details: Callable[[], Collection[str]] = tuple


NOTHING = Offered()
"""As if no package with policies or rules were installed."""


def declare(policy: Any, name: str, origin: str) -> External:
    """What a policy declares, looked at.

    Args:
        policy: the object, or a class that makes it without arguments.
        name: the name of its entry point.
        origin: distribution and version.

    Raises:
        UsageError: a declaration is missing or cannot be right; says which and why.
    """
    made = instance(policy)
    problem = _of_name(made, name) or _of_words(made) or _of_scope(made) or _of_options(made)
    if problem:
        raise UsageError(problem)
    return External(
        name=name,
        origin=origin,
        doc=made.doc,
        conditions=tuple(made.conditions),
        kinds=tuple(made.kinds),
        needs=tuple(Ability(need) for need in made.needs),
        options=described(made.options),
    )


def options_of(policy: str, external: Mapping[str, External]) -> Mapping[str, Option]:
    """What a policy may be told, by its name.

    Args:
        policy: one of ftcore's or of ``external``.
        external: the others, by name.
    """
    return described(BUILT_IN[policy].options) if policy in BUILT_IN else external[policy].options


def instance(policy: Any) -> Any:
    """The policy that an entry point names: an object, or a class that makes it without arguments."""
    return policy() if isinstance(policy, type) else policy


def _of_name(policy: Any, name: str) -> str:
    if _NAME.fullmatch(name) is None:
        return f"the entry point's name {name!r} is no name for a policy: lower-case letters, digits and _, at most 64"
    if name in BUILT_IN:
        return f"{name} is the name of a policy of ftcore; choose another"
    if getattr(policy, "name", None) != name:
        return f"its `name` is {getattr(policy, 'name', None)!r}, its entry point is called {name!r}; they must agree"
    return "" if callable(getattr(policy, "considers", None)) else "it has no method `considers`"


def _of_words(policy: Any) -> str:
    doc = getattr(policy, "doc", None)
    if not _is_line(doc):
        return f"its `doc` is {_shown(doc)}, expected one sentence"
    conditions = getattr(policy, "conditions", None)
    if not isinstance(conditions, tuple | list) or not conditions or not all(map(_is_line, conditions)):
        return f"its `conditions` are {_shown(conditions)}, expected sentences that say when it takes and passes"
    return ""


def _of_scope(policy: Any) -> str:
    kinds = getattr(policy, "kinds", None)
    known = (*INCIDENTS, *WISHES)
    if not isinstance(kinds, tuple | list) or not kinds or any(kind not in known for kind in kinds):
        return f"its `kinds` are {_shown(kinds)}, expected some of: {', '.join(known)}"
    needs = getattr(policy, "needs", None)
    if not isinstance(needs, tuple | list) or any(need not in tuple(Ability) for need in needs):
        return f"its `needs` are {_shown(needs)}, expected abilities: {', '.join(Ability)}"
    return ""


def _of_options(policy: Any) -> str:
    options = getattr(policy, "options", None)
    if not isinstance(options, type) or not issubclass(options, Options):
        return f"its `options` are {_shown(options)}, expected a subclass of ftcore.policies.options.Options"
    for name in options.__struct_fields__:
        if _NAME.fullmatch(name) is None or name in RESERVED:
            return f"the option {name!r} needs another name: lower-case letters, digits and _, none of {RESERVED}"
    try:
        described(options)
    except TypeError as error:
        return str(error)
    return ""


@attrs.frozen(kw_only=True)
class RuleSource:
    """What one entry point gives as rules.

    Args:
        name: of the entry point.
        origin: distribution and version.
        items: the rules as they are, unread.
        error: why there are none.
    """

    name: str
    origin: str
    items: tuple[Any, ...] = ()
    error: str = ""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy is asked.

    Args:
        policy: its name.
        origin: distribution and version that the job began with.
        effect: the order that asks.
        options: what the chain sets.
        job: JSON of the folded state.
    """

    policy: str
    origin: str
    effect: str
    options: dict[str, Any]
    job: msgspec.Raw


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: an answer, or why there is none."""

    answered: PolicyAnswered | None = None
    faulted: str = ""


def with_rules(loaded: PolicyLoaded, items: Sequence[Any], origin: str) -> PolicyLoaded:
    """The same chain with the rules of a package behind the file's own; the source says so.

    Args:
        loaded: what is in force without them.
        items: the rules, as they would stand in a file.
        origin: distribution and version that they come from.

    Raises:
        UsageError: a rule cannot be used, or its name is taken.
    """
    extra_rules(items, f"rules of {origin}")
    rules = (*loaded.rules, *(dict(item) for item in items))
    try:
        extra_rules(rules, "rules")
    except UsageError as error:
        raise UsageError(f"the rules of {origin} do not go with those of {loaded.source}: {error}") from error
    return attrs.evolve(loaded, source=f"{loaded.source} with rules of {origin}", rules=rules)


# -- asking -----------------------------------------------------------------------------------------------------------


def read_state(state: bytes) -> JobState:
    """The folded state in its JSON (``states.model.to_json``)."""
    return msgspec.json.decode(state, type=JobState)


def put(policy: Policy, state: bytes, options: Mapping[str, Any], effect: str) -> PolicyAnswered | PolicyFaulted:
    """Ask a policy about the open incident of a job; whatever it does, there is an answer.

    Args:
        policy: the policy.
        state: JSON of the folded state, with an open incident; it is given a copy.
        options: what the chain sets; the policy's own defaults stand behind it.
        effect: the order that asks.
    """
    job = read_state(state)
    assert job.incident is not None
    given, before = filled(policy.options, options), to_json(job)
    try:
        verdict = policy.considers(job.incident, job, given)
    except (Exception, SystemExit) as error:
        return PolicyFaulted(effect=effect, policy=policy.name, error=f"raised {describe(error)}")
    if given != filled(policy.options, options) or not _is_as(job, before):
        return PolicyFaulted(effect=effect, policy=policy.name, error="changed what it was given")
    try:
        answer = _answer(verdict, policy.name, effect)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        return PolicyFaulted(effect=effect, policy=policy.name, error=f"answered nonsense: {one_line(str(error))}")
    problem = misfit(answer, job)
    if problem:
        return PolicyFaulted(effect=effect, policy=policy.name, error=f"answered nonsense: {problem}")
    return answer


def describe(error: BaseException) -> str:
    """An exception in one line, with the place that raised it."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    file = place.tb_frame.f_code.co_filename.rpartition("/")[2] if place is not None else ""
    where = f" ({file}:{place.tb_lineno})" if place is not None else ""
    try:
        text = str(error)
    except Exception:
        text = ""
    return one_line(f"{type(error).__name__}: {text}".removesuffix(": ")) + where


def one_line(text: str, chars_max: int = 300) -> str:
    """The first line of a text that says something, bounded and printable."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    line = "".join(char if char.isprintable() else "?" for char in line)
    return line if len(line) <= chars_max else f"{line[: chars_max - 3]}..."


def _is_as(job: JobState, before: bytes) -> bool:
    try:
        return to_json(job) == before
    except (TypeError, ValueError, RecursionError, AttributeError, msgspec.MsgspecError):
        return False


def _answer(verdict: Any, name: str, effect: str) -> PolicyAnswered:
    if isinstance(verdict, Pass):
        made = PolicyAnswered(
            effect=effect, policy=name, verdict="pass", reason=verdict.reason, again_s=verdict.again_s
        )
    elif isinstance(verdict, Take):
        made = PolicyAnswered(
            effect=effect,
            policy=name,
            verdict="take",
            reason=verdict.reason,
            plan=verdict.plan,
            grace_s=verdict.grace_s,
            deadline_s=verdict.deadline_s,
            outcome=verdict.outcome,
            exit_code=verdict.exit_code,
            wait_s=verdict.wait_s,
            terms=verdict.terms if verdict.terms != Terms() else None,
        )
    else:
        raise ValueError(f"{_shown(verdict)}, expected a Take or a Pass")
    # Nothing but the codec looks at the type of every field; what it reads back is what the log would hold.
    return msgspec.json.decode(msgspec.json.encode(made), type=PolicyAnswered)


# -- judging ----------------------------------------------------------------------------------------------------------


def misfit(answer: PolicyAnswered, job: JobState) -> str:
    """Why an answer cannot be carried out by this job, in one line; empty if it can be.

    Args:
        answer: what was said, every field of its type.
        job: the folded state that it was said about, or a later one.
    """
    if answer.verdict not in ("take", "pass"):
        return f"verdict: {_shown(answer.verdict)}, expected take or pass"
    if not _is_line(answer.reason, REASON_CHARS_MAX):
        return f"reason: expected one printable line of at most {REASON_CHARS_MAX} characters"
    for name in ("grace_s", "deadline_s", "wait_s", "again_s"):
        value = getattr(answer, name)
        if not 0 <= value <= SECONDS_MAX:
            return f"{name}: {value:g}, expected seconds from 0 to {_SECONDS_TOLD}"
    if answer.verdict == "pass":
        return ""
    terms = answer.terms if answer.terms is not None else Terms()
    match answer.plan:
        case PlanKind.RESTART:
            return _of_round(terms, job)
        case PlanKind.IN_PLACE:
            return _of_order(terms, job)
        case PlanKind.TELL:
            return _of_alert(terms)
        case PlanKind.END:
            return _of_end(answer)
        case _:
            return f"plan: {_shown(answer.plan)}, expected one of: {', '.join(PlanKind)}"


def _of_round(terms: Terms, job: JobState) -> str:
    if terms.survivors not in ("stop", "park"):
        return f"terms.survivors: {_shown(terms.survivors)}, expected stop or park"
    if terms.check not in ("", "suspect", "all"):
        return f"terms.check: {_shown(terms.check)}, expected nothing, suspect or all"
    for field in ("exclude", "quarantine", "avoid", "replace"):
        names = getattr(terms, field)
        unknown = next((name for name in names if name not in job.nodes), None)
        if unknown is not None:
            return f"terms.{field}: the job has no node {_shown(unknown)}"
        if len(set(names)) < len(names) or len(names) > NAMES_MAX:
            return f"terms.{field}: a node stands there twice"
    loose = next((name for name in terms.quarantine if name not in terms.exclude), None)
    if loose is not None:
        return f"terms.quarantine: {loose} is not in terms.exclude"
    if terms.want != 0 and (job.spec is None or terms.want < 0 or usable(terms.want, job.spec) != terms.want):
        return f"terms.want: {terms.want}, expected 0, or {_sizes(job)}"
    if terms.patience_s is not None and not 0 <= terms.patience_s <= SECONDS_MAX:
        return f"terms.patience_s: {terms.patience_s:g}, expected seconds from 0 to {_SECONDS_TOLD}"
    if terms.command is not None:
        return "terms.command: a plan that restarts orders nothing in place"
    if terms.rollback_to is not None and terms.rollback_to not in job.checkpoints:
        return f"terms.rollback_to: no checkpoint of step {terms.rollback_to} is known"
    if terms.skip < 0 or terms.skip_unit not in ("batches", "tokens"):
        return f"terms.skip: {terms.skip} {_shown(terms.skip_unit)}, expected a count of batches or tokens"
    return ""


def _sizes(job: JobState) -> str:
    spec = job.spec
    if spec is None:
        return "no number of nodes: the job was not submitted yet"
    if spec.sizes:
        return f"one of {', '.join(map(str, spec.sizes))} nodes"
    unit = f", in multiples of {spec.node_unit}" if spec.node_unit > 1 else ""
    least = f"{spec.nodes_min} to " if spec.nodes_min < spec.nodes_max else ""
    return f"{least}{plural(spec.nodes_max, 'node')}{unit}"


def _of_order(terms: Terms, job: JobState) -> str:
    command = terms.command
    if not isinstance(command, IN_PLACE):
        allowed = ", ".join(kind.__name__ for kind in IN_PLACE)
        return f"terms.command: {_shown(command and tag_of(command))}, expected one of: {allowed}"
    followers = THEN[type(command)]
    if terms.then not in followers:
        return f"terms.then: {_shown(terms.then)}, expected for {tag_of(command)}: {' or '.join(followers)}"
    if job.world is None or command.round != job.world.round:
        newest = job.world.round if job.world is not None else "none"
        return f"terms.command: it is for round {command.round}, the newest is {newest}"
    if terms.then == "pause" and (job.request is None or job.incident is None or job.incident.kind != "request"):
        return "terms.then: nobody asked for a pause"
    ranks = command.ranks if isinstance(command, RetryStep | SaveCheckpoint) else ()
    if any(not 0 <= rank < job.world.size for rank in ranks):
        return f"terms.command: ranks {_shown(ranks)}, expected ranks from 0 to {job.world.size - 1}"
    if isinstance(command, RetryStep) and command.restore not in ("nothing", "replica", "snapshot"):
        return f"terms.command.restore: {_shown(command.restore)}, expected nothing, replica or snapshot"
    return "terms.command.step: below 0" if isinstance(command, RetryStep) and command.step < 0 else ""


def _of_alert(terms: Terms) -> str:
    if terms.severity not in ("info", "warning", "critical"):
        return f"terms.severity: {_shown(terms.severity)}, expected info, warning or critical"
    if not terms.alert.strip() or len(terms.alert) > ALERT_CHARS_MAX:
        return f"terms.alert: expected a message of at most {ALERT_CHARS_MAX} characters"
    return ""


def _of_end(answer: PolicyAnswered) -> str:
    if answer.outcome not in ("failed", "stopped"):
        return f"outcome: {_shown(answer.outcome)}, expected failed or stopped"
    return "" if 1 <= answer.exit_code <= 255 else f"exit_code: {answer.exit_code}, expected 1 to 255"


def _is_line(text: Any, chars_max: int = REASON_CHARS_MAX) -> bool:
    return isinstance(text, str) and text.strip() != "" and len(text) <= chars_max and text.isprintable()


def _shown(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        return one_line(repr(value), 80)
    except Exception:
        return f"a {type(value).__name__}"
