"""Policies of other packages: their declarations, how they are asked, and the validation of their answers.

They are found by entry points of the group ``ftcore.policies``, and run in a separate process
(``runtime/plugin_process.py``), because they may raise, sleep, print or crash. Declarations and answers are validated
here before an answer becomes a fact; then it is a verdict like any other. A policy error is recorded as one line.

A policy that modifies its arguments has faulted, although ftcore passes a copy: its author's tests may pass none.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs
import msgspec

from ftcore.commands import IN_PLACE, PauseWorkers, ResumeWorkers, SaveCheckpoint, tag_of
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
REQUESTS = ("stop", "pause", "resume", "checkpoint", "drain", "evict", "grow")
"""The accepted ``kinds`` of a policy: kinds of incidents, and kinds of requests."""

RESERVED = ("faults", "optional")
"""Keys of every chain entry; options must not have these names."""

REASON_CHARS_MAX = 500
ALERT_CHARS_MAX = 4000
NAMES_MAX = 10_000
SECONDS_MAX = 30 * 86400.0
"""Upper limit of all durations of a plan in seconds."""
_SECONDS_MAX_TEXT = f"{SECONDS_MAX:.0f} ({format_duration(SECONDS_MAX)})"

THEN: Mapping[type[Any], tuple[str, ...]] = {
    PauseWorkers: ("pause",),
    ResumeWorkers: ("resolve",),
    SaveCheckpoint: ("continue", "resolve"),
}
"""The commands that a plan may order in place, with the accepted values of ``Terms.then``."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@attrs.frozen(kw_only=True)
class External:
    """The declaration of a policy of another package.

    Args:
        name: name in the chain: the name of the entry point.
        origin: distribution and version of the package.
        doc, conditions, kinds, needs: as in ``policies.base.Policy``.
        options: its options by name.
        error: why the policy cannot be used; then the other fields are empty.
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
    """What installed packages provide that a policy file may refer to.

    Args:
        names: names of their policies.
        details: returns the details of numeric faults in their rules; called only if a word is not known otherwise.
    """

    names: Collection[str] = ()
    details: Callable[[], Collection[str]] = tuple


NOTHING = Offered()
"""No package with policies or rules is installed."""


def declare(policy: Any, name: str, origin: str) -> External:
    """Validate the declaration of a policy.

    Args:
        policy: the policy, or a class that can be called without arguments.
        name: name of the entry point.
        origin: distribution and version of the package.

    Raises:
        UsageError: a declaration is missing or invalid; the message says which one and why.
    """
    made = instance(policy)
    problem = _check_name(made, name) or _check_texts(made) or _check_scope(made) or _check_options(made)
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
    """The options of a policy.

    Args:
        policy: name of a built-in policy or of one in ``external``.
        external: policies of other packages by name.
    """
    return described(BUILT_IN[policy].options) if policy in BUILT_IN else external[policy].options


def instance(policy: Any) -> Any:
    """The policy of an entry point: the object itself, or an instance of the class that it names."""
    return policy() if isinstance(policy, type) else policy


def _check_name(policy: Any, name: str) -> str:
    if _NAME.fullmatch(name) is None:
        return f"invalid entry point name {name!r}; expected lower-case letters, digits and _, at most 64 characters"
    if name in BUILT_IN:
        return f"{name} is the name of a built-in policy; choose another one"
    if getattr(policy, "name", None) != name:
        return f"`name` is {getattr(policy, 'name', None)!r}, but the entry point is called {name!r}; they must agree"
    return "" if callable(getattr(policy, "considers", None)) else "has no method `considers`"


def _check_texts(policy: Any) -> str:
    doc = getattr(policy, "doc", None)
    if not _is_line(doc):
        return f"`doc` is {_shown(doc)}; expected one sentence"
    conditions = getattr(policy, "conditions", None)
    if not isinstance(conditions, tuple | list) or not conditions or not all(map(_is_line, conditions)):
        return f"`conditions` are {_shown(conditions)}; expected sentences that say when it takes and passes"
    return ""


def _check_scope(policy: Any) -> str:
    kinds = getattr(policy, "kinds", None)
    known = (*INCIDENTS, *REQUESTS)
    if not isinstance(kinds, tuple | list) or not kinds or any(kind not in known for kind in kinds):
        return f"`kinds` are {_shown(kinds)}; expected some of: {', '.join(known)}"
    needs = getattr(policy, "needs", None)
    if not isinstance(needs, tuple | list) or any(need not in tuple(Ability) for need in needs):
        return f"`needs` are {_shown(needs)}; expected abilities: {', '.join(Ability)}"
    return ""


def _check_options(policy: Any) -> str:
    options = getattr(policy, "options", None)
    if not isinstance(options, type) or not issubclass(options, Options):
        return f"`options` are {_shown(options)}; expected a subclass of ftcore.policies.options.Options"
    for name in options.__struct_fields__:
        if _NAME.fullmatch(name) is None or name in RESERVED:
            return f"invalid option name {name!r}; expected lower-case letters, digits and _, and none of {RESERVED}"
    try:
        described(options)
    except TypeError as error:
        return str(error)
    return ""


@attrs.frozen(kw_only=True)
class RuleSource:
    """The rules that one entry point provides.

    Args:
        name: name of the entry point.
        origin: distribution and version of the package.
        items: the rules, not validated yet.
        error: why there are none.
    """

    name: str
    origin: str
    items: tuple[Any, ...] = ()
    error: str = ""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a policy of another package.

    Args:
        policy: name of the policy.
        origin: distribution and version at the start of the job.
        effect: effect id of the order.
        options: the options as set in the chain.
        job: JSON of the folded state.
    """

    policy: str
    origin: str
    effect: str
    options: dict[str, Any]
    job: msgspec.Raw


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a policy, or why there is none."""

    answered: PolicyAnswered | None = None
    faulted: str = ""


def with_rules(loaded: PolicyLoaded, items: Sequence[Any], origin: str) -> PolicyLoaded:
    """Append the rules of a package to those of the policy file, and name the package in the source.

    Args:
        loaded: the policies and rules without them.
        items: the rules, in the format of a policy file.
        origin: distribution and version of the package.

    Raises:
        UsageError: a rule is invalid, or its name is already in use.
    """
    extra_rules(items, f"rules of {origin}")
    rules = (*loaded.rules, *(dict(item) for item in items))
    try:
        extra_rules(rules, "rules")
    except UsageError as error:
        raise UsageError(f"the rules of {origin} conflict with those of {loaded.source}: {error}") from error
    return msgspec.structs.replace(loaded, source=f"{loaded.source} with rules of {origin}", rules=rules)


# -- asking -----------------------------------------------------------------------------------------------------------


def read_state(state: bytes) -> JobState:
    """Decode the JSON of the folded state (see ``states.model.to_json``)."""
    return msgspec.json.decode(state, type=JobState)


def ask(policy: Policy, state: bytes, options: Mapping[str, Any], effect: str) -> PolicyAnswered | PolicyFaulted:
    """Ask a policy about the open incident of a job. An exception of the policy is returned, not raised.

    Args:
        policy: the policy.
        state: JSON of the folded state, with an open incident; the policy gets a copy.
        options: the options as set in the chain; for others the policy's defaults apply.
        effect: effect id of the order.
    """
    job = read_state(state)
    assert job.incident is not None
    given, before = filled(policy.options, options), to_json(job)
    try:
        verdict = policy.considers(job.incident, job, given)
    except (Exception, SystemExit) as error:
        return PolicyFaulted(effect=effect, policy=policy.name, error=f"raised {describe(error)}")
    if given != filled(policy.options, options) or not _is_unchanged(job, before):
        return PolicyFaulted(effect=effect, policy=policy.name, error="modified its arguments")
    try:
        answer = _answer(verdict, policy.name, effect)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        return PolicyFaulted(effect=effect, policy=policy.name, error=f"invalid answer: {one_line(str(error))}")
    problem = invalid_answer(answer, job)
    if problem:
        return PolicyFaulted(effect=effect, policy=policy.name, error=f"invalid answer: {problem}")
    return answer


def describe(error: BaseException) -> str:
    """An exception in one line, with the file and line that raised it."""
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
    """The first non-blank line of a text, printable and cut to ``chars_max`` characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    line = "".join(char if char.isprintable() else "?" for char in line)
    return line if len(line) <= chars_max else f"{line[: chars_max - 3]}..."


