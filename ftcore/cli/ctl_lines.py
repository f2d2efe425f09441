"""One line of text for each type of event, as ``ftctl events`` prints it."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from ftcore.commands import CheckHealth, Command
from ftcore.events import (
    action,
    anomaly,
    caller,
    checkpoint,
    deadline,
    health,
    imported,
    incident,
    job,
    master,
    node,
    operator,
    policy,
    queue,
    retention,
    worker,
    world,
)
from ftcore.events.codec import payload_to_json
from ftcore.events.envelope import Event, Unknown
from ftcore.events.registry import Kind
from ftcore.faults.codes import signal_name
from ftcore.faults.taxonomy import title_of
from ftcore.ids import SECOND
from ftcore.wording import (
    NAMES_SHOWN,
    back_off_text,
    batch_text,
    format_duration,
    format_elapsed,
    groups_text,
    health_result,
    listed,
    loaded_text,
    order_text,
    plural,
    positioned_text,
    reason_suffix,
    resume_text,
    sentence,
    skip_text,
    skipped_text,
    spans,
    stacks_suffix,
    without_repeats,
    world_size,
)

_STYLES = {
    "gap.found": "warn",
    "worker.failed": "bad",
    "workers.unstartable": "bad",
    "node.lost": "bad",
    "store.failed": "bad",
    "archive.failed": "warn",
    "space.ran_low": "bad",
    "action.failed": "bad",
    "incident.exhausted": "bad",
    "job.parked": "bad",
    "node.quarantined": "bad",
    "fault.observed": "bad",
    "workers.stood": "warn",
    "standstill.judged": "warn",
    "policy.faulted": "warn",
    "health.judged": "strong",
    "order.refused": "warn",
    "caller.refused": "warn",
    "alert.raised": "warn",
    "job.rolled_back": "warn",
    "data.skipped": "warn",
    "rate.lowered": "warn",
    "operator.commanded": "strong",
    "operator.noted": "strong",
    "checkpoint.committed": "good",
    "checkpoint.failed": "bad",
    "anomaly.observed": "warn",
    "incident.opened": "warn",
    "incident.rediagnosed": "warn",
    "incident.escalated": "warn",
    "incident.resolved": "good",
    "world.formed": "good",
    "job.finished": "strong",
    "job.submitted": "strong",
}


def style_of(event: Event) -> str:
    """The style of the event's line; see ``ctl_output.STYLES``."""
    return _STYLES.get(event.type, "" if event.kind is Kind.FACT else "quiet")


def summary(event: Event) -> str:
    """The event in one line; the data as JSON for a type that has no entry in ``_LINES``."""
    to_line = _LINES.get(type(event.data))
    text = to_line(event.data) if to_line is not None else _plain(event.data)
    known = f" [unknown version {event.v}]" if type(event.data) is Unknown else ""
    return f"{event.incident}: {text}{known}" if event.incident is not None else f"{text}{known}"


def _plain(data: Any) -> str:
    return msgspec.json.encode(payload_to_json(data)).decode()


def names(several: Collection[str]) -> str:
    """The first few names, then the number of the others."""
    return listed(several, NAMES_SHOWN, " ")


def _at(step: int | None) -> str:
    return "" if step is None else f" after step {step}"


def _exit(code: int) -> str:
    return f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"


def _failed(data: worker.WorkerFailed) -> str:
    message = data.error.message if data.error is not None else ""
    message = f": {message.splitlines()[0]}" if message else ""
    worker_name = f"rank {data.rank} (local {data.local_rank}) on {data.node}"
    return f"{worker_name} {_exit(data.exitcode)}{_at(data.step)}{message}"


_WAITED = {"parked": "that waited for it", "prepared": "that were prepared for it"}


def _started(data: worker.WorkersStarted) -> str:
    pids = listed([f"local rank {rank} pid {pid}" for rank, pid in enumerate(data.pids)], NAMES_SHOWN)
    workers = plural(len(data.pids), "worker")
    how = _WAITED.get(data.how) or f"by {data.how}"
    return f"{data.node}: round {data.round}, {workers} {how}{reason_suffix(pids)}"


def _stood(data: worker.WorkersStood) -> str:
    ranks = [f"{spans(stand.ranks)} {stand.op or stand.state} {stand.still_s:g} s" for stand in data.stands]
    cuts = [f"{cut.node} gets no answer from {cut.peer} for {cut.silent_s:g} s" for cut in data.cuts]
    return f"round {data.round} makes no progress: {'; '.join([*ranks, *cuts])}"


def _cited(data: imported.SourceCited) -> str:
    error = f" +-{data.error_s:.3g} s" if data.error_s is not None else ""
    shift = f", clock of {data.clock} {data.shift_s:+.1f} s" if data.shift_s else ""
    return f"{data.place} (time: {data.basis}{error}{shift}){f': {data.text}' if data.text else ''}"


