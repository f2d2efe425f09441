"""Runs ``ftrun`` as a user would, watches its log, kills what it should survive, and checks what is left.

House rules: nothing here sleeps where an event can be awaited. Every run has a state home of its own, which all its
processes carry in their environment: that is how they are found. At the end of every run the log is verified, no fact
may stand in it twice, no process may be left (an idle master excepted, which is ended here), and no traceback of
ftcore's own code may have reached the user.
"""

import asyncio
import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ftcore.events.envelope import Event
from ftcore.events.job import JobFinished
from ftcore.events.world import WorldFormed
from ftcore.ids import JobName, Seq
from ftcore.logs import open_store
from ftcore.logs.archived import JoinedLog
from ftcore.replay import verify_async
from ftcore.states.fold import fold
from ftcore.states.model import JobState

JOBS = Path(__file__).parent / "jobs"
PATIENCE_S = 120.0
"""Bound of every wait. A slow machine with other tests beside takes ten times as long as a quiet one."""

LATE_S = 30.0
"""How long what stands in the log may need to be seen here, once every ftrun has ended."""

GONE_S = 60.0
"""Bound of the wait for processes that were told to end; a master that nobody calls may take ``master_idle_s``."""

JOB = "job"


class Ftrun:
    """One state home, the runs in it, and their log.

    Args:
        root: a directory of the test's own.
        store: URL of the log store, if not the default one.
        timing: time constants that differ from the defaults.
    """

    def __init__(self, root: Path, store: str = "", timing: dict[str, float] | None = None, job: str = JOB) -> None:
        self.cwd = root / "cwd"
        self.home = root / "home"
        self.job = job
        self.store = store or f"sqlite://{self.home}/ftcore"
        self.cwd.mkdir(exist_ok=True)
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("FTCORE_", "PET_"))}
        self.env |= {"XDG_STATE_HOME": str(self.home), "PYTHONFAULTHANDLER": ""}
        # Workers of several tests share few processors: one of them may well be slower than the others for seconds.
        self.env["FTCORE_TIMING"] = msgspec.json.encode({"pace_window_s": 3600.0, **(timing or {})}).decode()
        self.runs: list[Run] = []
        self.unreadable = False  # the test has put something into the log that cannot be folded
        self._watch: Watch | None = None

    # -- running

    def start(
        self,
        *argv: str,
        script: str = "count.py",
        job: bool = True,
        preload: bool = True,
        read: bool = True,
        args: Sequence[str] = (),
        **popen: Any,
    ) -> "Run":
        """Start ``ftrun`` with these flags; flags end where the first word without a dash stands, then the script's."""
        flags = [*argv]
        if preload:
            flags = ["--preload", "json", *flags]
        if job:
            flags = ["--job", self.job, *flags]
        command = [sys.executable, "-m", "ftcore.cli.ftrun", *flags, *([str(JOBS / script)] if script else []), *args]
        if self.store != f"sqlite://{self.home}/ftcore":
            command[3:3] = ["--store", self.store]
        run = Run(subprocess.Popen(command, **self._popen(popen)), read)
        self.runs.append(run)
        return run

    def _popen(self, given: dict[str, Any]) -> dict[str, Any]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return {"cwd": self.cwd, "env": self.env, "text": True, "errors": "replace"} | pipes | given

    def ftctl(self, *argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ftcore.cli.ftctl", "--store", self.store, *argv]
        return subprocess.run(command, capture_output=True, text=True, env=self.env, timeout=PATIENCE_S)

    # -- what the script is told

    def do(self, rank: int, code: str) -> None:
        """Have a rank run this code once, at its next step."""
        self.drop(f"do.{rank}", code)

    def always(self, rank: int, code: str) -> None:
        """Have a rank run this code at every step."""
        self.drop(f"always.{rank}", code)

    def on_term(self, rank: int, code: str) -> None:
        """Have a rank run this code on SIGTERM; before it starts."""
        self.drop(f"on_term.{rank}", code)

    def finish(self) -> None:
        """Have every rank end with code 0."""
        self.drop("finish", "")

    def drop(self, name: str, text: str) -> None:
        """Put a file beside the script, whole at once."""
        new = self.cwd / f".{name}"
        new.write_text(text)
        new.replace(self.cwd / name)

    def step(self, rank: int = 0) -> int:
        """The last step that a rank wrote down."""
        path = self.cwd / f"step.{rank}"
        return int(path.read_text()) if path.exists() else 0

    def steps_on(self, rank: int = 0, by: int = 3) -> None:
        """Wait until the rank has made some more steps."""
        aim = self.step(rank) + by
        wait_until(lambda: self.step(rank) >= aim, f"rank {rank} to reach step {aim}")

    def all_step_on(self, ranks: int, by: int = 3) -> None:
        """Wait until each of the first ranks has made some more steps, all at the same time."""
        aims = [self.step(rank) + by for rank in range(ranks)]
        for rank, aim in enumerate(aims):
            wait_until(lambda rank=rank, aim=aim: self.step(rank) >= aim, f"rank {rank} to reach step {aim}")

    # -- the log

    @property
    def events(self) -> "Watch":
        if self._watch is None:
            self._watch = Watch(self.store, self.job)
        return self._watch

    def wait(self, kind: str, after: int = 0, /, **fields: Any) -> Event:
        """The first event of a type behind ``after`` whose data has these fields."""
        return self.events.wait(kind, after, fields, self.runs)

    def stepped(self, round_: int, nodes: int = 1) -> Event:
        """Wait until all nodes of a round completed a step; no worker of an older round may be left then."""
        after = 0
        for _ in range(nodes):
            event = self.wait("workers.stepped", after, round=round_)
            after = event.seq
        older = [pid for earlier in range(1, round_) for pid in self.pids(earlier)]
        assert not gone(older, 0.0), "workers of two rounds at once"
        return event

    def pids(self, round_: int, node: str | None = None) -> list[int]:
        """Process ids of a round's workers, in the order in which they were reported."""
        return [
            pid for event in self.of("workers.started", node) if event.data.round == round_ for pid in event.data.pids
        ]

    def agent(self, node: str | None = None) -> int:
        """Process id of the newest agent of a node, or of the only one."""
        return self.of("node.joined", node)[-1].data.pid

    def master(self) -> int:
        """Process id of the newest master."""
        return self.of("master.elected")[-1].data.pid

    def of(self, kind: str, node: str | None = None) -> list[Event]:
        """The events of a type (of a node) so far: what was followed while it runs, the whole log once it has ended."""
        ended = self.runs and all(run.process.poll() is not None for run in self.runs)
        seen = self.events.read() if ended else list(self.events.seen)
        return [event for event in seen if event.type == kind and node in (None, getattr(event.data, "node", None))]

    # -- processes

    def processes(self, word: str = "") -> dict[int, str]:
        """All living processes of this state home and their command lines, those with ``word`` in it."""
        tag = f"XDG_STATE_HOME={self.home}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                if tag in (entry / "environ").read_bytes().split(b"\0") and not is_dead(int(entry.name)):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return {pid: line for pid, line in found.items() if word in line}

    # -- the end

    def close(self) -> None:
        """End what runs, then check what is left: processes, log, output."""
        try:
            self._check_processes()
            for run in self.runs:
                run.check()
            if self._watch is not None and not self.unreadable:
                self._watch.check()
        finally:
            for pid in self.processes():
                kill(pid, signal.SIGKILL)
            for run in self.runs:
                run.close()
            if self._watch is not None:
                self._watch.close()

    def _check_processes(self) -> None:
        living = [run for run in self.runs if run.process.poll() is None]
        assert not living, f"ftrun still runs: {[run.stderr() for run in living]}"
        masters = self.processes("ftcore.cli.master")
        left = {pid: line for pid, line in self.processes().items() if pid not in masters}
        still = gone(left)
        assert not still, f"left behind: { {pid: left[pid] for pid in still} }"
        if masters and not self._ended():
            for pid in masters:
                kill(pid, signal.SIGTERM)
        still = gone(masters)
        assert not still, f"masters that do not end: { {pid: masters[pid] for pid in still} }"

    def _ended(self) -> bool:
        """Whether the newest run of the log came to an end, so that masters must end by themselves."""
        if self._watch is None:
            return False
        phases = [event for event in self._watch.read() if event.type in ("job.submitted", "job.finished")]
        return bool(phases) and phases[-1].type == "job.finished"


F = TypeVar("F", bound=Ftrun)


class Run:
    """One ``ftrun`` process."""

    def __init__(self, process: "subprocess.Popen[str]", read: bool = True) -> None:
        self.process = process
        self.pid = process.pid
        self.ended = 0
        self._texts = {name: [""] for name in ("stdout", "stderr")}
        self._threads = [
            threading.Thread(target=self._read, args=(name,), daemon=True)
            for name in self._texts
            if read and getattr(process, name) is not None
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, name: str) -> None:
        with getattr(self.process, name) as pipe:
            for line in pipe:
                self._texts[name].append(line)

    def stdout(self) -> str:
        return "".join(self._texts["stdout"])

    def stderr(self) -> str:
        return "".join(self._texts["stderr"])

    def end(self, patience_s: float = PATIENCE_S) -> int:
        """Wait for its end; returns its exit code."""
        try:
            code = self.process.wait(patience_s)
            self.ended = time.time_ns()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"ftrun does not end; it said:\n{self.stderr()}") from None
        for thread in self._threads:
            thread.join(GONE_S)
        return code

    def lived_after(self, event: Event) -> float:
        """Seconds from an event to its end."""
        return (self.ended - event.time) / 1e9

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def check(self) -> None:
        """No traceback of ftcore's own reached the user; a worker's own is another matter."""
        for block in re.findall(r"Traceback \(most recent call last\):\n((?:[ +|].*\n|\n)*)", self.stderr()):
            assert "ftcore/cli" not in block and "ftcore/runtime" not in block, self.stderr()
        for word in ("Task exception was never retrieved", "Exception in callback", "exception was never"):
            assert word not in self.stderr(), self.stderr()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for thread in self._threads:
            thread.join(GONE_S)


