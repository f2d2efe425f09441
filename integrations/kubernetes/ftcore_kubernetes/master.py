"""The master's pod: brings the first worker pods, then runs ``ftrun --leadership only`` while there are any.

A master without agents ends after some seconds, and a job may wait for machines for hours. So this process fills the
places itself until a worker pod runs. Then the platform of the running master does it, by the same code.

When the training has ended, it ends with 0 (succeeded), 81 (failed) or 82 (stopped): then Kubernetes starts no further
master. With any other exit code it does. This process itself repeats what fails, with a growing pause, whatever it was.
"""

import asyncio
import contextlib
import json
import signal
import sys
import traceback
from typing import Any, Final

from ftcore.errors import FtcoreError
from ftcore_kubernetes.adapter import KubernetesUrl
from ftcore_kubernetes.api import KubeObject
from ftcore_kubernetes.config import ApiConfig
from ftcore_kubernetes.facts import OWN_CODES, end_of, is_live, waits_for
from ftcore_kubernetes.job_file import TrainJob
from ftcore_kubernetes.manifests import JOB_FAILED, JOB_STOPPED
from ftcore_kubernetes.platform import KubernetesPlatform
from ftcore_kubernetes.pods import master_command, store_url

RETRY_S: Final = (1.0, 15.0)
"""First and longest pause after something failed: no answer of the API server, or a master that ended at once."""

POLL_S: Final = 0.25
STATUS_S: Final = 20.0
STOP_S: Final = 8.0
STABLE_S: Final = 30.0

ENDED: Final = {"succeeded": (0, 0), "failed": (1, JOB_FAILED), "stopped": (5, JOB_STOPPED)}
"""States of a job that has ended: the exit code of its ``ftrun``, and that of this process."""


def say(text: str) -> None:
    """Print a line into the pod's log."""
    print(f"ftctl k8s: {text}", file=sys.stderr, flush=True)


class MasterPod:
    """The work of the master's pod.

    Args:
        url: which job.
        config: the API server.
    """

    def __init__(self, url: KubernetesUrl, config: ApiConfig) -> None:
        self._url, self._config = url, config
        self._stop = asyncio.Event()
        self._pause_s = RETRY_S[0]

    async def run(self) -> int:
        """Do it until the job has ended or SIGTERM comes; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        while not self._stop.is_set():
            begun = loop.time()
            try:
                job = await self._wait_for_a_worker()
                if isinstance(job, int):
                    return job
                if job is not None:
                    await self._lead(job)
                    self._pause_s = RETRY_S[0] if loop.time() - begun > STABLE_S else self._pause_s
            except FtcoreError as error:
                say(str(error))
            except Exception as error:  # a defect must not end the Job, nor cost one of its tries
                say(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
            await self._sleep()
        return 143

    async def _wait_for_a_worker(self) -> TrainJob | int | None:
        """Fill the places until a worker pod runs; returns the job, or its exit code if it has ended."""
        platform = KubernetesPlatform(self._url, self._config)
        printed: set[str] = set()
        try:
            pods = await platform.pool.refresh()
            job, _ = await platform.pool.job()
            if (code := await self._ended(job, platform)) is not None:
                return code
            if any(_runs(pod) for pod in pods.values()):
                return job
            stop = asyncio.create_task(self._stop.wait())
            watch = platform.watch()
            try:
                while not stop.done():
                    step = asyncio.ensure_future(anext(watch))
                    while not step.done() and not stop.done():
                        await asyncio.wait({step, stop}, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                        _print_waiting(platform.pool.workers(), printed)
                        if any(_runs(pod) for pod in platform.pool.workers().values()):
                            step.cancel()
                            await asyncio.gather(step, return_exceptions=True)
                            return (await platform.pool.job())[0]
                    step.cancel()
                    (found,) = await asyncio.gather(step, return_exceptions=True)
                    if isinstance(found, Exception):
                        raise found
            finally:
                stop.cancel()
                await watch.aclose()  # type: ignore[attr-defined]
        finally:
            await platform.close()
        return None

    async def _lead(self, job: TrainJob) -> None:
        """Run one candidate for the master role until it ends, or SIGTERM comes."""
        process = await asyncio.create_subprocess_exec(*master_command(job, self._url.namespace))
        stop = asyncio.create_task(self._stop.wait())
        ended = asyncio.create_task(process.wait())
        await asyncio.wait({stop, ended}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not ended.done():
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(ended), STOP_S)
        if not ended.done():
            process.kill()
        code = await ended
        if code:
            say(f"the master ended with code {code}")

    async def _ended(self, job: TrainJob, platform: KubernetesPlatform) -> int | None:
        """The exit code, if the job has ended and its pods have taken part in that."""
        pods = platform.pool.workers()
        ends = [end for pod in pods.values() if (end := end_of(pod)) is not None and end.code in OWN_CODES]
        if not ends or (status := await _status(job)) is None:
            return None
        job_code, code = ENDED.get(str(status.get("state")), (None, 0))
        if job_code is None or all(end.code != job_code for end in ends):
            return None
        say(f"the job has {status['state']}")
        while any(is_live(pod) for pod in pods.values()) and not self._stop.is_set():
            await self._sleep()  # pods that end after it
            pods = await platform.pool.refresh()
        return code

    async def _sleep(self) -> None:
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, RETRY_S[1])
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), pause_s)


def _runs(pod: KubeObject) -> bool:
    return (pod.get("status") or {}).get("phase") == "Running" and is_live(pod)


def _print_waiting(pods: dict[str, KubeObject], printed: set[str]) -> None:
    for name, pod in pods.items():
        why = waits_for(pod)
        if why and f"{name} {why}" not in printed:
            printed.add(f"{name} {why}")
            say(f"pod {name} waits: {why}")


async def _status(job: TrainJob) -> dict[str, Any] | None:
    """The output of ``ftctl status``; None: there is no such job yet, or its store is unreachable."""
    argv = ["ftctl", "--store", store_url(job), "status", "--job", job.name, "--format", "json"]
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, stdin=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(STATUS_S):
            out, _ = await process.communicate()
        found: dict[str, Any] = json.loads(out)
        return found
    except (TimeoutError, ValueError):
        return None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
