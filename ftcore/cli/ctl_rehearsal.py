"""Runs a fault of a class through a chain, with the production engine and a simulated job.

``ftctl policy explain`` prints the result. The job has four nodes of two workers, a minimum of one node, and a
checkpoint. The engine classifies the fault and opens the incident. Every entry of the chain is asked, also those below
the first that takes the incident: they are asked if its plan fails.
"""

from collections.abc import Callable, Iterator, Sequence

import attrs

from ftcore.events.checkpoint import CheckpointFailed
from ftcore.events.job import JobSpec
from ftcore.events.policy import ChainEntry, PolicyConsidered, PolicyLoaded
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.base import Pass, Take
from ftcore.policies.chain import consult
from ftcore.states.fold import fold
from ftcore.states.model import JobState
from ftcore.testing.driver import JobDriver

VICTIM = "node1"
F = FaultClass

Cause = Callable[[JobDriver], None]


@attrs.frozen
class Met:
    """The answer of an entry of the chain to one fault.

    Args:
        case: the fault.
        verdict: ``take``, ``pass``, ``ask`` (a policy of a package, which is not loaded here), or ``not asked``.
        reason: why.
    """

    case: str
    verdict: str
    reason: str


def _fails(message: str = "", exitcode: int = 1, tail: str = "") -> Cause:
    return lambda job: job.fail(VICTIM, exitcode=exitcode, message=message, tail=tail)


def _observed(kind: str, **values: float) -> Cause:
    return lambda job: job.observe(VICTIM, kind, values=values)


def _away(job: JobDriver) -> None:
    found = job.state.membership.nodes[VICTIM]
    job.say(
        VICTIM,
        CheckpointFailed(
            node=VICTIM, incarnation=found.incarnation, round=found.round, step=job.step, reason="full", away=True
        ),
    )


def _requested(command: str, node: str = "") -> Cause:
    return lambda job: job.command(command, node)


_WATCHDOG = (
    "[rank3]:[E ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=81213, "
    "OpType=ALLREDUCE) ran for 600029 milliseconds before timing out."
)
_KILLED_FOR_MEMORY = "Memory cgroup out of memory: Killed process 4121 (python) total-vm:9142kB, anon-rss:6710kB"
_NVLINK = "torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution"

CASES: dict[FaultClass, dict[str, Cause]] = {
    F.USER_CODE: {"a worker raises ValueError": _fails("ValueError: bad batch")},
    F.CONFIG_ENV: {"a worker lacks a module": _fails("ModuleNotFoundError: No module named 'x'")},
    F.OOM_GPU: {"a worker runs out of device memory": _fails("torch.OutOfMemoryError: CUDA out of memory.")},
    F.OOM_HOST: {"the kernel kills a worker for lack of memory": _fails(exitcode=-9, tail=_KILLED_FOR_MEMORY)},
    F.STORAGE: {
        "a worker finds the disk full": _fails("OSError: [Errno 28] No space left on device"),
        "the storage refuses a checkpoint": _away,
    },
    F.SIGNAL_PREEMPTION: {
        "a worker is ended by SIGKILL": _fails(exitcode=-9),
        "a node is about to be preempted": _observed("preemption-notice"),
        "maintenance of a node is announced": _observed("maintenance-notice"),
    },
    F.NETWORK_RENDEZVOUS: {
        "a worker finds too few others": _fails("Timed out after 901 seconds waiting for clients. 6/8 clients joined.")
    },
    F.COLLATERAL: {
        "a worker loses its peer": _fails(
            "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:52710"
        )
    },
    F.UNKNOWN: {"an unknown anomaly is observed": _observed("odd")},
    F.NODE_LOST: {"a node sends no more heartbeats": lambda job: job.lose(VICTIM)},
    F.CUDA_STICKY: {
        "a worker loses its CUDA context": _fails("RuntimeError: CUDA error: an illegal memory access was encountered")
    },
    F.GPU_HW: {
        "a worker fails with a device error": _fails(_NVLINK),
        "a worker reports a memory error": _observed("uce"),
    },
    F.NCCL_TIMEOUT: {"a worker's collective times out": _fails(exitcode=-6, tail=_WATCHDOG)},
    F.NCCL_REMOTE_ERROR: {"a worker's collective fails": _observed("collective")},
    F.NUMERIC: {"the loss spikes": _observed("loss-spike"), "the loss is NaN": _observed("loss-nan")},
    F.DATA_LOADER: {
        "a data loader's worker is killed": _fails(
            "RuntimeError: DataLoader worker (pid 4121) is killed by signal: Bus error."
        )
    },
    F.HANG: {
        "no rank completes a step": _observed("hang"),
        "one rank is slow": _observed("straggler", factor=1.5, steps=100.0),
    },
    F.REQUEST: {
        **{command: _requested(command) for command in ("pause", "checkpoint", "stop")},
        **{f"{command} {VICTIM}": _requested(command, VICTIM) for command in ("drain", "evict")},
    },
}
"""Possible faults of each class."""


def rehearse(loaded: PolicyLoaded, cls: FaultClass, abilities: Sequence[str]) -> list[tuple[Met, ...]]:
    """For each entry of the chain, its answers to the faults of a class.

    Args:
        loaded: the policy.
        cls: the class.
        abilities: abilities of the job.
    """
    states = [state for case, cause in CASES[cls].items() for state in _states(loaded, case, cause, abilities)]
    return [tuple(_answer(entry, case, job) for case, job in states) for entry in loaded.chain]


def _states(loaded: PolicyLoaded, case: str, cause: Cause, abilities: Sequence[str]) -> Iterator[tuple[str, JobState]]:
    """Yield the job's state when the chain is asked first, and when the same fault recurs at the same step."""
    spec = JobSpec(argv=("train.py",), nodes_min=1, nodes_max=4)
    driver = JobDriver(slots=2, spec=spec, policy=loaded, abilities=abilities)
    driver.start()
    driver.make_steps(100)
    driver.commit()
    for name in (case, "the same fault again at the same step"):
        since = len(driver.events)
        cause(driver)
        job = _when_asked(driver, since)
        if job is None:
            return
        yield name, job
        if job.incident is None or job.incident.kind != "fault":
            return
        driver.settle(step=False)
        world = driver.state.rounds.world
        if driver.state.phase != "running" or world is None or world.seat(VICTIM) is None:
            return


def _when_asked(driver: JobDriver, since: int) -> JobState | None:
    """The state before the first verdict after ``since`` events; None if the chain was not asked."""
    first = next((event.seq for event in driver.events[since:] if type(event.data) is PolicyConsidered), None)
    if first is None:
        return None
    job = JobState()
    for event in driver.events[: first - 1]:
        fold(job, event)
    return job


def _answer(entry: ChainEntry, case: str, job: JobState) -> Met:
    assert job.incident is not None
    for answer in consult((entry,), job.incident, job):
        verdict = answer.verdict
        if isinstance(verdict, Take | Pass):
            return Met(case, "take" if isinstance(verdict, Take) else "pass", verdict.reason)
        return Met(case, "ask", "this policy runs in its own process")
    return Met(case, "not asked", "")
