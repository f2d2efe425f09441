"""Words for people: numbers, durations, moments and names; orders; and events as sentences.

What several readers of a log say is said here once: ``ftctl explain`` (``replay/timeline.py``) and the story at the
terminal (``launch/narrator.py``) take their sentences from here. ``ftctl events`` shows the type of each event, so its
lines (``cli/ctl_lines.py``) do without the verb. Reasons of policies take their durations and names from here, too.

House rules: pure; a text never depends on who reads it. Reasons that policies give are compared when a log is
verified: ``plural``, ``format_duration`` and ``listed`` never change.
"""

import datetime
import math
from collections.abc import Callable, Collection
from typing import Any

from ftcore.commands import (
    AskPolicy,
    CheckHealth,
    Command,
    DeleteNodes,
    OpenStore,
    ParkWorkers,
    PauseWorkers,
    ReleaseNode,
    ReplaceNodes,
    ResumeWorkers,
    RetryStep,
    SaveCheckpoint,
    StartWorkers,
    StopWorkers,
)
from ftcore.events.action import ActionFailed, ActionOrdered
from ftcore.events.health import HealthJudged
from ftcore.events.incident import DepartureBegun, DepartureDeferred, IncidentContinued, IncidentEscalated
from ftcore.events.job import CheckpointCommitted, DataSkipped, JobRolledBack
from ftcore.events.node import HealthChecked, NodeQuarantined, NodeWarmed, OrderRefused, PlatformAnswered
from ftcore.events.policy import AlertRaised, AlertSent, PlanApplied, PolicyFaulted
from ftcore.events.retention import SpaceRanLow, SpaceRecovered
from ftcore.events.worker import StandstillJudged, WorkersWentOn
from ftcore.events.world import RoundPlanned, WorldFormed
from ftcore.ids import SECOND

NOBODY = "nobody"
"""Who ended an incident that no policy took."""

DONE = {
    "pause": "training waits at a step boundary; go on with: ftctl resume",
    "resume": "training goes on",
    "drain": "the job goes on without {node}, which is released",
    "evict": "the job goes on without {node}, which is released and kept out",
    "admit": "{node} is kept out no longer: it takes part once its ftrun is started again",
    "checkpoint": "a checkpoint is saved",
    "stop": "the job has stopped; the same command starts it again",
}
"""By wish, what is true once it is fulfilled."""

NAMES_SHOWN = 6
"""Names in a line; after them only how many more."""

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_YEAR_S = 365 * 86400
_COUNT_MAX = 999
"""More of a unit than this is told in larger ones."""


def plural(count: int, noun: str, many: str = "") -> str:
    """A number with its noun, as ``1 event`` or ``2,000 events``.

    Args:
        count: how many.
        noun: for one.
        many: for several, where an s does not make it.
    """
    return f"{count:,} {noun if count == 1 else many or f'{noun}s'}"