def _usage(data: retention.SpaceRanLow | retention.SpaceRecovered) -> str:
    return f": {data.used >> 20} of {data.limit >> 20} MiB" if data.limit else f": {data.used >> 20} MiB"


def _all(command: Command) -> str:
    return "all checked nodes" if isinstance(command, CheckHealth) else "all members"


def _ordered(data: action.ActionOrdered) -> str:
    limit = "" if data.deadline_s is None else f" (within {format_elapsed(data.deadline_s)})"
    return f"{names(data.nodes) or _all(data.command)}: {order_text(data.command)}{limit}"


def _considered(data: policy.PolicyConsidered) -> str:
    verdict = f"takes it ({data.plan}{back_off_text(data.wait_s, ', ')})" if data.verdict == "take" else "passes"
    return f"{data.policy} {verdict}: {data.reason}"


def _observed(data: worker.FaultObserved) -> str:
    source = f"rank {data.rank} on {data.node}" if data.rank >= 0 else data.node
    figures = "".join(f", {name} {value:g}" for name, value in data.values.items())
    message = "" if data.message in ("", data.kind) else f": {data.message.splitlines()[0]}"
    return f"{source}: {data.kind or 'fault'} reported by {data.source}{_at(data.step)}{figures}{message}"


def _matched(data: worker.LogMatched) -> str:
    source = f"rank {data.rank} on {data.node}" if data.rank >= 0 else f"kernel of {data.node}"
    times = f" ({data.count} times)" if data.count > 1 else ""
    return f"{source}: {data.cls} by rule {data.rule}{times}: {data.line}"


def _rolled_back(data: job.JobRolledBack) -> str:
    before = "" if data.before is None else f" from step {data.before}"
    return f"to step {data.step}{before}: {data.reason}"


def _formed(data: world.WorldFormed) -> str:
    joined = f", joined: {names(data.joined)}" if data.joined else ""
    gone = f", gone: {names(data.gone)}" if data.gone else ""
    change = f"{joined}{gone}{resume_text(data.resume)}{batch_text(data)}"
    return f"round {data.round}: {world_size(data)}, store {data.store}{change}"


def _interval(data: checkpoint.IntervalChosen) -> str:
    cost = "not measured yet" if data.cost_s is None else format_elapsed(data.cost_s)
    failures = plural(data.failures, "failure") if data.failures else "assumed, no failure yet"
    within = f"{format_duration(round(data.least_s))} to {format_duration(round(data.most_s))}"
    return (
        f"every {plural(data.steps, 'step')} ({format_elapsed(data.interval_s)}): a save takes {cost}; mean time "
        f"between failures {format_duration(round(data.mtbf_s))} ({failures}); permitted {within}"
    )


def _planned(data: world.RoundPlanned) -> str:
    wait = f" in {format_elapsed(data.wait_s)}" if data.wait_s else ""
    return f"round {data.round}{wait}: waits for {plural(data.want, 'node')}"


def _submitted(data: job.JobSubmitted) -> str:
    spec = data.spec
    least = "" if spec.nodes_min == spec.nodes_max else f"{spec.nodes_min} to "
    nodes = f"{least}{plural(spec.nodes_max, 'node')}"
    return f"{data.job} run {data.run} by {data.user}: {' '.join(data.command)} on {nodes}"


def _stopped(data: worker.WorkersStopped) -> str:
    codes = " ".join("(earlier)" if code is None else str(code) for code in data.exitcodes[:NAMES_SHOWN])
    return (
        f"{data.node}: no worker of round {data.round} runs; exit codes {codes or 'none'}{reason_suffix(data.reason)}"
    )


def _refused(data: caller.CallerRefused) -> str:
    name = f" with the name {data.name}" if data.name else ""
    times = (
        f", {plural(data.count, 'time')} from {plural(data.peers, 'address', 'addresses')}" if data.count > 1 else ""
    )
    return f"a caller at {data.peer}{name}: {data.reason}{times}"


def _named(fault: incident.Fault) -> str:
    return f"{title_of(fault.cls, fault.detail)}: {fault.summary}"


def _rediagnosed(data: incident.IncidentRediagnosed) -> str:
    reports = 1 + len(data.fault.collateral)
    return f"{_named(data.fault)} (revision {data.revision}, {plural(reports, 'report')})"


def _deferred(data: incident.DepartureDeferred) -> str:
    ready = f"{plural(data.want, 'node is', 'nodes are')} ready without {'it' if len(data.nodes) == 1 else 'them'}"
    return f"{names(data.nodes)}: training goes on until {ready}, for up to {format_elapsed(data.patience_s)}"


