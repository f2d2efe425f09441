"""Workers that neither end nor go on, and workers that only look like it."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from harness import Ftrun, ftrun, wait_until

from ftcore.events.envelope import Event
from ftcore.timing import DEFAULT

SOON = {"hang_look_s": 1.0, "hang_idle_s": 3.0, "hang_busy_s": 60.0, "hang_ceiling_s": 100.0}


def begins(job: Ftrun, *argv: str, **more: Any) -> Any:
    """Two ranks under DDP that have made some steps; stopped without much grace."""
    path = job.cwd / "policy.yaml"
    path.write_text("version: 1\nchain:\n- process_restart: {grace: 500ms}\n- stop\n")
    nodes = "--local-nodes" in argv
    run = job.start(f"--policy={path}", *(argv or ("--nproc-per-node", "2")), script="ddp.py", preload=False, **more)
    job.stepped(1, nodes=2 if nodes else 1)
    steps = job.cwd / "step.0"  # written when the first step is made, which may be told before
    wait_until(lambda: steps.exists() and len(steps.read_text()) > 1, "ten steps")
    return run


def recovers(job: Ftrun, seen: Event) -> None:
    opened = job.wait("incident.opened", seen.seq)
    assert opened.data.fault.root == seen.seq
    resolved = job.wait("incident.resolved", opened.seq)
    assert resolved.data.outcome == "stepped"


def test_a_worker_that_was_stopped_for_good(tmp_path: Path) -> None:
    """SIGSTOP in mid-training, of ranks that wait for each other on two nodes: it is named, and the job goes on."""
    with ftrun(tmp_path, timing=SOON) as job:
        run = begins(job, "--local-nodes", "2")
        started = next(event for event in job.of("workers.started") if event.data.pids)
        os.kill(started.data.pids[0], signal.SIGSTOP)
        seen = job.wait("standstill.judged", verdict="hang")
        assert (seen.data.cause, seen.data.node) == ("stopped", started.data.node)
        assert "was stopped by a signal" in seen.data.message
        recovers(job, seen)
        job.finish()
        assert run.end() == 0
        assert len(job.of("incident.opened")) == 1


@pytest.mark.parametrize(
    "how", [pytest.param((), id="fork"), pytest.param(("--no-preload",), id="exec", marks=pytest.mark.long)]
)
def test_a_worker_that_waits_for_ever_is_named_with_its_place(tmp_path: Path, how: tuple[str, ...]) -> None:
    """A rank that sleeps outside of a collective, and the other that waits for it there, however they were started."""
    with ftrun(tmp_path, timing=SOON) as job:
        run = begins(job, "--nproc-per-node", "2", *how)
        job.do(1, "import time\ndef wait_for_godot(): time.sleep(10**6)\nwait_for_godot()")
        seen = job.wait("standstill.judged", verdict="hang")
        assert (seen.data.cause, seen.data.ranks) == ("absent", (1,))
        assert "rank 1 waits in" in seen.data.message and "all others wait in all_reduce" in seen.data.message
        assert "(wait_for_godot)" in seen.data.stack
        recovers(job, seen)
        job.finish()
        assert run.end() == 0
        assert len(job.of("incident.opened")) == 1


def test_a_rank_that_waits_while_others_stand_in_a_barrier_is_left_alone(tmp_path: Path) -> None:
    """Longer than the learned deadline: an alert is raised, status shows it, and no worker is stopped."""
    with ftrun(tmp_path, timing=SOON) as job:
        run = begins(job)
        job.do(0, "import time\nwhile not os.path.exists('answer'): time.sleep(0.3)")
        seen = job.wait("standstill.judged", verdict="alert")
        assert "rank 0 waits in" in seen.data.message or "rank 0 is active in" in seen.data.message
        status = job.ftctl("status")
        assert "no progress" in status.stdout and "rank 0" in status.stdout
        stacks = Path(seen.data.stacks)
        assert stacks.name == "stacks.txt" and "most recent call first" in stacks.read_text()
        job.drop("answer", "")
        job.wait("workers.went_on", seen.seq)
        assert "no progress" not in job.ftctl("status").stdout
        job.finish()
        assert run.end() == 0
        assert not job.of("incident.opened")
        assert "workers keep running" in run.stderr()


def test_a_second_optimizer_is_progress(tmp_path: Path) -> None:
    """A second phase that never steps the first optimizer again, beyond every limit but the ceiling."""
    phase = (
        "import time, torch\n"
        "model = torch.nn.Linear(2, 1)\noptimizer = torch.optim.Adam(model.parameters())\n"
        "end = time.monotonic() + 8.0\n"
        "while time.monotonic() < end: model(torch.ones(2)).sum().backward(); optimizer.step(); time.sleep(0.1)\n"
    )
    timing = SOON | {"hang_busy_s": 4.0, "hang_ceiling_s": 5.0}
    with ftrun(tmp_path, timing=timing) as job:
        run = begins(job)
        for rank in (0, 1):
            job.do(rank, f"{phase}open('over.{rank}', 'w')")
        wait_until(lambda: all((job.cwd / f"over.{rank}").exists() for rank in (0, 1)), "the second phase to end")
        job.finish()
        assert run.end() == 0
        assert not job.of("incident.opened") and not job.of("standstill.judged")


def test_beyond_the_ceiling_no_step_is_a_hang(tmp_path: Path) -> None:
    """One rank polls for what never comes: nothing but the time without a step tells."""
    timing = {"hang_look_s": 0.5, "hang_idle_s": 1.0, "hang_busy_s": 2.0, "hang_ceiling_s": 4.0}
    with ftrun(tmp_path, timing=timing) as job:
        run = begins(job)
        job.do(0, "import time\nwhile True: time.sleep(0.05)")
        seen = job.wait("standstill.judged", verdict="hang")
        assert seen.data.cause == "ceiling"
        recovers(job, seen)
        job.finish()
        assert run.end() == 0


def test_scripts_that_have_ended_in_processes_that_have_not(tmp_path: Path) -> None:
    """All ranks have done their work and do not go: told as that, and not started again."""
    with ftrun(tmp_path, timing=SOON) as job:
        stays = "import threading, sys, time\nthreading.Thread(target=time.sleep, args=(10**6,)).start()\nsys.exit(0)"
        run = job.start("--nproc-per-node", "2", script="count.py")
        job.stepped(1)
        for rank in (0, 1):
            job.do(rank, stays)
        seen = job.wait("standstill.judged", cause="finished")
        assert seen.data.verdict == "alert"
        assert "ranks 0-1 have finished their script but do not end" in seen.data.message
        assert "have finished their script" in job.ftctl("status").stdout
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 5
        assert [event.data.kind for event in job.of("incident.opened")] == ["request"]


def test_time_in_which_nothing_ran_is_no_time_without_a_step(tmp_path: Path) -> None:
    """Everything is stopped for longer than every limit, as in a suspended machine; the workers wake up last."""
    timing = dict.fromkeys(("hang_look_s", "hang_idle_s", "hang_busy_s", "hang_ceiling_s"), 8.0)
    with ftrun(tmp_path, timing=timing) as job:
        run = begins(job)
        workers = job.pids(1)
        others = sorted(set(job.processes()) - set(workers))
        for pid in (*workers, *others):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(12.0)
        for pid in others:
            os.kill(pid, signal.SIGCONT)
        time.sleep(1.5)  # the agent looks at workers that have made no step for longer than the ceiling
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
        job.steps_on(0, by=100)
        job.finish()
        assert run.end() == 0
        assert not job.of("standstill.judged") and not job.of("incident.opened")


def test_a_job_that_is_frozen_as_a_whole_goes_on(tmp_path: Path) -> None:
    """With all time constants of hangs a tenth of the defaults, and nine seconds for a minute and a half."""
    names = ("hang_look_s", "hang_idle_s", "hang_busy_s", "hang_ceiling_s")
    timing = {name: getattr(DEFAULT, name) / 10 for name in names}
    with ftrun(tmp_path, timing=timing) as job:
        run = begins(job)
        pids = sorted(job.processes())
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                os.kill(pid, number)
            time.sleep(9.0 if number == signal.SIGSTOP else 0.0)
        job.steps_on(0, by=100)
        job.finish()
        assert run.end() == 0
        assert not job.of("standstill.judged") and not job.of("incident.opened") and len(job.of("world.formed")) == 1


STUCK_LOADER = """
import threading, torch
held, done = threading.Lock(), threading.Event()
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index):
        with held: return torch.ones(1)