class Watch:
    """Follows a log in a thread of its own; what it saw can be waited for."""

    may_end_unheard = False
    """An agent's request to end may reach no master; its successor does not repeat it."""

    def __init__(self, store: str, job: str) -> None:
        self.store, self.job = store, job
        self.seen: list[Event] = []
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._follow())
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._loop.close()

    async def _follow(self) -> None:
        store = open_store(self.store)
        log = JoinedLog(await store.open(JobName(self.job), create=True), None)
        self._ready.set()
        try:
            async for event in log.follow(Seq(0)):
                with self._changed:
                    self.seen.append(event)
                    self._changed.notify_all()
        finally:
            await log.close()
            await store.close()

    def wait(self, kind: str, after: int, fields: dict[str, Any], runs: "Sequence[Run]") -> Event:
        deadline = time.monotonic() + PATIENCE_S
        looked = 0
        with self._changed:
            while True:
                for event in self.seen[looked:]:
                    data = event.data
                    if event.seq > after and event.type == kind and _has(data, fields):
                        return event
                looked = len(self.seen)
                if runs and all(run.process.poll() is not None for run in runs):
                    deadline = min(deadline, time.monotonic() + LATE_S)
                if time.monotonic() > deadline:
                    told = "\n".join(run.stderr() for run in runs)
                    lines = "\n".join(brief(event) for event in self.seen[-40:])
                    raise AssertionError(f"no {kind} {fields} after {after}; the log ends:\n{lines}\n{told}")
                self._changed.wait(timeout=1.0)

    def read(self) -> list[Event]:
        """The whole log, read anew."""

        async def read() -> list[Event]:
            store = open_store(self.store)
            log = JoinedLog(await store.open(JobName(self.job)), None)
            try:
                return [event async for event in log.read()]
            finally:
                await log.close()
                await store.close()

        return asyncio.run(read())

    def check(self) -> None:
        """Verify the log, and what must never happen."""
        events = self.read()

        async def stream() -> Any:
            for event in events:
                yield event

        report = asyncio.run(verify_async(stream()))
        assert report.complete and not report.mismatches, [str(mismatch) for mismatch in report.mismatches]
        check_facts_once(events, 1 if self.may_end_unheard else 0)
        check_rounds(events)

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(GONE_S)


