"""The hang detector of a node, on real processes and made-up pages and times."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ftcore.ids import Round
from ftcore.ports import Progress
from ftcore.runtime.agent.watch_progress import ProgressWatch, Stall, stacks, usage
from ftcore.timing import Timing

TIMING = Timing(hang_idle_s=60.0, hang_busy_s=600.0)
STEP_S = 1.0
WAITS = "import sys, time; print('ready', file=sys.stderr, flush=True); time.sleep(1000)"
COMPUTES = "while True: pass"
ANSWERS = """
import sys, time
from ftcore.runtime.warm.stacks import listen
def in_the_deep():
    print("ready", file=sys.stderr, flush=True)
    time.sleep(1000)
listen()
in_the_deep()
"""


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def running(*codes: str) -> Iterator[list[subprocess.Popen[str]]]:
    made = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for code in codes]
    try:
        for process, code in zip(made, codes, strict=True):
            if code == WAITS:
                assert process.stderr is not None
                process.stderr.readline()
            while code == WAITS and state_of(process.pid) != "S":
                os.sched_yield()
        yield made
    finally:
        for process in made:
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


class Node:
    """Pages and a clock around a watch."""

    def __init__(
        self, processes: list[subprocess.Popen[str]], size: int | None = None, timing: Timing = TIMING
    ) -> None:
        self.pids = [process.pid for process in processes]
        self.size = len(self.pids) if size is None else size
        self.watch = ProgressWatch(timing, len(self.pids))
        self.pages: list[Progress | None] = [None] * len(self.pids)
        self.now = 1000.0
        self.begin()

    def begin(self) -> None:
        self.watch.begin(self.pids, base_rank=4, size=self.size)
        self.pages = [None] * len(self.pids)

    def step(self, *local_ranks: int, times: int = 1) -> None:
        for _ in range(times):
            self.now += STEP_S
            for local in local_ranks or range(len(self.pids)):
                page = self.pages[local]
                steps = page.steps + 1 if page is not None else 1
                self.pages[local] = Progress(
                    steps=steps, step=steps, absolute=True, mono=round(self.now * 1e9), loss=None
                )
            assert self.watch.look(self.pages, self.now) is None

    def wait(self, seconds: float) -> Stall | None:
        """Look all the time; returns the first stall."""
        until, found = self.now + seconds, None
        while self.now < until:
            self.now += self.watch.look_s
            stall = self.watch.look(self.pages, self.now)
            assert stall is None or found is None, "told twice"
            found = found or stall
        return found


def test_workers_that_report_no_step_are_never_told() -> None:
    """Neither from the start, nor in a later round of a job that had reported steps before."""
    with running(WAITS) as made:
        node = Node(made)
        assert node.wait(8000) is None
        node.step(times=20)
        node.begin()
        assert node.wait(8000) is None


def test_idle_workers_of_a_whole_world_hang_soon() -> None:
    """After a minute without a step: told once, with rank, step, times and what the workers do."""
    with running(WAITS, WAITS) as made:
        node = Node(made)
        node.step(times=20)
        assert node.wait(59) is None
        stall = node.wait(500)
        assert stall is not None
        assert (stall.step, stall.absolute, set(stall.ranks)) == (20, True, {4, 5})
        assert 60 < stall.waited_s < 62
        assert stall.usual_s == STEP_S
        assert "rank 4 waits" in stall.message
        fact = stall.fact("n0", "life", Round(3), "rank 4:\nstack")
        assert (fact.source, fact.kind, fact.rank, fact.round, fact.step) == ("detector", "hang", stall.ranks[0], 3, 20)
        assert set(fact.values) == {"waited_s", "usual_s"}
        assert fact.message.endswith("rank 4:\nstack")


def test_a_step_ends_the_stall() -> None:
    """What goes on by itself was no hang: the pause is learned, and the next stall is told anew."""
    with running(WAITS) as made:
        node = Node(made)
        node.step(times=20)
        assert node.wait(100) is not None
        node.step(times=20)
        assert node.wait(150) is None
        assert node.wait(100) is not None


def test_idle_workers_may_wait_for_another_node() -> None:
    """Part of a larger world: another node may be busy, so they get the longer time."""
    with running(WAITS) as made:
        node = Node(made, size=8)
        node.step(times=20)
        assert node.wait(598) is None
        assert node.wait(10) is not None


def test_a_stopped_worker_is_the_suspect() -> None:
    """SIGSTOP: told after the shorter time, whatever the others do, and named first."""
    with running(WAITS, WAITS) as made:
        node = Node(made, size=8)
        node.step(times=20)
        os.kill(node.pids[1], signal.SIGSTOP)
        os.waitpid(node.pids[1], os.WUNTRACED)
        stall = node.wait(70)
        assert stall is not None
        assert stall.ranks == (5, 4)
        assert "rank 5 was stopped by a signal; rank 4 waits" in stall.message


def test_a_busy_worker_gets_more_time_and_is_the_suspect() -> None:
    """One rank computes while the other waits for it: that may be an evaluation, until it takes too long."""
    with running(WAITS, COMPUTES) as made:
        node = Node(made, timing=Timing(hang_idle_s=12.0, hang_busy_s=30.0))
        node.step(times=20)
        stall = None
        while stall is None:
            aim = usage(made[1].pid, 0.0).cpu_s + 0.2
            while usage(made[1].pid, 0.0).cpu_s < aim:
                os.sched_yield()
            stall = node.wait(3)
        assert 30 < stall.waited_s < 34
        assert stall.ranks == (5, 4)


def test_a_worker_that_ended_is_not_waited_for() -> None:
    """It made its last step; that the others go on is no hang of its own."""
    with running("pass", WAITS) as made:
        node = Node(made)
        node.step(times=20)
        made[0].wait()
        for _ in range(200):
            node.step(1)


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """The node was suspended for an hour: the step gets its full time after it."""
    with running(WAITS) as made:
        node = Node(made)
        node.step(times=20)
        node.now += 3600
        assert node.watch.look(node.pages, node.now) is None
        assert node.wait(50) is None
        assert node.wait(60) is not None


def test_workers_print_their_stacks() -> None:
    """One that listens is asked and its stack found in its output; one that does not is left alone, and lives."""
    with running(ANSWERS, WAITS) as made:
        pipe = made[0].stderr
        assert pipe is not None
        assert pipe.readline() == "ready\n"
        os.set_blocking(pipe.fileno(), False)
        stall = Stall(
            ranks=(6, 7),
            local_ranks=(0, 1),
            pids=(made[0].pid, made[1].pid),
            step=1,
            absolute=True,
            waited_s=1.0,
            usual_s=1.0,
            message="",
        )
        text = asyncio.run(stacks(stall, lambda local, limit: os.read(pipe.fileno(), limit).decode()))
        assert text.startswith("rank 6:\n")
        assert "in in_the_deep" in text
        assert [process.poll() for process in made] == [None, None]


def test_nobody_to_ask_costs_no_time() -> None:
    """Workers that cannot tell their stacks, or that are gone, are not waited for."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    stall = Stall(
        ranks=(0,),
        local_ranks=(0,),
        pids=(gone.pid,),
        step=1,
        absolute=True,
        waited_s=1.0,
        usual_s=1.0,
        message="",
    )
    assert asyncio.run(stacks(stall, lambda local, limit: pytest.fail("asked"))) == ""
