"""Text for terminals: numbers, durations, times, lists of names, orders, and events as sentences.

``ftctl explain`` (``replay/explain.py``) and the messages of ``ftrun`` (``replay/narration.py``) share the sentences.
``ftctl events`` prints the type of each event, so its lines (``cli/ctl_lines.py``) have no verb.

House rules: pure. ``ftctl replay --verify`` compares reasons of policies, so the output of ``plural``,
``format_duration`` and ``listed`` never changes.
"""

import datetime
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from fractions import Fraction
from typing import Any

from ftcore.commands import (
    AskPolicy,
    CheckHealth,
    Command,
    CommitCheckpoint,
    DeleteNodes,
    FindBoundary,
    OpenStore,
    PaceSaves,
    ParkWorkers,
    PauseWorkers,
    PersistShards,
    ReleaseNode,
    ReplaceNodes,
    ResumeWorkers,
    SaveCheckpoint,
    StartWorkers,
    StopWorkers,
)
from ftcore.events.action import ActionFailed, ActionOrdered
from ftcore.events.checkpoint import (
    BatchesSkipped,
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointFound,
    DataPositioned,
    Resume,
    StateLoaded,
)
from ftcore.events.health import HealthJudged
from ftcore.events.incident import DepartureBegun, DepartureDeferred, IncidentContinued, IncidentEscalated
from ftcore.events.job import DataSkipped, JobRolledBack, RateLowered
from ftcore.events.node import HealthChecked, NodeQuarantined, NodeWarmed, OrderRefused, PlatformAnswered
from ftcore.events.operator import OperatorNoted
from ftcore.events.policy import AlertRaised, AlertSent, PlanApplied, PolicyFaulted
from ftcore.events.queue import (
    QueueEpochEnded,
    QueueLeased,
    QueueOpened,
    QueueRefused,
    QueueReported,
    QueueReturned,
)
from ftcore.events.retention import SpaceRanLow, SpaceRecovered
from ftcore.events.worker import StandstillJudged, WorkersWentOn
from ftcore.events.world import RoundPlanned, WorldFormed
from ftcore.ids import SECOND

_REPEATED = re.compile(r"(?<!\S)(\S+: )\1+")

NO_POLICY = "no policy"
"""What tables show for an incident that no policy took."""

DONE = {
    "pause": "training waits at a step boundary; continue with: ftctl resume",
    "resume": "training goes on",
    "drain": "the job goes on without {node}, which is released",
    "evict": "the job goes on without {node}, which is released and quarantined",
    "admit": "{node} may join again once its ftrun is started; --local-nodes starts it if its place is free",
    "checkpoint": "a checkpoint is saved",
    "stop": "the job has stopped; the same command starts it again",
}
"""By command of an operator, the result once it is carried out."""

WAITS_FOR_END = "training waits at a step boundary, and goes on by itself; continue at once with: ftctl resume"
"""What follows when a policy has paused the training for a disruption."""

STAYS_PAUSED = "the job stays paused"
"""What follows if a request during a pause is dropped."""

NAMES_SHOWN = 6
"""Names listed in a line; the others are counted."""

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_YEAR_S = 365 * 86400
_PREFIXES = tuple(enumerate("KMGTP", start=1))
_COUNT_MAX = 999
"""A larger count is shown in larger units."""


def plural(count: int, noun: str, many: str = "") -> str:
    """A number with its noun, as ``1 event`` or ``2,000 events``.

    Args:
        count: the number.
        noun: the singular.
        many: the plural, if it is not the singular with an s.
    """
    return f"{count:,} {noun if count == 1 else many or f'{noun}s'}"


