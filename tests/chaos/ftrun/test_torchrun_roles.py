"""Torchruns of one job that run something different each: parameter servers and trainers, a master and its workers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import JOBS, PATIENCE_S, Run
from test_torchrun import torchrun

NODES = {"a": ("master", 2), "b": ("trainer", 1), "c": ("trainer", 3), "d": ("ps", 1), "e": ("ps", 2)}


def told(cwd: Path, size: int) -> list[dict[str, Any]]:
    return [json.loads((cwd / f"ranks.{rank}").read_text()) for rank in range(size)]


@pytest.mark.timeout(300)
def test_roles_have_ranks_of_their_own(tmp_path: Path) -> None:
    """Each node runs its own command in its own role; ranks are consecutive within a node and complete within a role,
    as torchrun's are. What each node runs is in the log."""
    with torchrun(tmp_path) as job:
        for name, (role, workers) in NODES.items():
            flags = ("--nnodes", "5", "--role", role, "--nproc-per-node", str(workers))
            job.node(name, *flags, script="ranks.py", args=("--me", name))
        assert [run.end() for run in job.nodes.values()] == [0] * 5
        size = sum(workers for _, workers in NODES.values())
        ranks = told(job.cwd, size)
        assert {rank["WORLD_SIZE"] for rank in ranks} == {str(size)}
        sizes: dict[str, int] = {}
        for role, workers in NODES.values():
            sizes[role] = sizes.get(role, 0) + workers
        for role, ranks_of_role in sizes.items():
            found = [rank for rank in ranks if rank["ROLE_NAME"] == role]
            assert sorted(int(rank["ROLE_RANK"]) for rank in found) == list(range(ranks_of_role))
            assert {rank["ROLE_WORLD_SIZE"] for rank in found} == {str(ranks_of_role)}
        for name, (role, workers) in NODES.items():
            found = [rank for rank in ranks if rank["args"] == ["--me", name]]
            assert {rank["ROLE_NAME"] for rank in found} == {role} and len(found) == workers
            firsts = {int(rank["ROLE_RANK"]) - int(rank["LOCAL_RANK"]) for rank in found}
            assert len(firsts) == 1 and len({rank["GROUP_RANK"] for rank in found}) == 1
            [joined] = job.of("node.joined", name)
            assert (joined.data.role, joined.data.command[-2:]) == (role, ("--me", name))


@pytest.mark.timeout(300)
def test_nodes_that_end_at_different_times(tmp_path: Path) -> None:
    """A node whose workers are done at once has begun the round, and waits for the others; another world size is still
    refused, and the flag named."""
    with torchrun(tmp_path) as job:
        job.node("a", "--nnodes", "2", script="ranks.py")
        job.wait("node.joined", node="a")
        wrong = job.node("wrong", "--nnodes", "3", script="ranks.py")
        assert wrong.end() == 2 and "--nnodes" in wrong.stderr()
        job.runs.remove(wrong)
        del job.nodes["wrong"]
        job.node("b", "--nnodes", "2", script="count.py")
        job.wait("round.started", round=1)
        job.steps_on(next(member.base_rank for member in job.of("world.members")[0].data.members if member.node == "b"))
        assert job.nodes["a"].process.poll() is None
        job.finish()
        assert [run.end() for run in job.nodes.values()] == [0, 0]


@pytest.mark.timeout(300)
def test_an_agent_whose_caller_raises_nothing(tmp_path: Path) -> None:
    """Workers that failed are no success, even if the handler is shut down before anybody raises; both nodes end."""
    with torchrun(tmp_path) as job:
        for name, fails in (("a", "1"), ("b", "0")):
            command = [sys.executable, str(JOBS / "own_agent.py"), job.store, job.job, name, fails]
            job.nodes[name] = Run(subprocess.Popen(command, **job._popen({})))
            job.runs.append(job.nodes[name])
        # Workers are spawned: each of two rounds begins with four imports of torch.
        assert [run.end(3 * PATIENCE_S) for run in job.nodes.values()] == [1, 1]
        [gave_up] = job.of("node.gave_up")
        assert gave_up.data.node == "a" and "--max-restarts is 0" in gave_up.data.reason
        assert job.of("job.finished")[-1].data.outcome == "failed"
