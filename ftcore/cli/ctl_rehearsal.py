"""What a fault of a class meets in a chain: the production engine is given one, in a job that is made up.

``ftctl policy explain`` shows it. The job has four nodes of two workers, may go on with one, and has a checkpoint. The
engine classifies the fault, opens the incident, and every entry of the chain is asked about it, those below the first
that takes it as well: they would be asked if its plan failed.
"""

from collections.abc import Callable, Iterator, Sequence

import attrs

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
    """What an entry says of one fault.

    Args:
        case: what happens.
        verdict: ``take``, ``pass``, ``ask`` (a policy of a package, which is not loaded here), or ``not asked``.
        reason: why.
    """

    case: str
    verdict: str
    reason: str


def _ends(message: str = "", exitcode: int = 1, tail: str = "") -> Cause:
    return lambda job: job.fail(VICTIM, exitcode=exitcode, message=message, tail=tail)


def _seen(kind: str, **values: float) -> Cause:
    return lambda job: job.observe(VICTIM, kind, values=values)


def _asked_for(command: str, node: str = "") -> Cause:
    return lambda job: job.command(command, node)


_WATCHDOG = (
    "[rank3]:[E ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=81213, "
    "OpType=ALLREDUCE) ran for 600029 milliseconds before timing out."
)
_KILLED_FOR_MEMORY = "Memory cgroup out of memory: Killed process 4121 (python) total-vm:9142kB, anon-rss:6710kB"
_NVLINK = "torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution"

CASES: dict[FaultClass, dict[str, Cause]] = {
    F.USER_CODE: {"a worker raises ValueError": _ends("ValueError: bad batch")},
    F.CONFIG_ENV: {"a worker lacks a module": _ends("ModuleNotFoundError: No module named 'x'")},
    F.OOM_GPU: {"a worker runs out of device memory": _ends("torch.OutOfMemoryError: CUDA out of memory.")},
    F.OOM_HOST: {"the kernel ends a worker for memory": _ends(exitcode=-9, tail=_KILLED_FOR_MEMORY)},
    F.STORAGE: {"a worker finds the disk full": _ends("OSError: [Errno 28] No space left on device")},
    F.SIGNAL_PREEMPTION: {
        "a worker is ended by SIGKILL": _ends(exitcode=-9),
        "a node is about to be taken away": _seen("preemption-notice"),
    },
    F.NETWORK_RENDEZVOUS: {
        "a worker finds too few others": _ends("Timed out after 901 seconds waiting for clients. 6/8 clients joined.")
    },
    F.COLLATERAL: {
        "a worker loses its peer": _ends(
            "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:52710"
        )
    },
    F.UNKNOWN: {"something odd is observed": _seen("odd")},
    F.NODE_LOST: {"a node falls silent": lambda job: job.lose(VICTIM)},
    F.CUDA_STICKY: {
        "a worker loses its CUDA context": _ends("RuntimeError: CUDA error: an illegal memory access was encountered")
    },
    F.GPU_HW: {"a worker ends by a device error": _ends(_NVLINK), "a worker reports a memory error": _seen("uce")},
    F.NCCL_TIMEOUT: {"a worker's collective times out": _ends(exitcode=-6, tail=_WATCHDOG)},
    F.NCCL_REMOTE_ERROR: {"a worker's collective fails": _seen("collective")},
    F.NUMERIC: {"the loss spikes": _seen("loss-spike"), "the loss is NaN": _seen("loss-nan")},
    F.DATA_LOADER: {
        "a data loader's worker is killed": _ends(
            "RuntimeError: DataLoader worker (pid 4121) is killed by signal: Bus error."
        )
    },
    F.HANG: {"no rank makes a step": _seen("hang"), "one rank is slow": _seen("straggler", factor=1.5, steps=100.0)},
    F.REQUEST: {
        **{command: _asked_for(command) for command in ("pause", "checkpoint", "stop")},
        **{f"{command} {VICTIM}": _asked_for(command, VICTIM) for command in ("drain", "evict")},
    },
}
"""By class, what may happen."""


def rehearse(loaded: PolicyLoaded, cls: FaultClass, abilities: Sequence[str]) -> list[tuple[Met, ...]]:
    """What each entry of a chain says of the faults of a class, by case.

    Args:
        loaded: the policy.
        cls: the class.
        abilities: what the job can do.
    """
    moments = [moment for case, cause in CASES[cls].items() for moment in _moments(loaded, case, cause, abilities)]
    return [tuple(_met(entry, case, job) for case, job in moments) for entry in loaded.chain]


def _moments(loaded: PolicyLoaded, case: str, cause: Cause, abilities: Sequence[str]) -> Iterator[tuple[str, JobState]]:
    """The job when the chain is asked for the first time, and when the same comes again at the same step."""
    spec = JobSpec(argv=("train.py",), nodes_min=1, nodes_max=4)
    driver = JobDriver(slots=2, spec=spec, policy=loaded, abilities=abilities)
    driver.start()
    driver.make_steps(100)
    driver.commit()
    for name in (case, "the same again at the same step"):
        since = len(driver.events)
        cause(driver)
        job = _when_asked(driver, since)
        if job is None:
            return
        yield name, job
        if job.incident is None or job.incident.kind != "fault":
            return
        driver.settle(step=False)
        world = driver.state.world
        if driver.state.phase != "running" or world is None or world.seat(VICTIM) is None:
            return


def _when_asked(driver: JobDriver, since: int) -> JobState | None:
    """The state before the first verdict behind so many events; None if the chain was not asked."""
    first = next((event.seq for event in driver.events[since:] if type(event.data) is PolicyConsidered), None)
    if first is None:
        return None
    job = JobState()
    for event in driver.events[: first - 1]:
        fold(job, event)
    return job


def _met(entry: ChainEntry, case: str, job: JobState) -> Met:
    assert job.incident is not None
    for answer in consult((entry,), job.incident, job):
        verdict = answer.verdict
        if isinstance(verdict, Take | Pass):
            return Met(case, "take" if isinstance(verdict, Take) else "pass", verdict.reason)
        return Met(case, "ask", "it is asked in a process of its own")
    return Met(case, "not asked", "")
