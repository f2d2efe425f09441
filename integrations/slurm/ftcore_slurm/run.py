"""The batch script's side of a job: the log's etcd, one ``srun`` with an agent on every node, and what follows its end.

| the job | then |
|---|---|
| succeeded | exit code 0 |
| Slurm's signal came before a time limit | it saves and stops in order, and is requeued |
| an operator stopped it | exit code 5 |
| failed, or its chain gave up, or all nodes are gone | requeued as last resort, if it completed a step since |
| has too few nodes, also at its start | requeued as last resort: Slurm gives dead nodes until it misses them |

A requeued job has the same number, so the same name and the same log, and goes on in it. SIGTERM is Slurm's last word
(``scancel``, a time limit that came first): the job is not requeued.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from ftcore.errors import FtcoreError, Unreachable, UsageError
from ftcore_slurm import control
from ftcore_slurm.drains import NodeDrains
from ftcore_slurm.ending import JobEnding, say
from ftcore_slurm.environment import JOB_ENV, NODES_ENV, OWNER_ENV, job_name, job_number, own
from ftcore_slurm.following import new_events
from ftcore_slurm.member import EtcdMember, write_secret

DIR_ENV: Final = "FTCORE_SLURM_DIR"
STORE_ENV: Final = "FTCORE_STORE"

OWN_FLAGS: Final = ("--job", "--rdzv-id", "--store", "--rdzv-endpoint", "--nnodes", "--node-rank", "--node-id")
"""Flags of ``ftrun`` that the allocation decides."""

SWITCHES: Final = ("-m", "--module", "--no-python", "--run-path", "--no-preload", "--virtual-local-rank")
"""Flags of ``ftrun`` without a value."""

MARGIN_S: Final = 30.0
"""Time that is kept for the requeue, of that before the time limit."""

TERM_S: Final = 20.0
"""Time for a stop after SIGTERM; Slurm's KillWait is 30 s by default."""

LEAVE_S: Final = 20.0
"""Time for the agents to end after the job, before dead nodes are looked for."""

END_S: Final = 5.0
"""Time for ``srun`` to end after SIGTERM."""

KILLED_S: Final = 120.0
"""How long Slurm may take to end this process after it has accepted a requeue."""


@attrs.frozen(kw_only=True)
class RunOptions:
    """Options of ``ftctl slurm run``.

    Args:
        nodes: nodes that train; further nodes of the allocation are spares.
        lead_s: seconds between Slurm's signal and the time limit.
        requeues: how often the job may be requeued as the last resort.
        drains: have Slurm drain nodes that the job has quarantined or lost.
        etcd: etcd's program, for the job's own log.
        directory: parent of the job's directory on a shared file system.
        command: for ``ftrun``.
    """

    nodes: int
    lead_s: float
    requeues: int
    drains: bool
    etcd: str
    directory: Path
    command: Sequence[str]


def flags_of_the_allocation(command: Sequence[str]) -> list[str]:
    """Flags for ``ftrun`` that must not be given, because the allocation decides them."""
    found, before = [], "-m"
    for word in command:
        name = word.partition("=")[0].replace("_", "-")
        if not word.startswith("-") and (not before.startswith("-") or before in SWITCHES or "=" in before):
            break  # the script
        if word.startswith("-") and name in OWN_FLAGS:
            found.append(name)
        before = word
    return found


