"""The progress watch of a node's workers, with real processes and made-up pages and times."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from test_native import skip_without_tracing

from ftcore.events.worker import RankState
from ftcore.ports import Progress, Signs
from ftcore.runtime.agent.telemetry import samples, sockets
from ftcore.runtime.agent.telemetry import watch_progress as watched
from ftcore.runtime.agent.telemetry.watch_progress import ProgressWatch
from ftcore.runtime.agent.workers.stackfile import StackFile
from ftcore.runtime.host import SystemHost
from ftcore.shm.calls import Call
from ftcore.shm.sections import PastSection, SectionState
from ftcore.timing import Timing

TIMING = Timing(hang_look_s=10.0, hang_idle_s=60.0, hang_busy_s=600.0)
STEP_S = 1.0
READY = "print('ready', flush=True)\n"
SLEEPS = f"import time\n{READY}time.sleep(1000)"
LOCKED = f"import threading\n{READY}threading.Event().wait()"
TIMED = f"import threading\n{READY}threading.Event().wait(1000)"
COMPUTES = f"{READY}while True: pass"
READS = f"import sys\n{READY}sys.stdin.read(1)"
WAITS_FOR_A_CHILD = f"import subprocess\n{READY}subprocess.run(['sleep', '1000'])"
LISTENS = """
import sys, time
from ftcore.runtime.warm.stacks import listen
def in_the_deep():
    print("ready", flush=True)
    time.sleep(1000)