def holds():
    with held: done.wait()
threading.Thread(target=holds, daemon=True).start()
while not held.locked(): pass
for batch in torch.utils.data.DataLoader(Data(), num_workers=1): pass
"""
"""A lock that a thread holds at the moment of the fork: the loader's process waits for it for ever."""


def test_a_data_loader_whose_process_waits_for_a_lock_for_ever(tmp_path: Path) -> None:
    """The rank looks active, because it asks every few seconds whether the process lives; both are named."""
    with ftrun(tmp_path, timing=SOON) as job:
        run = begins(job, "--nproc-per-node", "2", "--no-preload")
        job.do(1, STUCK_LOADER)
        seen = job.wait("standstill.judged", verdict="hang")
        assert (seen.data.cause, seen.data.ranks) == ("absent", (1,))
        assert "for its data loader: worker process" in seen.data.message
        assert "of its data loader waits for a lock" in seen.data.message
        stacks = Path(seen.data.stacks).read_text()
        assert "_try_get_data" in stacks and "__getitem__" in stacks
        recovers(job, seen)
        job.finish()
        assert run.end() == 0


def test_explain_names_who_hangs_and_who_waits(tmp_path: Path) -> None:
    """A section that exceeds the limit that the script declares; with sections, collectives and frames, and as JSON."""
    with ftrun(tmp_path, timing=SOON | {"hang_ceiling_s": 300.0, "hang_busy_s": 300.0}) as job:
        run = begins(job)
        job.do(
            0,
            "import time, ftcore.worker\n"
            "def tokenize():\n"
            "    with ftcore.worker.section('tokenize', 4.0):\n"
            "        while True: time.sleep(0.05)\n"
            "tokenize()",
        )
        seen = job.wait("standstill.judged", verdict="hang")
        assert (seen.data.cause, seen.data.ranks) == ("limit", (0,))
        recovers(job, seen)
        text = job.ftctl("explain").stdout
        assert "hangs" in text and "tokenize for" in text and "<string>:4 (tokenize)" in text
        first, other = json.loads(job.ftctl("explain", "--format", "json").stdout)["hang"]
        assert (first["role"], first["ranks"], first["section"]) == ("hangs", [0], "tokenize")
        assert (other["role"], other["ranks"], other["op"]) == ("waits", [1], "all_reduce")
        assert first["limit_s"] == 4.0 and other["frames"]
        stood = next(event for event in job.of("workers.stood") if event.seq < seen.seq)
        assert {stand.ranks: stand.step for stand in stood.data.stands}.keys() == {(0,), (1,)}
        calls = json.loads(Path(other["stacks"]).with_name("collectives.json").read_text())
        assert calls[-1]["profiling_name"] == "gloo:all_reduce"
        job.finish()
        assert run.end() == 0


