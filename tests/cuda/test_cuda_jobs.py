"""Jobs on a CUDA device: what real CUDA errors are taken for, and that a disturbed job equals an undisturbed one."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from harness import Ftrun, Run, ftrun, wait_until
from test_ftrun_checkpoints import kill_with_keeper

TRAIN = Path(__file__).parent / "jobs" / "train.py"
Result: TypeAlias = tuple[set[str], dict[int, set[str]]]
"""Digests of the weights, and the losses of each step of rank 0."""

UNTIL = 12
AT = 6
"""The step in which something happens."""

pytestmark = pytest.mark.timeout(300)

HUNG = "torch.cuda._sleep(400_000_000_000)"
"""A kernel of minutes: what is queued behind it is not computed, as behind a collective whose peer has died."""


def start(job: Ftrun, *argv: str, save_every: int = 1, backend: str = "nccl", dtype: str = "float16") -> Run:
    args = (str(UNTIL), str(save_every), backend, dtype)
    return job.start("--checkpoints", "saved", *argv, script=str(TRAIN), preload=False, args=args)


def digests(run: Run) -> set[str]:
    return set(re.findall(r"ends with ([0-9a-f]{16})", run.stdout()))


def losses(job: Ftrun, rank: int = 0) -> dict[int, set[str]]:
    """What each step computed, once or more."""
    found: dict[int, set[str]] = {}
    for line in (job.cwd / f"losses.{rank}").read_text().splitlines():
        number, loss = line.split()
        found.setdefault(int(number), set()).add(loss)
    return found


def resumed(job: Ftrun) -> tuple[int, str]:
    """The step that all nodes restored, and from where the first one did."""
    loaded = [event.data for event in job.of("state.loaded") if event.data.step]
    assert len({each.step for each in loaded}) == 1
    return loaded[0].step, loaded[0].source


def result(run: Run, job: Ftrun) -> Result:
    return digests(run), losses(job)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Results of runs to which nothing happens, by type."""
    found = {}
    for dtype in ("float16", "bfloat16"):
        with ftrun(tmp_path_factory.mktemp("undisturbed")) as job:
            run = start(job, dtype=dtype)
            assert run.end() == 0, run.stderr()
            found[dtype] = result(run, job)
    return found


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Ftrun]:
    with ftrun(tmp_path) as one:
        yield one


@pytest.mark.parametrize("save_every", [1, 4])
def test_a_killed_worker_goes_on_from_memory(job: Ftrun, undisturbed: dict[str, Result], save_every: int) -> None:
    """Parameters, moments, running statistics, the scaler and the device's generator are back, to the last bit."""
    job.drop("do.0", f"os.kill(os.getpid(), signal.SIGKILL) #{AT}")
    run = start(job, save_every=save_every)
    assert run.end() == 0, run.stderr()
    assert resumed(job) == ((AT - 1) // save_every * save_every, "memory")
    assert result(run, job) == undisturbed["float16"]


@pytest.mark.parametrize(
    ("cls", "code"),
    [
        ("cuda-sticky", "torch.zeros(4, device='cuda')[torch.tensor([9], device='cuda')]; torch.cuda.synchronize()"),
        ("oom-gpu", "torch.empty(1 << 45, device='cuda')"),
    ],
)
def test_an_error_of_cuda_is_known_and_the_process_replaced(
    job: Ftrun, undisturbed: dict[str, Result], cls: str, code: str
) -> None:
    """An index out of range loses the context; memory may be used up by another process, so the first time is tried
    again. The copy in memory was complete before."""
    job.drop("do.0", f"{code} #{AT}")
    run = start(job)
    assert run.end() == 0, run.stderr()
    [incident] = job.of("incident.opened")
    assert incident.data.fault.cls == cls, incident.data
    assert result(run, job) == undisturbed["float16"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("save_every", [1, 4])
def test_a_survivor_behind_a_hung_collective_saves_its_step(
    job: Ftrun, undisturbed: dict[str, Result], save_every: int, dtype: str
) -> None:
    """The optimizer's step is queued behind the collective: the device still has the state of the boundary.

    With ``float16`` the scaler waits for the device before it; with ``bfloat16`` the training thread has passed it."""

    def begin(rank: int) -> Run:
        flags = ("--nnodes=2", f"--node-rank={rank}", f"--node-id=node{rank}", "--nproc-per-node=1")
        return start(job, *flags, save_every=save_every, backend="gloo", dtype=dtype)

    job.drop("do.0", f"{HUNG} #{AT}")
    job.drop("do.1", f"Path('late').touch()\nwhile 1: time.sleep(1) #{AT}")
    runs = [begin(0), begin(1)]
    job.stepped(1, nodes=2)
    wait_until((job.cwd / "late").exists, "rank 1 to reach the step")
    wait_until(lambda: not (job.cwd / "do.0").exists(), "rank 0 to reach the step")
    kill_with_keeper(job, "node1")
    runs.append(begin(1))
    assert [run.end() for run in runs] == [0, -9, 0], runs[0].stderr()
    assert resumed(job)[0] == AT - 1
    assert result(runs[0], job) == undisturbed[dtype]