listen(int(sys.argv[1]))
in_the_deep()
"""


@contextmanager
def running(*codes: str, stacks: list[StackFile] | None = None) -> Iterator[list[subprocess.Popen[str]]]:
    made = []
    for number, code in enumerate(codes):
        fd = stacks[number].fd if stacks else 0
        argv = [sys.executable, "-c", code, str(fd)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        passed = (fd,) if stacks else ()
        made.append(subprocess.Popen(argv, text=True, start_new_session=True, pass_fds=passed, **pipes))  # type: ignore[call-overload]
        if stacks:
            stacks[number].worker_fd = fd
    try:
        for process in made:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield made
    finally:
        for process in made:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.stdout.close()


def rests(pid: int) -> None:
    """Wait until a process sleeps."""
    while samples.state(pid) not in ("S", "T"):
        os.sched_yield()


class Even(SystemHost):
    """A host whose random numbers are always the mean."""

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2


class Node:
    """Pages, a clock and an inspector for a watch."""

    def __init__(
        self,
        processes: list[subprocess.Popen[str]],
        stacks: list[StackFile] | None = None,
        dirs: Sequence[str] = (),
    ) -> None:
        self.pids = [process.pid for process in processes]
        self.stacks = stacks
        self.told = [Signs()] * len(self.pids)
        self.watch = ProgressWatch(TIMING, len(self.pids), self, host=Even())
        self.pages: list[Progress | None] = [None] * len(self.pids)
        self.now = 1000.0
        self.watch.begin(self.pids, 4, self.now, dirs)

    def signs(self) -> tuple[Signs, ...]:
        return tuple(self.told)

    def ask_stack(self, local_rank: int, every: bool = False, locked: bool = False) -> bool:
        return self.stacks is not None and self.stacks[local_rank].ask(self.pids[local_rank], every, locked)

    def stack(self, local_rank: int) -> str:
        assert self.stacks is not None
        return self.stacks[local_rank].read()

    def ask_child(self, local_rank: int, pid: int, locked: bool = False) -> bool:
        return self.stacks is not None and self.stacks[local_rank].ask(pid, True, locked)

    def ask_calls(self, local_rank: int) -> bool:
        return False

    def calls(self, local_rank: int) -> tuple[tuple[Call, ...], str]:
        return (), ""

    def look(self) -> tuple[RankState, ...] | None:
        quiet = self.watch.check(self.pages, self.now)
        if quiet:
            asyncio.run(self.watch.sample(quiet, lambda: self.pages, lambda: self.now))
        return self.watch.changes()

    def step(self, *local_ranks: int, times: int = 1) -> None:
        for _ in range(times):
            self.now += STEP_S
            for local in local_ranks or range(len(self.pids)):
                page = self.pages[local]
                steps = page.steps + 1 if page is not None else 1
                self.pages[local] = Progress(
                    steps=steps, step=steps, absolute=True, mono=round(self.now * 1e9), loss=None
                )
            self.look()

    def wait(self, seconds: float) -> tuple[RankState, ...]:
        """Check repeatedly; returns the last reported ranks, or None."""
        until, found = self.now + seconds, ()
        while self.now < until:
            self.now += self.watch.check_s
            news = self.look()
            found = found if news is None else news
        return found


def test_workers_that_make_steps_are_not_sampled() -> None:
    """Nor workers without a step for less than ``hang_look_s``."""
    with running(SLEEPS) as made:
        node = Node(made)
        node.step(times=20)
        assert node.wait(9.0) == ()
        assert node.wait(3.0) != ()


@pytest.mark.parametrize(
    ("code", "waits", "ends"),
    [
        (SLEEPS, "sleep", True),
        (TIMED, "lock", True),
        (LOCKED, "lock", False),
        (READS, "outside", False),
        (WAITS_FOR_A_CHILD, "outside", False),
    ],
)
def test_the_wait_of_a_worker(code: str, waits: str, ends: bool) -> None:
    """From the kernel: a timer with its end, a lock, an external event."""
    with running(code) as (made,):
        rests(made.pid)
        found = samples.wait_of(made.pid)
        while code == WAITS_FOR_A_CHILD and found.kind != waits:
            found = samples.wait_of(made.pid)
        assert (found.kind, found.ends_at is not None) == (waits, ends)
        assert not ends or 900 < (found.ends_at or 0.0) - time.monotonic() < 1000


def test_a_stalled_worker_is_reported_with_times_and_stack() -> None:
    """Times count from the first sample; the worker itself writes its stack."""
    files = [StackFile(), StackFile()]
    with running(LISTENS, LISTENS, stacks=files) as made:
        for process in made:
            rests(process.pid)
        node = Node(made, files)
        node.step(times=20)
        (stand,) = node.wait(21.0)
        assert (stand.ranks, stand.state, stand.waits, stand.op) == ((4, 5), "waits", "sleep", "")
        assert "(in_the_deep)" in stand.place and "(in_the_deep)" in stand.stack
        assert 10.0 <= stand.still_s <= 12.0 and 20.0 <= stand.silent_s <= 22.0 and not stand.overdue  # type: ignore[operator]
        (stand,) = node.wait(60.0)
        assert stand.still_s > 50.0 and stand.overdue
    for file in files:
        file.close()


def test_a_computing_worker_is_not_stalled() -> None:
    """It is reported as running; its time without a step continues."""
    with running(COMPUTES) as made:
        node = Node(made)
        node.step(times=20)
        node.wait(11.0)
        used = samples.usage(made[0].pid, {}).cpu_s
        while samples.usage(made[0].pid, {}).cpu_s < used + 2.0:
            os.sched_yield()
        (stand,) = node.wait(6.0)
        assert (stand.state, stand.still_s) == ("runs", 0.0) or stand.still_s < 1.0
        assert stand.silent_s is not None and stand.silent_s >= 15.0


def test_a_worker_that_computes_inside_one_call_is_active() -> None:
    """Its frames do not change and its time without a step continues, however much CPU it uses."""
    code = LISTENS.replace("time.sleep(1000)", "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)")
    stack = StackFile()
    try:
        with running(code, stacks=[stack]) as made:
            node = Node(made, [stack])
            node.step()
            used = samples.usage(made[0].pid, {})
            while samples.usage(made[0].pid, {}).cpu_s < used.cpu_s + 0.2:
                os.sched_yield()
            found = None
            while found is None or found.held_s < 120.0:  # on a busy machine the first stacks come late
                found = next(iter(node.wait(20.0)), found)
            assert found.state == "runs" and "(in_the_deep)" in found.stack
            assert found.still_s < 60.0 and found.silent_s is not None and found.silent_s > 80.0
    finally:
        stack.close()


def test_a_stopped_worker_is_reported_at_once() -> None:
    """After SIGSTOP, with all other workers, from the time of detection; after SIGCONT it is reported as running."""
    with running(SLEEPS, SLEEPS) as made:
        node = Node(made)
        node.step(times=20)
        os.kill(made[1].pid, signal.SIGSTOP)
        os.waitpid(made[1].pid, os.WUNTRACED)
        found = {stand.ranks: stand for stand in node.wait(6.0)}
        assert found[5,].state == "stopped" and 5.0 <= found[5,].still_s <= 6.0
        assert found[4,].state != "stopped"
        os.kill(made[1].pid, signal.SIGCONT)
        os.waitpid(made[1].pid, os.WCONTINUED)
        node.step()
        assert node.wait(2.0) == ()


def test_a_step_that_is_made_while_a_sample_is_taken_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampling takes long on an overloaded host; workers that progressed meanwhile are not reported."""
    with running(SLEEPS) as made:
        node = Node(made)
        node.step(times=20)
        usages = samples.usages

        def slow(pids: Sequence[int]) -> Any:
            node.now += 100.0
            node.pages = [Progress(steps=21, step=21, absolute=True, mono=round(node.now * 1e9), loss=None)]
            return usages(pids)

        monkeypatch.setattr(samples, "usages", slow)
        assert node.wait(11.0) == ()