def format_duration(seconds: float) -> str:
    """A duration as in a policy file: ``90s``, ``5m``, ``25h``, ``30d``; whole years as ``1 year``.

    Args:
        seconds: shown with its fraction below 1000 s. A value with no whole unit below 1000 is cut to its two largest
            units, as ``23h 59m``; less than a hundredth is lost.
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


def format_bytes(count: int) -> str:
    """A size as in a policy file, exactly: ``200GiB``, ``1536MiB``, ``1500TB``; a plain number if no unit divides it.

    Not more than nine digits come before a unit, as policy files permit.

    Args:
        count: bytes.
    """
    units = [(base**power, f"{prefix}{i}B") for base, i in ((1024, "i"), (1000, "")) for power, prefix in _PREFIXES]
    whole = [(size, unit) for size, unit in units if count % size == 0 and 0 < count // size < 10**9]
    size, unit = max(whole, default=(1, ""))
    return f"{count // size}{unit}"


def format_elapsed(value: float | None) -> str:
    """A measured time, as ``12 ms``, ``3.4 s`` or ``2m05s``, rounded half up; a dash for None."""
    if value is None:
        return "-"
    if value < 0.9995:
        return f"{_rounded(value * 1000)} ms"
    if value < 119.95:
        return f"{_rounded(value * 10) / 10:.1f} s"
    minutes, rest = divmod(_rounded(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m{rest:02d}s" if hours else f"{minutes}m{rest:02d}s"


def format_gpu_time(gpu_s: float) -> str:
    """GPU time, as ``2.4 GPU-seconds`` or, from an hour on, ``1.5 GPU-hours``."""
    digits = 0 if gpu_s >= 99.95 else 1
    return f"{gpu_s / 3600:,.1f} GPU-hours" if gpu_s >= 3600 else f"{gpu_s:,.{digits}f} GPU-seconds"


def _rounded(value: float) -> int:
    """Round half up, after rounding away binary noise, so that equal sums of different order agree."""
    return math.floor(round(value, 4) + 0.5)


def utc(time_ns: int) -> str:
    """RFC 3339 in UTC with microseconds."""
    whole, rest = divmod(time_ns, SECOND)
    moment = datetime.datetime.fromtimestamp(whole, datetime.UTC).replace(microsecond=rest // 1000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def timestamp_fields(name: str, time_ns: int | None) -> dict[str, str | int | None]:
    """JSON fields of a time: NAME in RFC 3339, NAME_ns in nanoseconds since the epoch."""
    return {name: None if time_ns is None else utc(time_ns), f"{name}_ns": time_ns}


def printable(text: str) -> str:
    """The text on one line, without control characters: output of a worker must not control the terminal."""
    return "".join(char if char.isprintable() else " " for char in text.replace("\r\n", "\n").replace("\n", " | "))


def listed(several: Collection[str], most: int = 4, sep: str = ", ") -> str:
    """The first few names, then the number of the others."""
    names = list(several)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return sep.join(names[:most]) + more


def name_list(several: Collection[str]) -> str:
    """The first ``NAMES_SHOWN`` names, then the number of the others."""
    return listed(several, NAMES_SHOWN)


def reason_suffix(reason: str) -> str:
    """A colon and the reason; empty if the reason is empty."""
    return f": {reason}" if reason else ""


# -- orders


def order_text(command: Command) -> str:
    """A command in the imperative, to follow ``is asked to`` or ``cannot``."""
    return _ORDERS[type(command)](command)


def _replace(command: ReplaceNodes) -> str:
    one = len(command.nodes) == 1
    keep = f", which {'trains' if one else 'train'} until then" if command.keep else ""
    isolate = f", on {'another machine' if one else 'other machines'}" if command.isolate else ""
    return f"launch {'a replacement' if one else 'replacements'} for {name_list(command.nodes)}{keep}{isolate}"


def _check(command: CheckHealth) -> str:
    groups = name_list(["-".join(group) for group in command.groups]) or "each node alone"
    label = f"under each {command.label}, " if command.label else ""
    return f"check health before round {command.round}, stage {command.stage}: {label}{groups}"


def _at(boundary: int) -> str:
    return f" at step boundary {boundary} of this round" if boundary else ""


_ORDERS: dict[type[Any], Callable[[Any], str]] = {
    StartWorkers: lambda order: f"start the workers of round {order.round}",
    StopWorkers: lambda order: f"stop the workers of round {order.round}, grace {format_elapsed(order.grace_s)}",
    OpenStore: lambda order: f"open a store for round {order.round}",
    ReleaseNode: lambda order: f"leave: {order.outcome}, exit code {order.exit_code}",
    FindBoundary: lambda order: f"find the next step boundary of round {order.round}",
    PauseWorkers: lambda order: f"pause the workers of round {order.round}{_at(order.boundary)}",
    ResumeWorkers: lambda order: f"resume the workers of round {order.round}",
    ParkWorkers: lambda order: f"park the workers of round {order.round}, within {format_elapsed(order.grace_s)}",
    SaveCheckpoint: lambda order: (
        f"{'hold' if order.hold else 'save a checkpoint of'} round {order.round}{_at(order.boundary)}"
    ),
    PersistShards: lambda order: (
        f"write the state of step {order.step} to storage, from {plural(len(order.ranks), 'rank')}"
    ),
    PaceSaves: lambda order: f"save to storage every {plural(order.every, 'step')} from step {order.since} on",
    CommitCheckpoint: lambda order: f"complete the checkpoint of step {order.step}",
    ReplaceNodes: _replace,
    DeleteNodes: lambda order: f"delete {name_list(order.nodes)}",
    CheckHealth: _check,
    AskPolicy: lambda order: f"ask {order.policy} about {order.incident}, revision {order.revision}",
}


# -- events


def sentence(data: Any) -> str:
    """An event as a sentence that is clear without the event's type; empty if its type has no sentence."""
    to_text = _SENTENCES.get(type(data))
    return to_text(data) if to_text is not None else ""