def test_a_worker_that_holds_the_gil_is_active(tmp_path: Path) -> None:
    """Longer than a lock may be waited for: no worker can answer in Python, and an alert has the place all the same."""
    with ftrun(tmp_path, timing=SOON) as job:
        run = begins(job)
        # one call that neither releases the GIL nor looks at signals: a product of numbers of many digits
        job.do(
            0,
            "import time\n"
            "def multiply():\n"
            "    number, end = 3 ** 4_000_000, time.monotonic() + 9.0\n"
            "    while time.monotonic() < end: number * number; number *= 3 ** 1_000_000\n"
            "multiply()\nopen('over', 'w')",
        )
        seen = job.wait("standstill.judged", verdict="alert")
        assert "rank 0 is active" in seen.data.message and "all others wait in all_reduce" in seen.data.message
        assert "(multiply)" in seen.data.stack
        wait_until(lambda: (job.cwd / "over").exists(), "the call to end")
        job.finish()
        assert run.end() == 0
        assert not job.of("incident.opened")


BEFORE_THE_FIRST_STEP = """
import os, time, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
def load_vocabulary():
    if rank == 1 and not os.path.exists("again"):
        open("again", "w").close()
        time.sleep(10**6)
load_vocabulary()
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_a_rank_that_hangs_before_the_set_up(tmp_path: Path) -> None:
    """Before the first step, of workers made by exec: the other waits for it in the set-up of the process group."""
    with ftrun(tmp_path, timing=SOON) as job:
        (job.cwd / "train.py").write_text(BEFORE_THE_FIRST_STEP)
        run = job.start("--nproc-per-node", "2", "--no-preload", "train.py", script="", preload=False)
        seen = job.wait("standstill.judged", verdict="hang")
        assert (seen.data.cause, seen.data.ranks) == ("absent", (1,))
        assert "(load_vocabulary), all others wait in init_process_group (set-up for" in seen.data.message
        assert job.wait("incident.opened", seen.seq).data.fault.root == seen.seq
        assert run.end() == 0