def test_a_slow_disk_for_stacks_delays_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow write of stacks changes neither the reported samples nor their times."""
    files = [StackFile()]
    with running(LISTENS, stacks=files) as made, TemporaryDirectory() as folder:
        rests(made[0].pid)
        node = Node(made, files, [folder])
        node.step(times=20)
        keep = watched._keep

        def slow(texts: Any) -> None:
            node.now += 100.0 if texts else 0.0
            keep(texts)

        monkeypatch.setattr(watched, "_keep", slow)
        told = [stand.still_s for _ in range(4) for stand in node.wait(5.0)]
        assert told and max(told) < 60.0
    files[0].close()


def test_any_sign_of_progress_counts() -> None:
    """A backward pass, or the step of another optimizer, without a counted step."""
    with running(SLEEPS) as made:
        node = Node(made)
        node.step(times=20)
        for _ in range(20):
            assert node.wait(8.0) == ()
            node.told = [Signs(active=round(node.now * 1e9))]
        (stand,) = node.wait(12.0)
        assert stand.silent_s is not None and stand.silent_s < 13.0


def test_a_script_that_has_ended_and_a_process_that_has() -> None:
    """An ended script and an ended process are distinguished."""
    with running(SLEEPS, READY) as made:
        made[1].wait()
        node = Node(made)
        node.step(0, times=20)
        node.told = [Signs(ended=round(node.now * 1e9), timeout=30 * 10**9), Signs()]
        found = {stand.ranks: stand for stand in node.wait(12.0)}
        assert (found[4,].state, found[5,].state) == ("ended", "gone")
        assert found[4,].timeout_s == 30.0


def test_a_step_ends_the_stall_and_is_learned() -> None:
    """No worker is reported as stalled; a later pause of that length is not overdue."""
    with running(SLEEPS) as made:
        node = Node(made)
        node.step(times=20)
        assert node.wait(100)[0].overdue
        node.step()
        assert node.wait(2.0) == ()
        node.step(times=20)
        assert not node.wait(150)[0].overdue


def test_time_without_samples_does_not_count() -> None:
    """The node was suspended for an hour, which counts neither as silence nor as a stall."""
    with running(SLEEPS) as made:
        node = Node(made)
        node.step(times=20)
        (stand,) = node.wait(15.0)
        node.now += 3600
        node.look()
        (stand,) = node.wait(20.0)
        assert stand.silent_s is not None and stand.silent_s < 40.0 and stand.still_s < 40.0 and not stand.overdue


def test_a_new_master_gets_all_stalled_ranks() -> None:
    """Stalled ranks are sent again without waiting for another sample."""
    with running(SLEEPS) as made:
        node = Node(made)
        node.step(times=20)
        found = node.wait(12.0)
        assert node.watch.changes() is None
        node.watch.forget()
        assert node.watch.changes() == found


def test_a_worker_that_cannot_answer_is_left_alone() -> None:
    """No handler, another file at that descriptor, or a stopped process: no signal is sent."""
    file = StackFile()
    with running(SLEEPS, stacks=[file]) as (made,):
        assert not file.ask(made.pid), "it does not catch the signal"
    with running(LISTENS, stacks=[file]) as (made,):
        file.worker_fd = 1
        assert not file.ask(made.pid), "that is its standard output"
        file.worker_fd = file.fd
        os.kill(made.pid, signal.SIGSTOP)
        os.waitpid(made.pid, os.WUNTRACED)
        assert not file.ask(made.pid)
        os.kill(made.pid, signal.SIGCONT)
        os.waitpid(made.pid, os.WCONTINUED)
        rests(made.pid)
        for _ in range(2):
            assert file.ask(made.pid)
            while "in_the_deep" not in file.read():
                os.sched_yield()
        assert file.read().count("most recent call first") == 1, "the answer before was put away"
        assert made.poll() is None
    file.close()


def test_bytes_of_connections_are_counted() -> None:
    """Per connection, in both directions; the socket's inode identifies the process."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        with theirs:
            before = sockets.moved(sockets.connections())
            ours.sendall(b"x" * 50_000)
            assert len(theirs.recv(50_000, socket.MSG_WAITALL)) == 50_000
            after = sockets.moved(sockets.connections())
            grown = {inode: count - before.get(inode, 0) for inode, count in after.items()}
            assert grown[os.fstat(theirs.fileno()).st_ino] == 50_000
            (mine,) = (one for one in sockets.connections() if one.inode == os.fstat(ours.fileno()).st_ino)
            assert (mine.local, mine.remote, mine.retries) == (ours.getsockname(), server.getsockname(), 0)


