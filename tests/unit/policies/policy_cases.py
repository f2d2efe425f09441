"""Jobs in trouble, for tests of single verdicts: a job that the engine started, and an incident put on top of it."""

from typing import Any

from ftcore.events.incident import Fault
from ftcore.events.job import JobSpec
from ftcore.events.policy import ChainEntry, PolicyLoaded
from ftcore.ids import seconds
from ftcore.policies.base import Verdict
from ftcore.policies.chain import BUILT_IN, DEFAULT_ORDER, default_entry
from ftcore.policies.options import filled
from ftcore.states.evidence import Report
from ftcore.states.incident import IncidentPhase
from ftcore.states.model import IncidentState, JobState, OperatorRequest
from ftcore.testing.driver import JobDriver


def entry(name: str, **given: Any) -> ChainEntry:
    """An entry with its defaults, or what is given."""
    made = default_entry(name)
    assert set(given) <= set(made.options), given
    made.options.update(given)
    return made


def chain(*names: str, **options: dict[str, Any]) -> PolicyLoaded:
    """A chain of these policies; options by policy."""
    entries = tuple(entry(name, **options.get(name, {})) for name in names)
    return PolicyLoaded(source="test", text="", digest="digest", chain=entries)


def running(
    nodes: int = 3, *, least: int = 0, most: int = 0, unit: int = 1, abilities: tuple[str, ...] = (), **options: Any
) -> JobDriver:
    """A job that has trained for ten steps on so many nodes; held, so that what happens to it starts no recovery."""
    spec = JobSpec(argv=("train.py",), nodes_min=least or nodes, nodes_max=most or nodes, node_unit=unit)
    policy = chain(*(name for name in DEFAULT_ORDER if name != "grow"), **options)  # a chance to grow is not held
    driver = JobDriver(spec=spec, policy=policy, abilities=abilities)
    driver.submit()
    for number in range(nodes):
        driver.join(f"node{number}")
    while driver.state.phase != "running":
        driver.settle()
        assert driver.state.phase == "running" or driver.wait()
    driver.make_steps(9)
    driver.state.training.step, driver.state.requests.held = driver.step, True
    return driver


def incident(
    job: JobState,
    cls: str,
    *,
    kind: str = "fault",
    detail: str = "",
    node: str = "node1",
    observed: str = "",
    source: str = "worker",
    ended: bool = False,
    step: int | None = 10,
    values: dict[str, float] | None = None,
    **more: Any,
) -> IncidentState:
    """An incident of a node's only rank, with the report that it came of.

    Args:
        observed: kind of the ``fault.observed`` that it came of, if it did.
        source: who observed it.
        ended: the rank's process ended.
    """
    round_ = job.rounds.world.round if job.rounds.world is not None else 0
    rank = int(node.removeprefix("node") or 0) if node.startswith("node") else 0
    if observed or ended:
        job.evidence.reports.append(
            Report(
                seq=9999,
                type="fault.observed" if observed else "worker.failed",
                node=node,
                rank=rank,
                round=round_,
                time=job.time,
                mono=0,
                boot="",
                exitcode=-9 if ended else None,
                message="it broke",
                tail="",
                step=step,
                absolute=True,
                source=source if observed else "",
                kind=observed,
                values=values or {},
            )
        )
    fault = Fault(
        cls=cls,
        detail=detail or observed,
        nodes=(node,) if node else (),
        ranks=(rank,),
        root=9999,
        summary=f"rank {rank} on {node}: it broke",
        step=step,
        absolute=True,
    )
    if kind == "fault" and node:
        job.evidence.node_faults.setdefault(node, []).append(job.time)
    return IncidentState(
        id="i1",
        kind=kind,
        phase=IncidentPhase.OPEN,
        fault=fault,
        revision=1,
        opened=job.time,
        round=round_,
        progress=step,
        absolute=True,
        **more,
    )


def request(job: JobState, command: str, node: str = "") -> IncidentState:
    """Somebody asks for something."""
    job.requests.pending = OperatorRequest(seq=9999, command=command, who="me@here", why="maintenance", node=node)
    return incident(job, "request", kind="request", detail=command, node=node)


def ask(name: str, about: IncidentState, job: JobState, **options: Any) -> Verdict:
    """What a policy answers."""
    return BUILT_IN[name].considers(about, job, filled(BUILT_IN[name].options, entry(name, **options).options))


def ago(job: JobState, seconds_: float) -> int:
    """The time so many seconds before now."""
    return job.time - seconds(seconds_)
