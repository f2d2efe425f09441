"""One line for people about each type of event."""

from collections.abc import Callable
from typing import Any

import msgspec

from ftcore.cli.ctl_output import duration
from ftcore.commands import OpenStore, ReleaseNode, StartWorkers, StopWorkers
from ftcore.events import action, anomaly, deadline, incident, job, master, node, operator, policy, worker, world
from ftcore.events.codec import payload_to_json
from ftcore.events.envelope import Event, Unknown
from ftcore.events.registry import Kind
from ftcore.faults.classify import signal_name

NAMES_SHOWN = 6
"""Names in a line; after them only how many more."""

_STYLES = {
    "worker.failed": "bad",
    "workers.unstartable": "bad",
    "node.lost": "bad",
    "store.failed": "bad",
    "action.failed": "bad",
    "incident.exhausted": "bad",
    "job.parked": "bad",
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
    """The style of its line."""
    return _STYLES.get(event.type, "" if event.kind is Kind.FACT else "quiet")


def summary(event: Event) -> str:
    """What the event says, in one line; for a type without a line of its own, its data."""
    line = _LINES.get(type(event.data))
    text = line(event.data) if line is not None else _plain(event.data)
    known = f" [unknown version {event.v}]" if type(event.data) is Unknown else ""
    return f"{event.incident}: {text}{known}" if event.incident is not None else f"{text}{known}"


def _plain(data: Any) -> str:
    return msgspec.json.encode(payload_to_json(data)).decode()


def names(several: tuple[str, ...]) -> str:
    """A few names, and how many more."""
    more = len(several) - NAMES_SHOWN
    return " ".join(several[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _at(step: int | None) -> str:
    return "" if step is None else f" after step {step}"


def _exit(code: int) -> str:
    return f"was ended by {signal_name(-code)}" if code < 0 else f"exited with code {code}"


def _failed(data: worker.WorkerFailed) -> str:
    said = data.error.message if data.error is not None else ""
    said = f": {said.splitlines()[0]}" if said else ""
    who = f"rank {data.rank} (local {data.local_rank}) on {data.node}"
    return f"{who} {_exit(data.exitcode)}{_at(data.step)}{said}"


def _ordered(data: action.ActionOrdered) -> str:
    command = data.command
    if isinstance(command, StartWorkers):
        what = f"start the workers of round {command.round}"
    elif isinstance(command, StopWorkers):
        what = f"stop the workers of round {command.round}, grace {duration(command.grace_s)}"
    elif isinstance(command, OpenStore):
        what = f"open a store for round {command.round}"
    else:
        assert isinstance(command, ReleaseNode)
        what = f"leave: {command.outcome}, exit code {command.exit_code}"
    limit = "" if data.deadline_s is None else f" (within {duration(data.deadline_s)})"
    return f"{names(data.nodes) or 'all members'}: {what}{limit}"


def _considered(data: policy.PolicyConsidered) -> str:
    wait = f", after a back-off of {duration(data.wait_s)}" if data.wait_s else ""
    verdict = f"takes it ({data.plan}{wait})" if data.verdict == "take" else "passes"
    return f"{data.policy} {verdict}: {data.reason}"


def _formed(data: world.WorldFormed) -> str:
    joined = f", joined: {names(data.joined)}" if data.joined else ""
    gone = f", gone: {names(data.gone)}" if data.gone else ""
    return f"round {data.round}: {data.size} ranks on {data.nodes} nodes, store {data.store}{joined}{gone}"


def _planned(data: world.RoundPlanned) -> str:
    wait = f" in {duration(data.wait_s)}" if data.wait_s else ""
    return f"round {data.round}{wait}: waits for {data.want} nodes"


def _submitted(data: job.JobSubmitted) -> str:
    spec = data.spec
    nodes = str(spec.nodes_max) if spec.nodes_min == spec.nodes_max else f"{spec.nodes_min} to {spec.nodes_max}"
    return f"{data.job} run {data.run} by {data.user}: {' '.join(data.command)} on {nodes} nodes"


def _stopped(data: worker.WorkersStopped) -> str:
    codes = " ".join("ended" if code is None else str(code) for code in data.exitcodes[:NAMES_SHOWN])
    return f"{data.node}: none of round {data.round} runs; exit codes {codes or 'none'}{_why(data.reason)}"


def _why(reason: str) -> str:
    return f": {reason}" if reason else ""


def _rediagnosed(data: incident.IncidentRediagnosed) -> str:
    reports = 1 + len(data.fault.collateral)
    return f"{data.fault.cls}: {data.fault.summary} (revision {data.revision}, {reports} reports)"


def _resolved(data: incident.IncidentResolved) -> str:
    lost = "" if data.steps_lost is None else f", {data.steps_lost} steps lost"
    return f"by {data.policy}, {data.outcome}{lost}"


def _progressed(data: job.JobProgressed) -> str:
    loss = "" if data.loss is None else f", loss {data.loss:g}"
    return f"round {data.round}, step {data.step}{loss}"


_LINES: dict[type[Any], Callable[[Any], str]] = {
    action.ActionOrdered: _ordered,
    action.ActionDone: lambda data: data.effect,
    action.ActionFailed: lambda data: f"{data.effect}: {data.reason}",
    action.ActionSuperseded: lambda data: f"{data.effect}: {data.reason}",
    anomaly.AnomalyObserved: lambda data: f"{data.machine} {data.instance} in {data.state} met {data.event}",
    deadline.DeadlineExpired: lambda data: data.key,
    incident.IncidentOpened: lambda data: f"{data.fault.cls}: {data.fault.summary}",
    incident.IncidentRediagnosed: _rediagnosed,
    incident.IncidentEscalated: lambda data: f"past {data.policy}: {data.reason}",
    incident.IncidentResolved: _resolved,
    incident.IncidentExhausted: lambda data: data.reason,
    job.JobSubmitted: _submitted,
    job.JobProgressed: _progressed,
    job.JobFinished: lambda data: f"{data.outcome}, exit code {data.exit_code}: {data.reason}",
    job.JobParked: lambda data: f"{data.error}; fact: {data.fact}",
    job.JobUnparked: lambda data: f"by {data.who}",
    master.MasterElected: lambda data: f"{data.host} pid {data.pid} leads at {data.address}, ftcore {data.version}",
    node.NodeJoined: lambda data: f"{data.node} with {data.slots} ranks, {data.host} pid {data.pid}",
    node.NodeLeft: lambda data: f"{data.node}: {data.reason}",
    node.NodeLost: lambda data: f"{data.node}: {data.reason}{_at(data.step)}",
    operator.OperatorCommanded: lambda data: f"{data.command} by {data.who}{_why(data.why)}",
    policy.PolicyConsidered: _considered,
    policy.PolicyLoaded: lambda data: f"{data.source}: {' > '.join(entry.policy for entry in data.chain)}",
    worker.WorkersStarted: lambda data: f"{data.node}: round {data.round}, {len(data.pids)} workers by {data.how}",
    worker.WorkersStepped: lambda data: f"{data.node}: round {data.round}, first step {data.step}",
    worker.WorkerFailed: _failed,
    worker.WorkersFinished: lambda data: f"{data.node}: round {data.round}, all ended with code 0{_at(data.step)}",
    worker.WorkersStopped: _stopped,
    worker.WorkersUnstartable: lambda data: f"{data.node}: round {data.round}: {data.error}",
    world.StoreOpened: lambda data: f"{data.node}: round {data.round} at {data.host}:{data.port}",
    world.StoreFailed: lambda data: f"{data.node}: round {data.round}: {data.error}",
    world.RoundPlanned: _planned,
    world.WorldMembers: lambda data: f"round {data.round}: {names(tuple(member.node for member in data.members))}",
    world.WorldFormed: _formed,
    world.RoundStarted: lambda data: f"round {data.round}: every worker runs",
}