def test_little_is_no_progress_and_a_child_that_runs_is() -> None:
    """A twentieth of the threshold; a child counts only if its parent waits for an external event."""
    before = samples.Usage(0.0, "S", 5, 1.0, 1000, 7)
    after = samples.Usage(10.0, "S", 5, 1.01, 3000, 8)
    assert not samples.progressed(before, after, samples.Wait("lock"))
    assert samples.progressed(before, after, samples.Wait("outside"))
    for more in (
        samples.Usage(10.0, "S", 6, 1.0, 1000, 7),
        samples.Usage(10.0, "S", 5, 1.3, 1000, 7),
        samples.Usage(10.0, "S", 5, 1.0, 60_000, 7),
    ):
        assert samples.progressed(before, more, samples.Wait("sleep"))


def test_connections_without_an_answer_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the sample, per rank, while it lasts; a worker that is connecting is not interrupted."""
    with running("import socket, time\nmine = socket.socket()\n" + SLEEPS) as made:
        node = Node(made)
        (inode,) = samples.usage(made[0].pid, {1: 1}).inodes
        one = sockets.Connection(
            inode=inode,
            local=("10.0.0.1", 4000),
            remote=("10.0.0.2", 5000),
            opening=True,
            unacked=1,
            retries=3,
            lost_s=7.0,
            queued=0,
            heard_s=60.0,
            received=0,
            acked=0,
        )
        found = [one]
        monkeypatch.setattr(sockets, "connections", lambda: list(found))
        asked: list[int] = []
        monkeypatch.setattr(node, "ask_stack", lambda local, every, locked: bool(asked.append(local)))
        assert node.wait(11.0)
        (told,) = node.watch.net.unanswered
        assert (told.address, told.ranks, told.silent_s) == ("10.0.0.2", (4,), 7.0)
        assert node.watch.net.addresses == ("10.0.0.1",) and not asked
        node.wait(3.0)
        assert node.watch.net.unanswered[0].silent_s > 9.0, "it is looked at again soon"
        found.clear()
        node.wait(6.0)
        assert not node.watch.net.unanswered and asked


THREADS = """
import socket, sys, threading, time
from ftcore.runtime.warm.stacks import listen
def calls(depth=30): return depth and calls(depth - 1)
def runs():
    while True: calls()
def receives():
    ours, theirs = socket.socketpair()
    print("ready", flush=True)
    socket.SocketIO(ours, "r").readinto(bytearray(1))
def rests():
    print("ready", flush=True)
    threading.Event().wait()
listen(int(sys.argv[1]))
for _ in range(3 if sys.argv[2] == "runs" else 1):
    threading.Thread(target=locals()[sys.argv[2]], daemon=True).start()