def _departed(data: incident.DepartureBegun) -> str:
    ready = f"ready: {names(data.ready)}" if data.ready else "no other node is ready"
    return f"{names(data.nodes)}: {'leaves' if len(data.nodes) == 1 else 'leave'} now; {ready}"


def _resolved(data: incident.IncidentResolved) -> str:
    lost = "" if data.steps_lost is None else f", {plural(data.steps_lost, 'step')} lost"
    by = f"by {data.policy}, " if data.policy else ""
    return f"{by}{data.outcome}{lost}"


def _checked(data: node.HealthChecked) -> str:
    exchange = f", exchange {data.exchange}" if data.exchange else ""
    warned = "".join(
        f"; {r.name} {r.verdict}{reason_suffix(r.detail)}" for r in data.results if r.verdict in ("failed", "warned")
    )
    names_passed = ", ".join(r.name for r in data.results if r.verdict == "passed")
    passed = f"; passed: {names_passed}" if names_passed else ""
    return f"{data.node}: {data.verdict}{exchange}{reason_suffix(data.detail)}{warned}{passed}"


def _progressed(data: job.JobProgressed) -> str:
    loss = "" if data.loss is None else f", loss {data.loss:g}"
    return f"round {data.round}, step {data.step}{loss}"


def _held(data: checkpoint.MemoryHeld) -> str:
    return f"{data.node}: {_in_memory(data.shards)}"


def _in_memory(shards: Sequence[checkpoint.HeldShard]) -> str:
    own, copies = ([shard for shard in shards if shard.copy is is_copy] for is_copy in (False, True))
    copied = f", and copies of {_steps_of_ranks(copies)}" if copies else ""
    return f"holds {_steps_of_ranks(own) if own else 'nothing'} in memory{copied}"


def _joined(data: node.NodeJoined) -> str:
    held = f"; {_in_memory(data.shards)}" if data.shards else ""
    return f"{data.node} with {plural(data.slots, 'rank')}, {data.host} pid {data.pid}{held}"


def _steps_of_ranks(shards: Sequence[checkpoint.HeldShard]) -> str:
    steps, ranks = sorted({shard.step for shard in shards}), sorted({shard.rank for shard in shards})
    return f"step {', '.join(map(str, steps))} of rank {spans(tuple(ranks))}"


