"""Worlds that change while the processes stay: shrink, grow and drain, also with another fault meanwhile."""

import ast
import re
from pathlib import Path

import pytest
from harness import Ftrun, Run, ftrun, kill
from test_ftrun_checkpoints import kill_with_keeper

STEPS = 200
POLICY = """\
version: 1
chain:
- step_retry
- hot_swap
- process_restart
- shrink
- grow: {every: 0s, steady: 0s, reserve: 0}
- stop
"""


def start(job: Ftrun, *argv: str) -> Run:
    return job.start(*argv, "--policy", "policy.yaml", script="resizes.py", preload=False, args=(str(STEPS),))


def ends(*runs: Run) -> dict[int, tuple[int, list[float]]]:
    """By rank, its process and its weights at its end."""
    text = "".join(run.stdout() for run in runs)
    found = re.findall(r"rank (\d+) of process (\d+) ends with (\[.*\])", text)
    return {int(rank): (int(pid), ast.literal_eval(weights)) for rank, pid, weights in found}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The weights of a run to which nothing happens."""
    with ftrun(tmp_path_factory.mktemp("undisturbed")) as job:
        job.drop("policy.yaml", POLICY)
        run = start(job, "--nproc-per-node=3")
        assert run.end() == 0
        return ends(run)[0][1]


def test_a_job_shrinks_grows_and_is_drained_in_the_same_processes(tmp_path: Path, undisturbed: list[float]) -> None:
    """A node dies, comes back, and the one with rank 0 is drained: those that stay are never started again."""
    with ftrun(tmp_path, timing={"node_lease_s": 5.0, "join_window_s": 20.0}) as job:
        job.drop("policy.yaml", POLICY)
        job.drop("slow", "")
        runs = {name: start(job, "--nnodes=2:3", f"--node-id={name}") for name in "abc"}
        job.all_step_on(3)
        lost = runs.pop("c")
        kill(lost.pid)
        lost.end()
        shrunk = job.wait("incident.resolved", policy="shrink")
        runs["c"] = start(job, "--nnodes=2:3", "--node-id=c")
        grown = job.wait("incident.resolved", shrunk.seq, policy="grow")
        job.all_step_on(3, by=1)
        assert job.ftctl("--job", "job", "drain", "a", "--why", "a test").returncode == 0
        job.wait("incident.resolved", grown.seq, policy="shrink")
        (job.cwd / "slow").unlink()
        left = runs.pop("a")
        assert [run.end() for run in runs.values()] == [0, 0]
        assert left.end() == 5
        pids = {node: [job.pids(round_, node) for round_ in range(1, 5)] for node in "abc"}
        assert pids["b"] == [pids["b"][0]] * 4
        assert pids["a"] == [pids["a"][0]] * 3 + [[]]
        assert pids["c"][1] == [] and pids["c"][0] != pids["c"][2] == pids["c"][3]
        assert {e.data.source for e in job.of("state.loaded") if e.data.round > 1} <= {"memory", "replica"}
        assert all(event.data.steps_lost <= 1 for event in job.of("incident.resolved"))
        found = ends(*runs.values())
        assert {rank: pid for rank, (pid, _) in found.items()} == {0: pids["b"][0][0], 1: pids["c"][2][0]}
        assert found[0][1] == found[1][1] == pytest.approx(undisturbed, abs=1e-3)
        samples = job.ftctl("--job", "job", "samples")
        assert samples.returncode == 0, samples.stdout


def test_a_worker_that_dies_while_the_job_shrinks(tmp_path: Path, undisturbed: list[float]) -> None:
    """One of two survivors is killed before the smaller world has made a step; training goes on as if nothing was."""
    with ftrun(tmp_path, timing={"node_lease_s": 5.0, "join_window_s": 20.0}) as job:
        job.drop("policy.yaml", POLICY)
        job.drop("slow", "")
        runs = {name: start(job, "--nnodes=2:3", f"--node-id={name}") for name in "abc"}
        job.stepped(1, nodes=3)
        kill_with_keeper(job, "c")
        runs.pop("c").end()
        job.wait("round.planned", round=2)
        kill(job.pids(1, "b")[0])
        (job.cwd / "slow").unlink()
        assert [run.end() for run in runs.values()] == [0, 0]
        found = ends(*runs.values())
        assert found[0][1] == found[1][1] == pytest.approx(undisturbed, abs=1e-3)
        assert found[0][0] == job.pids(1, "a")[0]
        samples = job.ftctl("--job", "job", "samples")
        assert samples.returncode == 0, samples.stdout


def set_up(job: Ftrun) -> set[int]:
    """The processes that have come to where they need their rank."""
    return {int(path.suffix[1:]) for path in job.cwd.glob("set_up.*")}


@pytest.mark.parametrize(("nodes", "policy"), [("2", "hot_swap"), ("2:3", "grow")])
def test_a_prepared_standby_enters_the_round(tmp_path: Path, undisturbed: list[float], nodes: str, policy: str) -> None:
    """A node that joins later has its workers ready before it is needed: they take the place of a lost node's, or make
    the job grow."""
    with ftrun(tmp_path, timing={"node_lease_s": 5.0, "join_window_s": 3.0}) as job:
        job.drop("policy.yaml", POLICY)
        job.drop("slow", "")
        runs = {name: start(job, f"--nnodes={nodes}", f"--node-id={name}") for name in "ab"}
        job.all_step_on(2)
        runs["c"] = start(job, f"--nnodes={nodes}", "--node-id=c", "--prepare=standby")
        job.wait("node.warmed", node="c")
        [prepared] = set_up(job) - {*job.pids(1)}
        if policy == "hot_swap":
            kill_with_keeper(job, "b")
            runs.pop("b").end()
        job.wait("incident.resolved", policy=policy)
        (job.cwd / "slow").unlink()
        assert [run.end() for run in runs.values()] == [0] * len(runs)
        [started] = job.of("workers.started", "c")
        assert (started.data.how, started.data.pids) == ("prepared", (prepared,))
        assert job.pids(2, "a") == job.pids(1, "a")
        found = ends(*runs.values())
        assert prepared in {pid for pid, _ in found.values()}
        assert all(weights == pytest.approx(undisturbed, abs=1e-3) for _, weights in found.values())