if sys.argv[2] == "runs": print("ready", flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize(("other", "waits"), [("receives", "outside"), ("rests", "lock")])
def test_a_worker_that_waits_for_its_thread(other: str, waits: str) -> None:
    """Determined from the stacks of its other threads."""
    stack = StackFile()
    try:
        with running(THREADS.replace("sys.argv[2]", repr(other)), stacks=[stack]) as made:
            node = Node(made, [stack])
            node.step()
            rests(made[0].pid)
            (found,) = node.wait(31.0)
            assert found.waits == waits
    finally:
        stack.close()


def test_whole_stacks_are_kept_beside_the_output(tmp_path: Path) -> None:
    """In a file that is reported to the master: of all threads once the worker sleeps, only the last stacks."""
    stack = StackFile()
    try:
        with running(THREADS.replace("sys.argv[2]", repr("rests")), stacks=[stack]) as made:
            node = Node(made, [stack], [str(tmp_path)])
            node.step()
            rests(made[0].pid)
            (first,) = node.wait(11.0)
            assert first.stacks == ""
            (found,) = node.wait(20.0)
            assert found.stacks == str(tmp_path / "stacks.txt")
            text = (tmp_path / "stacks.txt").read_text()
            assert text.startswith(f"rank 4, pid {made[0].pid}\n") and text.count("most recent call first") == 2
            (tmp_path / "stacks.txt").unlink()
            node.wait(60.0)
            assert not (tmp_path / "stacks.txt").exists(), "the same again"
            node.watch.begin(node.pids, 4, node.now, [str(tmp_path / "away")])
            node.step()
            node.wait(30.0)
    finally:
        stack.close()


def test_running_threads_are_dumped_with_the_gil() -> None:
    """Reading changing frames without the lock ended the worker with SIGSEGV."""
    stack = StackFile()
    try:
        with running(THREADS.replace("sys.argv[2]", repr("runs")), stacks=[stack]) as made:
            node = Node(made, [stack])
            node.step()
            (found,) = node.wait(60.0)
            assert (found.state, found.place) != ("", "")
            while "Thread 0x" not in stack.read():  # on a busy machine it comes late; the test's time limit ends this
                node.wait(30.0)
            assert "wait" in stack.read() and made[0].poll() is None
    finally:
        stack.close()


LOADS = """
import ctypes, os, sys, threading, time
from ftcore.runtime.warm.stacks import listen
listen(int(sys.argv[1]))
def _try_get_data():
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, b"pt_data_worker")
        threading.Event().wait()
    print("ready", flush=True)
    while True: time.sleep(0.02)
code = compile("def _try_get_data(wait): wait()", "/torch/utils/data/dataloader.py", "exec")
scope = {}
exec(code, scope)
scope["_try_get_data"](_try_get_data)
"""


def test_a_rank_whose_loader_is_stuck_waits_for_it() -> None:
    """It wakes up all the time; the process that it waits for does not. Its stack is kept with that of the rank."""
    stacks = [StackFile()]
    with TemporaryDirectory() as directory, running(LOADS, stacks=stacks) as made:
        node = Node(made, stacks, [directory])
        node.step(times=20)
        (state,) = node.wait(60.0)
        assert (state.state, state.waits) == ("waits", "lock")
        assert "worker process" in state.loader and "waits for a lock" in state.loader
        assert state.still_s > 30.0
        node.wait(30.0)
        assert "process " in (Path(directory) / watched.STACKS_NAME).read_text().split("\n", 1)[1]
    stacks[0].close()


def test_the_section_of_a_stalled_rank_is_reported_with_its_limit() -> None:
    """Declared, learned, or none yet; before the first step of a rank that has created an optimizer."""
    with running(SLEEPS) as made:
        node = Node(made)
        node.told = [Signs(sections=SectionState(trains=True))]
        (state,) = node.wait(20.0)
        assert (state.section, state.limit_s, state.declared, state.trains) == ("first step", None, False, True)
        node.step(times=25)
        (state,) = node.wait(20.0)
        assert (state.section, state.section_s, state.limit_s, state.step) == ("", None, 240.0, 25)
        now = round(node.now * 1e9)
        past = (PastSection("evaluation", 3, 50 * 10**9),)
        node.told = [Signs(active=now, sections=SectionState("evaluation", now, 0, now, 0, True, past=past))]
        (state,) = node.wait(30.0)
        assert state.section == "evaluation" and 20.0 < (state.section_s or 0.0) <= 30.0
        assert (state.limit_s, state.declared, state.overdue) == (200.0, False, False)
        node.told = [Signs(active=now, sections=SectionState("evaluation", now, now + 10**11, now, past=past))]
        (state,) = node.wait(80.0)
        assert (state.limit_s, state.declared, state.overdue) == (100.0, True, False)


def test_the_second_sample_of_a_standstill_has_the_native_stacks(tmp_path: Path) -> None:
    """Once; reading them stops the process for a moment, which counts neither as stopped nor as activity."""
    with running(LOCKED) as made:
        rests(made[0].pid)
        skip_without_tracing(made[0].pid)
        node = Node(made, dirs=[str(tmp_path)])
        node.step(times=20)
        assert node.wait(11)[0].state == "waits"
        file = tmp_path / "native.txt"
        assert not file.exists()
        [stands] = node.wait(30)
        assert (stands.state, stands.waits) == ("waits", "lock")
        assert stands.still_s > 20
        assert "MainThread" in file.read_text()
        file.unlink()
        node.wait(60)
        assert not file.exists()
        node.step()
        node.wait(40)
        assert file.exists()