def back_off_text(wait_s: float | None, before: str = " ") -> str:
    """The wait before a round; empty if there is none."""
    return f"{before}after a back-off of {format_elapsed(wait_s)}" if wait_s else ""


def deferred_departure(nodes: Collection[str]) -> str:
    """Nodes that train until their replacements are ready."""
    leave = "leaves once its replacement is" if len(nodes) == 1 else "leave once their replacements are"
    return f"{name_list(nodes)} {leave} ready; training goes on"


def without_repeats(text: str) -> str:
    """The text with ``node1: node1: ...`` written once: a reason often begins with the node that is named before it."""
    return _REPEATED.sub(r"\1", text)


def about(node: str, reason: str) -> str:
    """A reason for a sentence that has named the node."""
    return without_repeats(f"{node}: {reason}").removeprefix(f"{node}: ")


def _ordered(data: ActionOrdered) -> str:
    """Empty for the orders of every restart: the table of phases shows them."""
    command = data.command
    if isinstance(command, StartWorkers | StopWorkers | OpenStore | AskPolicy | CommitCheckpoint | PaceSaves):
        return ""
    if isinstance(command, ReplaceNodes | DeleteNodes):
        return f"the platform is asked to {order_text(command)}"
    if isinstance(command, ReleaseNode):
        released = f"{name_list(data.nodes)} {is_or_are(data.nodes)} released: {without_repeats(command.reason)}"
        return released if command.outcome == "released" else ""
    return f"{name_list(data.nodes) or 'the workers'}: {order_text(command)}"


def is_or_are(several: Collection[str]) -> str:
    """The verb that agrees with the number of names."""
    return "is" if len(several) == 1 else "are"


def _formed(data: WorldFormed) -> str:
    gone = f", without {name_list(data.gone)}" if data.gone else ""
    joined = f", with {name_list(data.joined)}" if data.joined else ""
    return f"round {data.round}: {world_size(data)}{joined}{gone}{resume_text(data.resume)}{batch_text(data)}"


def resume_text(resume: Resume | None) -> str:
    """What a round resumes from, after a comma; empty if ftcore holds no state."""
    if resume is None:
        return ""
    return f", resumes from step {resume.step} in {'memory' if resume.source == 'memory' else resume.where}"


def batch_text(data: WorldFormed) -> str:
    """The global batch of a world, after a comma; if the job does not declare it, what another size does to it."""
    batch = data.batch
    if batch is not None:
        each = f"{batch.least} to {batch.most}" if batch.least < batch.most else str(batch.most)
        scaled = f", learning rate x {batch.lr_scale:.4g}" if batch.lr_scale != 1 else ""
        return f", global batch {batch.size}: {each} per rank{scaled}"
    if data.size_before in (0, data.size):
        return ""
    return (
        f", {data.size} instead of {plural(data.size_before, 'rank')}: a script with a fixed batch per rank now trains "
        f"with {Fraction(data.size, data.size_before)} of its global batch (ftrun --global-batch keeps it)"
    )


def world_size(data: WorldFormed) -> str:
    """The number of ranks and nodes of a world."""
    return f"{plural(data.size, 'rank')} on {plural(data.nodes, 'node')}"


def stacks_suffix(data: StandstillJudged) -> str:
    """The file with the stacks of the workers; empty if there is none."""
    return f"; stacks: {data.stacks}" if data.stacks else ""


