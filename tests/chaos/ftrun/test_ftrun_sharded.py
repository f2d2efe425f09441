"""Sharded models that are made anew in each round: processes stay, and the weights are those of an undisturbed run."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from harness import Ftrun, Run, ftrun

STEPS = 40
COLLECTIVE = "raise dist.DistBackendError('a link is down')"
DAMAGED = "damage(); raise ft.MemoryDamaged('a parameter')"
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
POLICY = """\
version: 1
chain:
- step_retry
- hot_swap: {node_faults: 10}
- process_restart
- shrink
- stop
"""


def start(job: Ftrun, *argv: str, mode: tuple[str, ...] = (), faults: dict[int, dict[str, Any]] | None = None) -> Run:
    """Start the script with faults by rank, and by place and step."""
    job.drop("policy.yaml", POLICY)
    for rank, found in (faults or {}).items():
        job.drop(f"at.{rank}", json.dumps({place: [code] for place, code in found.items()}))
    return job.start(*argv, "--policy", "policy.yaml", script="sharded.py", preload=False, args=(str(STEPS), *mode))


def ends(*runs: Run) -> dict[int, tuple[int, str]]:
    """By rank, its process and the digest of the weights at its end."""
    text = "".join(run.stdout() for run in runs)
    found = re.findall(r"rank (\d+) of process (\d+) ends with ([0-9a-f]{16})", text)
    return {int(rank): (int(pid), digest) for rank, pid, digest in found}


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param((), id="fsdp2", marks=pytest.mark.long),
        pytest.param(("tensor",), id="fsdp2-and-tensor-parallel"),
    ],
)
def test_a_sharded_job_goes_on_in_the_same_processes(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, mode: tuple[str, ...]
) -> None:
    """A failed collective, damaged memory of a shard that no other rank has, and a killed rank; no survivor ends."""
    with ftrun(tmp_path_factory.mktemp("undisturbed")) as undisturbed:
        run = start(undisturbed, "--nproc-per-node=2", mode=mode)
        assert run.end() == 0
        expected = {digest for _, digest in ends(run).values()}
        assert len(expected) == 1
    faults = {
        0: {"backward 20": DAMAGED},
        1: {"forward 8": COLLECTIVE, "optimizer 14": COLLECTIVE, "backward 30": KILLED},
    }
    with ftrun(tmp_path) as job:
        run = start(job, "--nproc-per-node=2", mode=mode, faults=faults)
        assert run.end() == 0
        assert {digest for _, digest in ends(run).values()} == expected
        resolved = [event.data.policy for event in job.of("incident.resolved")]
        assert resolved == ["step_retry"] * 3 + ["hot_swap"]
        pids = [job.pids(round_) for round_ in range(1, 6)]
        assert pids[:4] == [pids[0]] * 4
        assert pids[4][0] == pids[0][0] and pids[4][1] != pids[0][1]
        assert {event.data.source for event in job.of("state.loaded") if event.data.round > 1} == {"memory"}


def test_a_sharded_job_shrinks_in_the_same_process(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One of two nodes is drained: the other one takes over its part of the state."""
    with ftrun(tmp_path_factory.mktemp("alone")) as alone:
        run = start(alone, "--nproc-per-node=1", mode=("resizes",))
        assert run.end() == 0
    with ftrun(tmp_path, timing={"join_window_s": 20.0}) as job:
        job.drop("slow", "")
        runs = {name: start(job, "--nnodes=1:2", f"--node-id={name}", mode=("resizes",)) for name in "ab"}
        job.all_step_on(2)
        assert job.ftctl("--job", "job", "drain", "b", "--why", "a test").returncode == 0
        job.wait("incident.resolved", policy="shrink")
        (job.cwd / "slow").unlink()
        assert (runs["a"].end(), runs["b"].end()) == (0, 5)
        assert job.pids(2, "a") == job.pids(1, "a")
        assert all(event.data.steps_lost <= 1 for event in job.of("incident.resolved"))
        assert ends(runs["a"])[0] == (job.pids(1, "a")[0], ends(run)[0][1])