def _has(data: Any, fields: dict[str, Any]) -> bool:
    return all(getattr(data, name, None) == value for name, value in fields.items())


def brief(event: Event) -> str:
    return f"{event.seq} {event.type} {str(event.data)[:160]}"


def check_facts_once(events: Sequence[Event], unheard: int = 0) -> None:
    """No fact of an agent stands in the log twice, and each agent's facts stand there in order; all of them but
    ``unheard`` in a row.
    """
    told: dict[tuple[str, str], int] = {}
    for event in events:
        if event.id.source == "master":
            continue
        key = (event.id.source, event.id.incarnation)
        missing = event.id.n - told.get(key, 0) - 1
        assert 0 <= missing <= unheard, f"{key} tells {event.id.n} after {told.get(key, 0)}"
        told[key] = event.id.n


def check_rounds(events: Sequence[Event]) -> None:
    """Rounds only grow, and a world is formed only when no node holds workers of the round before."""
    state, formed = JobState(), 0
    for event in events:
        if isinstance(event.data, WorldFormed):
            assert event.data.round > formed, f"round {event.data.round} is formed after {formed}"
            formed = event.data.round
        fold(state, event)
        if isinstance(event.data, JobFinished):
            assert state.ending is not None and state.ending.outcome == event.data.outcome


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal; a process that is gone is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def is_dead(pid: int) -> bool:
    """Whether a process is gone, or only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def gone(pids: "Sequence[int] | dict[int, str]", timeout_s: float = GONE_S) -> list[int]:
    """Wait for the end of processes; returns those that still live."""
    still, deadline = [], time.monotonic() + timeout_s
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                still.append(pid)
        finally:
            os.close(fd)
    return still


def wait_until(condition: Callable[[], Any], what: str) -> None:
    """For what tells nobody when it changes: files and /proc."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


@contextlib.contextmanager
def ftrun(root: Path, store: str = "", timing: dict[str, float] | None = None, job: str = JOB) -> Iterator[Ftrun]:
    """A state home whose leavings are checked at the end; if the body fails, they are only removed."""
    root.mkdir(exist_ok=True)
    with checked(Ftrun(root, store, timing, job)) as made:
        yield made


@contextlib.contextmanager
def checked(made: F) -> Iterator[F]:
    """Check at the end what the runs have left; if the body fails, only remove it."""
    try:
        yield made
    except BaseException:
        for run in made.runs:
            print(run.stdout()[-2000:], run.stderr()[-6000:], sep="\n")
        for event in made._watch.seen if made._watch is not None else ():
            print(brief(event))
        with contextlib.suppress(AssertionError):
            for run in made.runs:
                run.close()
            made.close()
        raise
    made.close()