class BatchRun:
    """One run of a job, from the batch script's start to its end or requeue. It changes this process's environment.

    Args:
        options: the options.
        env: the environment of the batch script.

    Raises:
        UsageError: this is no batch script of Slurm, or its allocation is too small.
    """

    def __init__(self, options: RunOptions, env: Mapping[str, str]) -> None:
        if "SLURM_JOB_ID" not in env or "SLURM_STEP_ID" in env:
            raise UsageError("ftctl slurm run belongs in a batch script: submit one that ftctl slurm script wrote")
        if int(env.get("SLURM_HET_SIZE", "1")) > 1:
            raise UsageError("heterogeneous jobs are not supported")
        self._options, self._env = options, own(env)
        self._allocated = int(env.get("SLURM_JOB_NUM_NODES", env.get("SLURM_NNODES", "1")))
        if options.nodes > self._allocated:
            raise UsageError(f"--nodes: found {options.nodes}; the allocation has {self._allocated}")
        self._name = job_name(self._env)
        self._directory = options.directory / self._name
        self._ending = JobEnding(
            number=job_number(self._env),
            restarts=int(env.get("SLURM_RESTART_COUNT", "0")),
            requeues=options.requeues,
            directory=self._directory,
        )
        self._nodes: tuple[str, ...] = ()
        self._why = ""
        self._is_last_word = False
        self._stopping: asyncio.Task[None] | None = None
        self._srun: asyncio.subprocess.Process | None = None

    async def run(self) -> int:
        """Run the job; returns the exit code, unless Slurm requeues it."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._time_is_up)
        loop.add_signal_handler(signal.SIGTERM, self._last_word)
        self._set_environment()
        owns_log = STORE_ENV not in os.environ
        member = await self._member() if owns_log else None
        beside = [loop.create_task(self._deputies(owns_log))]
        if self._options.drains:
            beside.append(loop.create_task(NodeDrains(os.environ[STORE_ENV], self._name).run()))
        try:
            if lost := await self._lost_nodes():
                code, status, why = 1, dict[str, Any](), self._ending.within_limit(lost)
            else:
                before = await self._ending.status()
                code = await self._agents()
                if self._stopping is not None:
                    await self._stopping
                status = await self._ending.status()
                if status.get("last_seq") == before.get("last_seq"):
                    status = {}  # no agent has joined
                why = await self._requeued_for(status)
            if self._is_last_word:
                why = ""
        finally:
            for task in beside:
                task.cancel()
            if member is not None:
                await member.stop()
        if why:
            told_to_end = asyncio.Event()
            loop.add_signal_handler(signal.SIGTERM, told_to_end.set)  # Slurm's answer to the requeue
            try:
                if await self._ending.requeue(why, status, self._options.lead_s, last_resort=not self._why):
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(told_to_end.wait(), KILLED_S)
            except Unreachable as error:
                say(f"not requeued: {error}")
        return int(status["exit_code"]) if status.get("exit_code") is not None else code

    # -- parts

    def _set_environment(self) -> None:
        """What agents, ``ftctl`` and deputies find the job by."""
        os.environ.clear()
        os.environ |= self._env
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ |= {JOB_ENV: self._name, NODES_ENV: str(self._options.nodes), OWNER_ENV: self._env["SLURM_JOB_ID"]}
        if not {"FTCORE_TOKEN", "FTCORE_TOKEN_FILE", "FTCORE_TLS_CA"} & os.environ.keys():
            write_secret(self._directory / "token")  # other users of the cluster reach the ports of agents and masters
            os.environ["FTCORE_TOKEN_FILE"] = str(self._directory / "token")

    async def _member(self) -> EtcdMember:
        node = self._env.get("SLURMD_NODENAME", "")
        address = (await control.addresses_of([node]))[node][0] if node else "127.0.0.1"
        member = EtcdMember(self._directory, address, self._options.etcd)
        await member.start()
        for name in ("FTCORE_ETCD_USER", "FTCORE_ETCD_PASSWORD"):
            os.environ.pop(name, None)
        os.environ |= {STORE_ENV: member.url, "FTCORE_ETCD_PASSWORD_FILE": str(member.password_file)}
        say(f"the log of {self._name} is in {member.url}, with its data in {self._directory}")
        return member

    async def _agents(self) -> int:
        """Run an agent on each node; returns the highest exit code, also of an agent that was released."""
        if self._stopping is not None:
            return 1
        with contextlib.suppress(FtcoreError):
            left_s = await control.seconds_left(self._ending.number)
            if left_s is not None and left_s < self._options.lead_s:
                say(f"the time limit is in {left_s:.0f} s, less than --lead {self._options.lead_s:g}")
        flags = ["--unbuffered", "--job-name=ftrun"]
        if cpus := self._env.get("SLURM_CPUS_PER_TASK"):
            flags.append(f"--cpus-per-task={cpus}")
        self._srun = await self._step(*flags, control.beside_python("ftrun"), *self._options.command)
        leaving = asyncio.get_running_loop().create_task(self._leave_dead_nodes(self._srun))
        try:
            return await self._srun.wait()
        finally:
            leaving.cancel()

    async def _leave_dead_nodes(self, srun: asyncio.subprocess.Process) -> None:
        """End the step after the job's end if a node is dead: ``srun`` waits for it until Slurm misses it, too."""
        async for event in new_events(os.environ[STORE_ENV], self._name):
            if event.type == "job.finished":
                break
        while True:
            await asyncio.sleep(LEAVE_S)
            with contextlib.suppress(FtcoreError):
                if dead := await control.unreachable(await control.nodes_of(self._ending.number)):
                    say(f"the job has ended; {', '.join(dead[:10])} cannot be reached, and is not waited for")
                    await _end(srun)
                    return

    async def _deputies(self, owns_log: bool) -> None:
        """Have a deputy on each node, should this host be lost; see ``deputy``."""
        flags = [f"--lead={self._options.lead_s:g}", f"--requeues={self._options.requeues}"]
        flags += [f"--dir={self._options.directory}", *(["--owns-log"] if owns_log else [])]
        argv = [control.beside_python("ftctl"), "slurm", "deputy", *flags]
        # Not by way of this host: a step whose output it does not take any more ends late, and Slurm drains its nodes.
        process = await self._step("--overlap", "--quiet", "--output=/dev/null", "--job-name=deputy", *argv)
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()

    async def _step(self, *argv: str) -> asyncio.subprocess.Process:
        """Start a step with a task on each node, which the loss of nodes does not end."""
        flags = [f"--nodes={self._allocated}", f"--ntasks={self._allocated}", "--ntasks-per-node=1", "--export=ALL"]
        return await asyncio.create_subprocess_exec(
            *("srun", *flags, "--no-kill", "--kill-on-bad-exit=0", "--wait=0", *argv),
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )

    # -- the end

    def _time_is_up(self) -> None:
        if self._stopping is None:
            self._why = f"Slurm's signal {self._options.lead_s:g} s before its end"
            self._stopping = asyncio.get_running_loop().create_task(self._stop_in_time(self._why))

    def _last_word(self) -> None:
        self._why, self._is_last_word = "", True
        if self._stopping is None:
            stop = self._ending.stop("SIGTERM from Slurm", TERM_S, save=False)
            self._stopping = asyncio.get_running_loop().create_task(stop)

    async def _stop_in_time(self, why: str) -> None:
        """Stop the job in order; in time for the requeue, end the agents in any case."""
        loop = asyncio.get_running_loop()
        until = loop.time() + max(self._options.lead_s - MARGIN_S, self._options.lead_s / 2)
        await self._ending.stop(why, (until - loop.time()) * 0.8)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._srun is None:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(until - loop.time(), 5.0)):
                    await self._srun.wait()
                    return
            say("the agents have not ended in time")
            with contextlib.suppress(ProcessLookupError):
                self._srun.send_signal(number)

    async def _lost_nodes(self) -> str:
        """Which nodes are lost, if too few are left, as a reason; empty: there are enough, or it is not known."""
        try:
            now = await control.nodes_of(self._ending.number)
            self._nodes = self._nodes or now
            silent = await control.unreachable(now)
        except FtcoreError as error:
            say(f"not known whether all nodes answer: {error}")
            return ""
        lost = [node for node in self._nodes if node not in now or node in silent]
        if len(self._nodes) - len(lost) >= self._options.nodes:
            return ""
        return f"{', '.join(lost[:10])}{' and others' if len(lost) > 10 else ''} of the allocation cannot be reached"

    async def _requeued_for(self, status: Mapping[str, Any]) -> str:
        """Why the job is to be requeued; empty: it is not."""
        if status.get("state") == "succeeded" or self._is_last_word:
            return ""
        lost = await self._lost_nodes()
        if not status and not self._why and not lost:
            say("not requeued: the log says nothing of this run")
            return ""
        if not self._why:
            return await self._ending.last_resort(status, lost)
        if status and await self._ending.was_told_to_stop(but=self._why):
            say("not requeued: an operator has stopped it")
            return ""
        if status and not status.get("step"):
            say("not requeued at its time limit: no step was completed in this run")
            return ""
        return self._why


async def _end(srun: asyncio.subprocess.Process) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            srun.send_signal(number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await srun.wait()
                return