def _is_unchanged(job: JobState, before: bytes) -> bool:
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
        raise ValueError(f"{_shown(verdict)}; expected a Take or a Pass")
    # Only decoding checks the types of all fields; its result is what the log would contain.
    return msgspec.json.decode(msgspec.json.encode(made), type=PolicyAnswered)


# -- judging ----------------------------------------------------------------------------------------------------------


def invalid_answer(answer: PolicyAnswered, job: JobState) -> str:
    """Why this job cannot carry out an answer, in one line; empty if it can.

    Args:
        answer: the answer; the types of its fields are already checked.
        job: the folded state that the policy was asked about, or a later one.
    """
    if answer.verdict not in ("take", "pass"):
        return f"verdict: {_shown(answer.verdict)}, expected take or pass"
    if not _is_line(answer.reason, REASON_CHARS_MAX):
        return f"reason: expected one printable line of at most {REASON_CHARS_MAX} characters"
    for name in ("grace_s", "deadline_s", "wait_s", "again_s"):
        value = getattr(answer, name)
        if not 0 <= value <= SECONDS_MAX:
            return f"{name}: {value:g}, expected seconds from 0 to {_SECONDS_MAX_TEXT}"
    if answer.verdict == "pass":
        return ""
    terms = answer.terms if answer.terms is not None else Terms()
    match answer.plan:
        case PlanKind.RESTART:
            return _check_round(terms, job)
        case PlanKind.IN_PLACE:
            return _check_command(terms, job)
        case PlanKind.TELL:
            return _check_alert(terms)
        case PlanKind.END:
            return _check_end(answer)
        case _:
            return f"plan: {_shown(answer.plan)}, expected one of: {', '.join(PlanKind)}"