def ready_nodes(data: DepartureBegun) -> str:
    """The nodes that became ready before others leave."""
    return f"{name_list(data.ready)} {is_or_are(data.ready)} ready" if data.ready else "no other node is ready"


def skipped_text(data: BatchesSkipped) -> str:
    """What the workers of a node have left out."""
    return f"{data.node} has skipped {plural(data.batches, 'batch', 'batches')} after step {data.step}"


def skip_text(data: DataSkipped) -> str:
    """How much data is left out."""
    singular = {"batches": "batch", "tokens": "token"}.get(data.unit, data.unit)
    return plural(data.amount, singular, data.unit)


def positioned_text(data: DataPositioned) -> str:
    """Where the data continues."""
    epoch, place = divmod(data.position, data.size)
    where = f"place {place:,} of {data.size:,} in epoch {epoch + 1}"
    return f"after step {data.step} the data continues at {where}, {plural(data.batch, 'sample')} a step"


def queue_opened_text(data: QueueOpened) -> str:
    """Which readers open a queue, and where."""
    verb = "opens" if len(data.ranks) == 1 else "open"
    return f"{data.node}: {_readers(data.ranks)} {verb} queue {data.queue} after step {data.step}"


def queue_reported_text(data: QueueReported) -> str:
    """How far the readers of a node are."""
    steps = [each.marks[-1].step for each in data.readers if each.marks]
    reached = f" up to step {max(steps)}" if steps else ""
    return f"{data.node}: queue {data.queue}: {_readers(each.rank for each in data.readers)} reported{reached}"


def queue_leased_text(data: QueueLeased) -> str:
    """What is leased."""
    count = sum(each.after - each.first for each in data.leases)
    leased = f"{plural(count, 'data shard')} to {_readers(each.rank for each in data.leases)}" if data.leases else ""
    over = f"nothing is left for {_readers(data.over)}" if data.over else ""
    return f"queue {data.queue}: {'; '.join(filter(None, (leased, over)))}"


def queue_returned_text(data: QueueReturned) -> str:
    """What is to do again, and why."""
    text = f"queue {data.queue}: round {data.round} continues after step {data.step}: {data.doing:,} unfinished and "
    text += f"{data.done:,} later data shards are to do again"
    if data.unsure:
        ranks = _readers(each.rank for each in data.unsure)
        text += f"; the last position of {ranks} is unknown: samples since their last report are used again"
    return text


def _readers(ranks: Iterable[int]) -> str:
    names = [str(rank) for rank in dict.fromkeys(ranks)]
    return f"{'rank' if len(names) == 1 else 'ranks'} {listed(names)}"


def groups_text(groups: Sequence[Sequence[int]]) -> str:
    """Replica groups in one line: ``[0,4] [1,5]``; the first ones of many."""
    ranks = sum(map(len, groups))
    if len(groups) == 1 and ranks > 1:
        return f"all {ranks} ranks hold the same state"
    if len(groups) == ranks:
        return "each rank holds a part of its own"
    shown = [f"[{_ranks_text(group)}]" for group in groups[:NAMES_SHOWN]]
    more = f" and {len(groups) - NAMES_SHOWN} more" if len(groups) > NAMES_SHOWN else ""
    return f"{' '.join(shown)}{more}"


def _ranks_text(group: Sequence[int]) -> str:
    shown = list(map(str, group))
    return ",".join(shown if len(shown) <= NAMES_SHOWN else [*shown[: NAMES_SHOWN - 1], "...", shown[-1]])


def loaded_text(data: StateLoaded) -> str:
    """What the workers of a node have restored."""
    refused = f"; not usable: {'; '.join(data.refused)}" if data.refused else ""
    if not data.source:
        return f"{data.node} begins without a saved state{refused}"
    place = "another rank" if data.source == "replica" else data.source
    return f"{data.node} has restored step {data.step} from {place} in {format_elapsed(data.seconds)}{refused}"