def format_duration(seconds: float) -> str:
    """A duration as a policy file has it: ``90s``, ``5m``, ``25h``, ``30d``; whole years as ``1 year``.

    Args:
        seconds: below 1000 s with its fraction, else whole; what is no round number of anything is told in the two
            largest units, as ``23h 59m``, which leaves less than a hundredth out.
    """
    if seconds < 1 or (seconds <= _COUNT_MAX and seconds != int(seconds)):
        return f"{seconds:.4g}s"
    whole = int(seconds)
    if whole % _YEAR_S == 0:
        return plural(whole // _YEAR_S, "year")
    unit, size = next((unit, size) for unit, size in _UNITS if whole % size == 0)
    if whole // size <= _COUNT_MAX:
        return f"{whole // size}{unit}"
    place = next(place for place, (_, size) in enumerate(_UNITS) if whole >= size)
    (unit, size), (below, below_size) = _UNITS[place], _UNITS[place + 1]
    rest = whole % size // below_size
    return f"{whole // size}{unit}" + (f" {rest}{below}" if rest else "")


def format_elapsed(value: float | None) -> str:
    """Seconds for people; a dash for what is not known. Half a unit is rounded up."""
    if value is None:
        return "-"
    if value < 0.9995:
        return f"{_rounded(value * 1000)} ms"
    if value < 119.95:
        return f"{_rounded(value * 10) / 10:.1f} s"
    minutes, rest = divmod(_rounded(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m{rest:02d}s" if hours else f"{minutes}m{rest:02d}s"


def _rounded(value: float) -> int:
    """To whole numbers; two sums of the same parts agree, whatever their last binary digits."""
    return math.floor(round(value, 4) + 0.5)


def utc(time_ns: int) -> str:
    """RFC 3339 in UTC with microseconds."""
    whole, rest = divmod(time_ns, SECOND)
    moment = datetime.datetime.fromtimestamp(whole, datetime.UTC).replace(microsecond=rest // 1000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def moment(name: str, time_ns: int | None) -> dict[str, str | int | None]:
    """A moment as JSON has it: under its name by RFC 3339, and as NAME_ns in nanoseconds since the epoch."""
    return {name: None if time_ns is None else utc(time_ns), f"{name}_ns": time_ns}


def clean(text: str) -> str:
    """One line without control characters: what a worker wrote must not steer the terminal."""
    return "".join(char if char.isprintable() else " " for char in text.replace("\r\n", "\n").replace("\n", " | "))


def listed(several: Collection[str], most: int = 4, sep: str = ", ") -> str:
    """Names for people: the first few, then how many more."""
    names = list(several)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return sep.join(names[:most]) + more


def named(several: Collection[str]) -> str:
    """Names in a line of a log."""
    return listed(several, NAMES_SHOWN)


def because(reason: str) -> str:
    """A reason behind what it is the reason of; nothing if there is none."""
    return f": {reason}" if reason else ""


# -- orders


def order_text(command: Command) -> str:
    """What a command asks for, in the imperative: it follows ``is to`` and ``cannot``."""
    return _ORDERS[type(command)](command)


def _retry(command: RetryStep) -> str:
    ranks = f" of ranks {named(tuple(map(str, command.ranks)))}" if command.ranks else ""
    state = {"replica": f", the state{ranks} from replicas", "snapshot": ", the state from before it"}
    tolerate = ", tolerating its trouble" if command.tolerate else ""
    return f"compute step {command.step} again{state.get(command.restore, '')}{tolerate}"


def _replace(command: ReplaceNodes) -> str:
    one = len(command.nodes) == 1
    keep = f", which {'trains' if one else 'train'} until then" if command.keep else ""
    isolate = f", whose {'machine is' if one else 'machines are'} not to be used" if command.isolate else ""
    return f"launch {'another' if one else 'others'} for {named(command.nodes)}{keep}{isolate}"


def _check(command: CheckHealth) -> str:
    groups = named(["-".join(group) for group in command.groups]) or "each by itself"
    label = f"under each {command.label}, " if command.label else ""
    return f"check health before round {command.round}, stage {command.stage}: {label}{groups}"


_ORDERS: dict[type[Any], Callable[[Any], str]] = {
    StartWorkers: lambda order: f"start the workers of round {order.round}",
    StopWorkers: lambda order: f"stop the workers of round {order.round}, grace {format_elapsed(order.grace_s)}",
    OpenStore: lambda order: f"open a store for round {order.round}",
    ReleaseNode: lambda order: f"leave: {order.outcome}, exit code {order.exit_code}",
    PauseWorkers: lambda order: f"pause the workers of round {order.round}",
    ResumeWorkers: lambda order: f"let the workers of round {order.round} go on",
    RetryStep: _retry,
    ParkWorkers: lambda order: f"park the workers of round {order.round}, within {format_elapsed(order.grace_s)}",
    SaveCheckpoint: lambda order: f"save the state of round {order.round}",
    ReplaceNodes: _replace,
    DeleteNodes: lambda order: f"end {named(order.nodes)}",
    CheckHealth: _check,
    AskPolicy: lambda order: f"ask {order.policy} about {order.incident}, revision {order.revision}",
}


# -- events


def sentence(data: Any) -> str:
    """What an event says, in words that need not be told its type; empty if it has none of its own."""
    tell = _SENTENCES.get(type(data))
    return tell(data) if tell is not None else ""


def back_off(wait_s: float | None, before: str = " ") -> str:
    """How long is waited before a round; nothing if that is not."""
    return f"{before}after a back-off of {format_elapsed(wait_s)}" if wait_s else ""


def leaves_once_ready(nodes: Collection[str]) -> str:
    """Nodes that train until others are ready for their places."""
    leave = "leaves once its replacement is" if len(nodes) == 1 else "leave once their replacements are"
    return f"{named(nodes)} {leave} ready; training goes on"


def _ordered(data: ActionOrdered) -> str:
    """What every restart does has no sentence; the phases tell it."""
    command = data.command
    if isinstance(command, StartWorkers | StopWorkers | OpenStore | AskPolicy):
        return ""
    if isinstance(command, ReplaceNodes | DeleteNodes):
        return f"the platform is to {order_text(command)}"
    if isinstance(command, ReleaseNode):
        released = f"{named(data.nodes)} {be(data.nodes)} released: {command.reason}"
        return released if command.outcome == "released" else ""
    return f"{named(data.nodes) or 'the workers'}: {order_text(command)}"


def be(several: Collection[str]) -> str:
    """The verb behind names."""
    return "is" if len(several) == 1 else "are"


def _formed(data: WorldFormed) -> str:
    gone = f", without {named(data.gone)}" if data.gone else ""
    joined = f", with {named(data.joined)}" if data.joined else ""
    return f"round {data.round}: {size_text(data)}{joined}{gone}"


def size_text(data: WorldFormed) -> str:
    """How large a world is."""
    return f"{plural(data.size, 'rank')} on {plural(data.nodes, 'node')}"


def stacks_in(data: StandstillJudged) -> str:
    """Where the stacks of the workers are; nothing if they are nowhere."""
    return f"; stacks: {data.stacks}" if data.stacks else ""


def departing(data: DepartureBegun) -> str:
    """For whom a departure waited."""
    return f"{named(data.ready)} ready" if data.ready else "no other node is ready"


_SENTENCES: dict[type[Any], Callable[[Any], str]] = {
    ActionOrdered: _ordered,
    ActionFailed: lambda data: f"failed: {data.effect.partition('.')[0]}: {data.reason}",
    OrderRefused: lambda data: f"{data.node} cannot: {data.reason}",
    PlatformAnswered: lambda data: f"the platform {'takes the order' if data.ok else 'declines'}{because(data.reason)}",
    PlanApplied: lambda data: f"every node has carried out the plan of {data.policy}",
    IncidentContinued: lambda data: f"{data.policy} {data.outcome}; the chain goes on",
    IncidentEscalated: lambda data: f"{data.policy} did not succeed: {data.reason}",
    DepartureDeferred: lambda data: leaves_once_ready(data.nodes),
    NodeWarmed: lambda data: f"{data.node} can start its workers at once",
    DepartureBegun: lambda data: (
        f"{named(data.nodes)} {'leaves' if len(data.nodes) == 1 else 'leave'} now: {departing(data)}"
    ),
    HealthChecked: lambda data: f"{data.node} is {data.verdict}{because(data.detail)}",
    NodeQuarantined: lambda data: f"{data.node} is kept out of this job from now on: {data.reason}",
    CheckpointCommitted: lambda data: f"the checkpoint of step {data.step} is committed",
    JobRolledBack: lambda data: f"training goes back to the checkpoint of step {data.step}: {data.reason}",
    DataSkipped: lambda data: f"{data.amount} {data.unit} of data after step {data.step} are left out: {data.reason}",
    AlertRaised: lambda data: f"people are told ({data.severity})",
    AlertSent: lambda data: (
        f"the alert of event {data.alert} is sent"
        if data.ok
        else f"people could not be told (alert of event {data.alert}): {data.error}"
    ),
    PolicyFaulted: lambda data: f"{data.policy} gave no answer: {data.error}",
    RoundPlanned: lambda data: f"round {data.round} is planned with {plural(data.want, 'node')}{back_off(data.wait_s)}",
    WorldFormed: _formed,
    WorkersWentOn: lambda data: f"steps are completed again, after {format_elapsed(data.gap_s)} without one",
    SpaceRanLow: lambda data: f"the log's store {'was full' if data.full else 'is nearly full'}",
    SpaceRecovered: lambda data: "the log's store has room again",
}


def judged(data: HealthJudged) -> str:
    """Who is not healthy and why, links at fault, and what differs."""
    said = [f"{each.node} is {each.verdict}: {each.reason}" for each in data.ill[:NAMES_SHOWN]]
    said += [f"{len(data.ill) - NAMES_SHOWN} more are not plainly healthy"] if len(data.ill) > NAMES_SHOWN else []
    said += [f"the link {'-'.join(link.nodes)} is at fault: {link.reason}" for link in data.links[:NAMES_SHOWN]]
    said += [
        f"{group.label}: its {len(group.nodes) + group.others} nodes fail all together, though not in pairs: "
        f"{group.reason}"
        for group in data.apart[:NAMES_SHOWN]
    ]
    said += [f"nodes differ in {text}" for text in data.differing]
    said += [data.note] if data.note else []
    stages = plural(data.stages, "stage")
    return f"{plural(data.nodes, 'node')} in {stages}: {'; '.join(said) or 'all healthy'}"