def _check_round(terms: Terms, job: JobState) -> str:
    if terms.survivors not in ("stop", "park"):
        return f"terms.survivors: {_shown(terms.survivors)}, expected stop or park"
    if terms.check not in ("", "suspect", "all"):
        return f"terms.check: {_shown(terms.check)}, expected nothing, suspect or all"
    for field in ("exclude", "quarantine", "avoid", "replace"):
        names = getattr(terms, field)
        unknown = next((name for name in names if name not in job.membership.nodes), None)
        if unknown is not None:
            return f"terms.{field}: the job has no node {_shown(unknown)}"
        if len(set(names)) < len(names) or len(names) > NAMES_MAX:
            return f"terms.{field}: a node occurs twice"
    included = next((name for name in terms.quarantine if name not in terms.exclude), None)
    if included is not None:
        return f"terms.quarantine: {included} is not in terms.exclude"
    if terms.want != 0 and (job.spec is None or terms.want < 0 or usable(terms.want, job.spec) != terms.want):
        return f"terms.want: {terms.want}, expected 0, or {_sizes(job)}"
    if terms.patience_s is not None and not 0 <= terms.patience_s <= SECONDS_MAX:
        return f"terms.patience_s: {terms.patience_s:g}, expected seconds from 0 to {_SECONDS_MAX_TEXT}"
    if terms.command is not None:
        return "terms.command: not accepted in a plan that restarts workers"
    if terms.rollback_to is not None and terms.rollback_to not in job.training.checkpoints:
        return f"terms.rollback_to: the job has no checkpoint of step {terms.rollback_to}"
    if terms.tolerate < 0:
        return f"terms.tolerate: {terms.tolerate}, expected the number of a step, or 0 for none"
    if not 0 < terms.lr_factor <= 1 or (terms.lr_factor < 1 and terms.rollback_to is None):
        return f"terms.lr_factor: {terms.lr_factor:g}, expected more than 0 up to 1, and terms.rollback_to below 1"
    if terms.skip < 0 or terms.skip_unit not in ("batches", "tokens"):
        return f"terms.skip: {terms.skip} {_shown(terms.skip_unit)}, expected a count of batches or tokens"
    if terms.skip_after is not None and (terms.skip_after < 0 or terms.skip == 0 or terms.rollback_to is not None):
        return f"terms.skip_after: {terms.skip_after}, expected the number of a step, terms.skip, no terms.rollback_to"
    return ""


def _sizes(job: JobState) -> str:
    spec = job.spec
    if spec is None:
        return "nothing else: the job is not submitted yet"
    if spec.sizes:
        return f"one of {', '.join(map(str, spec.sizes))} nodes"
    unit = f", in multiples of {spec.node_unit}" if spec.node_unit > 1 else ""
    least = f"{spec.nodes_min} to " if spec.nodes_min < spec.nodes_max else ""
    return f"{least}{plural(spec.nodes_max, 'node')}{unit}"


def _check_command(terms: Terms, job: JobState) -> str:
    command = terms.command
    if not isinstance(command, IN_PLACE):
        allowed = ", ".join(kind.__name__ for kind in IN_PLACE)
        return f"terms.command: {_shown(command and tag_of(command))}, expected one of: {allowed}"
    followers = THEN[type(command)]
    if terms.then not in followers:
        return f"terms.then: {_shown(terms.then)}, expected for {tag_of(command)}: {' or '.join(followers)}"
    if job.rounds.world is None or command.round != job.rounds.world.round:
        newest = job.rounds.world.round if job.rounds.world is not None else "none"
        return f"terms.command: for round {command.round}, but the newest round is {newest}"
    if terms.then == "pause" and (
        job.requests.pending is None or job.incident is None or job.incident.kind != "request"
    ):
        return "terms.then: pause without a request to pause"
    ranks = command.ranks if isinstance(command, SaveCheckpoint) else ()
    if any(not 0 <= rank < job.rounds.world.size for rank in ranks):
        return f"terms.command: ranks {_shown(ranks)}, expected ranks from 0 to {job.rounds.world.size - 1}"
    return ""


def _check_alert(terms: Terms) -> str:
    if terms.severity not in ("info", "warning", "critical"):
        return f"terms.severity: {_shown(terms.severity)}, expected info, warning or critical"
    if not terms.alert.strip() or len(terms.alert) > ALERT_CHARS_MAX:
        return f"terms.alert: expected a message of at most {ALERT_CHARS_MAX} characters"
    return ""


def _check_end(answer: PolicyAnswered) -> str:
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