_LINES: dict[type[Any], Callable[[Any], str]] = {
    action.ActionOrdered: _ordered,
    action.ActionDone: lambda data: data.effect,
    action.ActionFailed: lambda data: f"{data.effect}: {data.reason}",
    action.ActionSuperseded: lambda data: f"{data.effect}: {data.reason}",
    anomaly.AnomalyObserved: lambda data: (
        f"{data.machine} {data.instance} in state {data.state}: unexpected {data.event}"
    ),
    caller.CallerRefused: _refused,
    deadline.DeadlineExpired: lambda data: data.key,
    incident.IncidentOpened: lambda data: _named(data.fault),
    incident.IncidentRediagnosed: _rediagnosed,
    incident.IncidentEscalated: lambda data: f"{data.policy} did not succeed: {data.reason}",
    incident.IncidentResolved: _resolved,
    incident.DepartureDeferred: _deferred,
    incident.DepartureBegun: _departed,
    incident.IncidentExhausted: lambda data: data.reason,
    incident.IncidentContinued: sentence,
    checkpoint.MemoryHeld: _held,
    checkpoint.IntervalChosen: _interval,
    checkpoint.ShardPersisted: lambda data: (
        f"{data.node}: step {data.shard.step}, rank {data.shard.rank}, {data.bytes >> 20} MiB in "
        f"{format_elapsed(data.seconds)}: {data.file}"
    ),
    checkpoint.CheckpointFailed: lambda data: f"{data.node}: step {data.step}: {data.reason}",
    checkpoint.StateLoaded: loaded_text,
    checkpoint.BatchesSkipped: skipped_text,
    checkpoint.DataPositioned: positioned_text,
    queue.QueueOpened: sentence,
    queue.QueueReported: sentence,
    queue.QueueLeased: sentence,
    queue.QueueReturned: sentence,
    queue.QueueRefused: sentence,
    queue.QueueEpochEnded: sentence,
    checkpoint.ReplicasFound: lambda data: f"round {data.round}: {groups_text(data.groups)}",
    checkpoint.CheckpointFound: lambda data: (
        f"{data.node}: on storage: " + listed([f"step {each.step} of round {each.round}" for each in data.checkpoints])
    ),
    checkpoint.CheckpointCommitted: lambda data: f"step {data.step} of round {data.round}{reason_suffix(data.where)}",
    job.JobRolledBack: _rolled_back,
    job.RateLowered: lambda data: (
        f"from {data.before:.4g} to {data.factor:.4g} of the script's after step {data.step}: {data.reason}"
    ),
    job.DataSkipped: lambda data: f"{skip_text(data)} after step {data.step}: {data.reason}",
    job.JobSubmitted: _submitted,
    job.JobProgressed: _progressed,
    job.JobFinished: lambda data: f"{data.outcome}, exit code {data.exit_code}: {data.reason}",
    job.JobParked: lambda data: f"{data.error}; fact: {data.fact}",
    job.LogSalvaged: lambda data: f"events up to {data.last} are kept: {data.reason}; damaged log: {data.damaged}",
    job.LogContradicted: lambda data: f"{data.node}: {data.reason}",
    job.JobUnparked: lambda data: f"by {data.who}",
    master.MasterElected: lambda data: f"{data.host} pid {data.pid} leads at {data.address}, ftcore {data.version}",
    node.NodeWarmed: lambda data: f"{data.node}: can start its workers at once",
    node.NodeJoined: _joined,
    node.NodeLeft: lambda data: f"{data.node}: {data.reason}",
    node.NodeGaveUp: lambda data: f"{data.node}: {data.reason}",
    node.NodeLost: lambda data: f"{data.node}: {data.reason}{_at(data.step)}",
    node.NodeQuarantined: lambda data: without_repeats(f"{data.node}: {data.reason}"),
    node.HealthChecked: _checked,
    health.HealthJudged: lambda data: f"before round {data.round}: {health_result(data)}",
    node.OrderObeyed: lambda data: f"{data.node}: {data.effect}{_at(data.step)}",
    node.OrderRefused: lambda data: f"{data.node}: {data.effect}: {data.reason}",
    node.PlatformAnswered: lambda data: (
        f"{data.effect} {'accepted' if data.ok else 'declined'}{reason_suffix(data.reason)}"
    ),
    operator.OperatorCommanded: lambda data: (
        f"{data.command}{f' {data.node}' if data.node else ''} by {data.who}{reason_suffix(data.why)}"
    ),
    operator.OperatorNoted: lambda data: f"by {data.who}: {data.text}",
    policy.AbilityDeclared: lambda data: f"{data.source}: {', '.join(data.abilities) or 'none'}",
    policy.PlanApplied: lambda data: f"{data.policy}: {data.then}",
    policy.PolicyAnswered: lambda data: f"{data.policy} answers {data.verdict}: {data.reason}",
    policy.PolicyFaulted: lambda data: f"{data.policy}: {data.error}",
    policy.AlertRaised: lambda data: f"{data.severity}: {data.text.partition(chr(10))[0]}",
    policy.AlertSent: lambda data: (
        f"alert of event {data.alert} {'sent' if data.ok else 'not sent'}{reason_suffix(data.error)}"
    ),
    policy.PolicyConsidered: _considered,
    policy.PolicyLoaded: lambda data: f"{data.source}: {' > '.join(entry.policy for entry in data.chain)}",
    worker.WorkersStarted: _started,
    worker.WorkersStepped: lambda data: f"{data.node}: round {data.round}, first step {data.step}",
    worker.WorkerFailed: _failed,
    worker.WorkersFinished: lambda data: f"{data.node}: round {data.round}, all ended with code 0{_at(data.step)}",
    worker.WorkersStopped: _stopped,
    worker.WorkersStood: _stood,
    worker.WorkersWentOn: sentence,
    worker.StandstillJudged: lambda e: f"{e.verdict} ({e.cause}): {e.message}{stacks_suffix(e)}",
    worker.FaultObserved: _observed,
    worker.DisruptionEnded: lambda data: f"{data.node}: {data.kind}{reason_suffix(data.message)}",
    imported.LogImported: lambda data: f"{data.source} logs: {data.file_count} files, {data.lines} lines",
    imported.SourceCited: _cited,
    imported.GapFound: lambda data: (
        f"no line for {format_duration((data.end - data.begin) / SECOND)} after {data.place}"
    ),
    retention.ArchiveExtended: lambda data: f"events up to {data.floor} are moved to {data.archive}",
    retention.ArchiveFailed: lambda data: f"no events are removed from the log: {data.error}",
    retention.SpaceRanLow: lambda data: f"{sentence(data)}{_usage(data)}",
    retention.SpaceRecovered: lambda data: f"{sentence(data)}{_usage(data)}",
    worker.LogMatched: _matched,
    worker.WorkersUnstartable: lambda data: f"{data.node}: round {data.round}: {data.error}",
    world.StoreOpened: lambda data: f"{data.node}: round {data.round} at {data.host}:{data.port}",
    world.StoreFailed: lambda data: f"{data.node}: round {data.round}: {data.error}",
    world.RoundPlanned: _planned,
    world.WorldMembers: lambda data: f"round {data.round}: {names(tuple(member.node for member in data.members))}",
    world.WorldFormed: _formed,
    world.RoundStarted: lambda data: f"round {data.round}: every worker runs",
}