_SENTENCES: dict[type[Any], Callable[[Any], str]] = {
    ActionOrdered: _ordered,
    ActionFailed: lambda data: f"failed: {data.effect.partition('.')[0]}: {data.reason}",
    OrderRefused: lambda data: f"{data.node} refused an order: {data.reason}",
    PlatformAnswered: lambda data: (
        f"the platform {'accepts' if data.ok else 'declines'} the order{reason_suffix(data.reason)}"
    ),
    PlanApplied: lambda data: f"every node has carried out the plan of {data.policy}",
    IncidentContinued: lambda data: f"{data.policy} {data.outcome}; the chain goes on",
    IncidentEscalated: lambda data: f"{data.policy} did not succeed: {data.reason}",
    DepartureDeferred: lambda data: deferred_departure(data.nodes),
    NodeWarmed: lambda data: f"{data.node} can start its workers at once",
    DepartureBegun: lambda data: (
        f"{name_list(data.nodes)} {'leaves' if len(data.nodes) == 1 else 'leave'} now: {ready_nodes(data)}"
    ),
    HealthChecked: lambda data: f"{data.node} is {data.verdict}{reason_suffix(data.detail)}",
    NodeQuarantined: lambda data: f"{data.node} is quarantined: {about(data.node, data.reason)}",
    CheckpointCommitted: lambda data: f"the checkpoint of step {data.step} is committed",
    CheckpointFound: lambda data: (
        f"{data.node} has found checkpoints on storage, the newest one of step {data.checkpoints[0].step}"
    ),
    CheckpointFailed: lambda data: f"{data.node} could not write the checkpoint of step {data.step}: {data.reason}",
    StateLoaded: loaded_text,
    BatchesSkipped: skipped_text,
    DataPositioned: positioned_text,
    QueueOpened: queue_opened_text,
    QueueReported: queue_reported_text,
    QueueLeased: queue_leased_text,
    QueueReturned: queue_returned_text,
    QueueRefused: lambda data: f"queue {data.queue}: {data.node}: {_readers(data.ranks)} refused: {data.reason}",
    QueueEpochEnded: lambda data: f"queue {data.queue}: all data shards of epoch {data.epoch} are done",
    JobRolledBack: lambda data: f"training rolls back to the checkpoint of step {data.step}: {data.reason}",
    DataSkipped: lambda data: f"{skip_text(data)} of data skipped after step {data.step}: {data.reason}",
    RateLowered: lambda data: (
        f"the learning rate is {data.factor:.4g} of the script's after step {data.step} ({data.before:.4g} before): "
        f"{data.reason}"
    ),
    OperatorNoted: lambda data: f"{data.who} notes: {data.text}",
    AlertRaised: lambda data: f"an alert is raised ({data.severity})",
    AlertSent: lambda data: (
        f"the alert of event {data.alert} is sent"
        if data.ok
        else f"the alert of event {data.alert} could not be sent: {data.error}"
    ),
    PolicyFaulted: lambda data: f"{data.policy} gave no answer: {data.error}",
    RoundPlanned: lambda data: (
        f"round {data.round} is planned with {plural(data.want, 'node')}{back_off_text(data.wait_s)}"
    ),
    WorldFormed: _formed,
    WorkersWentOn: lambda data: f"steps are completed again, after {format_elapsed(data.gap_s)} without a step",
    SpaceRanLow: lambda data: f"the log's store {'was full' if data.full else 'is nearly full'}",
    SpaceRecovered: lambda data: "the log's store has free space again",
}


def spans(ranks: Sequence[int]) -> str:
    """Return ranks in short form, for example ``0-3, 7``."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in found)


def health_result(data: HealthJudged) -> str:
    """The result of a health check: unhealthy nodes, faulty links and groups, and differences between nodes."""
    findings = [f"{each.node} is {each.verdict}: {each.reason}" for each in data.ill[:NAMES_SHOWN]]
    findings += [f"{len(data.ill) - NAMES_SHOWN} more nodes are not healthy"] if len(data.ill) > NAMES_SHOWN else []
    findings += [f"the link {'-'.join(link.nodes)} is at fault: {link.reason}" for link in data.links[:NAMES_SHOWN]]
    findings += [
        f"{group.label}: its {len(group.nodes) + group.others} nodes fail together, though not in pairs: {group.reason}"
        for group in data.apart[:NAMES_SHOWN]
    ]
    findings += [f"nodes differ in {text}" for text in data.differing]
    findings += [data.note] if data.note else []
    stages = plural(data.stages, "stage")
    return f"{plural(data.nodes, 'node')} in {stages}: {'; '.join(findings) or 'all healthy'}"
