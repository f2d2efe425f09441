"""Reads the state of the calling torchrun agent; the only place where this backend does so.

torchrun passes neither the agent nor the worker group to its handler. Both are on the stack of every call, so they are
found there by type. Only documented classes are read: ``ElasticAgent``, ``WorkerGroup``, ``WorkerSpec``, ``RunResult``
and ``ChildFailedError``.

House rule: nothing here raises if an object is not found.
"""

import sys
from pathlib import Path
from types import FrameType
from typing import Any


def worker_group(handler: object) -> Any:
    """The ``WorkerGroup`` of the calling agent, if it uses this handler; None if it is not found."""
    from torch.distributed.elastic.agent.server.api import ElasticAgent

    for frame in _frames():
        agent = frame.f_locals.get("self")
        if isinstance(agent, ElasticAgent):
            group = agent.get_worker_group()
            if group.spec.rdzv_handler is handler:
                return group
    return None


def failures() -> list[dict[str, Any]]:
    """The worker failures that the calling agent has just detected, the first one first."""
    from torch.distributed.elastic.agent.server.api import RunResult

    for frame in _frames():
        for found in frame.f_locals.values():
            if isinstance(found, RunResult):
                return _listed(found.failures)
    return []


def raised() -> tuple[str, list[dict[str, Any]]]:
    """The exception that the caller handles: name and first line (empty if there is none), and worker failures."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    error = sys.exception()
    if error is None:
        return "", []
    if isinstance(error, ChildFailedError):
        return "ChildFailedError", _listed(error.failures)
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__, []


def failed(group: Any) -> bool:
    """Whether the agent has found its workers failed, even if no exception was raised for it."""
    from torch.distributed.elastic.agent.server.api import WorkerState

    return group is not None and group.state is WorkerState.FAILED


def pids(group: Any) -> dict[int, int]:
    """The workers' process ids by local rank, without invalid ids."""
    if group is None:
        return {}
    return {worker.local_rank: worker.id for worker in group.workers if isinstance(worker.id, int) and worker.id > 1}


def job_spec(spec: Any) -> dict[str, Any]:
    """The fields of ``JobSpec`` for what torchrun runs; they are the same on all nodes."""
    args = [str(arg) for arg in spec.args]
    if not isinstance(spec.entrypoint, str):
        return {"argv": [getattr(spec.entrypoint, "__qualname__", "function"), *args]}
    if not Path(spec.entrypoint).name.startswith("python"):
        return {"argv": [spec.entrypoint, *args], "no_python": True}
    if args[:1] == ["-u"]:
        args = args[1:]
    if args[:1] == ["-m"]:
        return {"argv": args[1:], "module": True}
    return {"argv": args}


def _listed(found: Any) -> list[dict[str, Any]]:
    failed = sorted(found.values(), key=lambda failure: (failure.exitcode == -15, failure.timestamp))
    return [
        {"local_rank": each.local_rank, "pid": each.pid, "exitcode": each.exitcode, "error_file": str(each.error_file)}
        for each in failed
    ]


def _frames() -> list[FrameType]:
    found: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found
