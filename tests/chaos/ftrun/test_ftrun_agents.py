"""Agents and their helpers die, freeze, leave and come back."""

import os
import resource
import signal
from pathlib import Path

import pytest
from harness import Ftrun, ftrun, gone, kill, wait_until

PHASES = ["node.joined", "store.opened", "world.formed", "workers.started", "workers.stepped"]


@pytest.mark.parametrize("kind", PHASES)
def test_an_agent_may_die_at_every_phase_of_a_start(tmp_path: Path, kind: str) -> None:
    """A node that is lost before, while and after it starts its workers is replaced, and all of it is gone first."""
    with ftrun(tmp_path) as job:
        run = job.start("--local-nodes", "2")
        joined = job.wait("node.joined", node="node1")
        job.wait(kind, 0 if kind == "node.joined" else joined.seq)
        kill(joined.data.pid)
        again = job.wait("node.joined", joined.seq, node="node1")
        job.wait("workers.stepped", again.seq, node="node1")
        last = max(event.data.round for event in job.of("world.formed"))
        job.stepped(last, nodes=2)
        assert not gone([pid for round_ in range(1, last) for pid in job.pids(round_)])
        job.finish()
        assert run.end() == 0


@pytest.mark.parametrize(
    "kind", ["worker.failed", "action.ordered", "workers.stopped", "world.formed", "workers.started"]
)
@pytest.mark.parametrize("node", ["node0", pytest.param("node1", marks=pytest.mark.long)])
def test_an_agent_may_die_at_every_phase_of_a_recovery(tmp_path: Path, kind: str, node: str) -> None:
    """Whichever node is lost while another fault is being repaired, the job trains again with all its nodes."""
    with ftrun(tmp_path) as job:
        run = job.start("--local-nodes", "2")
        stepped = job.stepped(1, nodes=2)
        victim = job.agent(node)
        job.do(0, "sys.exit(3)")
        job.wait(kind, stepped.seq)
        kill(victim)
        again = job.wait("node.joined", stepped.seq, node=node)
        job.wait("workers.stepped", again.seq, node=node)
        job.wait("incident.resolved", again.seq)
        job.finish()
        assert run.end() == 0


def test_an_agent_that_runs_out_of_file_descriptors_stops_nobody(tmp_path: Path) -> None:
    """Workers train on, and people are told; master and workers that die meanwhile are replaced once it has some."""
    with ftrun(tmp_path, timing={"node_lease_s": 20.0, "progress_sample_s": 0.5}) as job:
        run = job.start("--nproc-per-node", "2")
        job.stepped(1)
        agent = job.agent()
        before = resource.prlimit(agent, resource.RLIMIT_NOFILE)
        resource.prlimit(agent, resource.RLIMIT_NOFILE, (3, before[1]))
        elected = job.of("master.elected")[-1]
        kill(elected.data.pid)
        wait_until(lambda: "free file descriptors" in run.stderr(), "words")
        job.steps_on(0)
        resource.prlimit(agent, resource.RLIMIT_NOFILE, before)
        elected = job.wait("master.elected", elected.seq)
        job.wait("job.progressed", elected.seq)
        resource.prlimit(agent, resource.RLIMIT_NOFILE, (3, before[1]))
        job.do(1, "os.kill(os.getpid(), 9)")
        wait_until(lambda: "Too many open files; retrying" in run.stderr(), "words")
        resource.prlimit(agent, resource.RLIMIT_NOFILE, before)
        resolved = job.wait("incident.resolved")
        assert resolved.data.outcome == "stepped"
        assert not job.of("node.lost") and job.agent() == agent
        job.finish()
        assert run.end() == 0


def test_a_whole_node_may_die(tmp_path: Path) -> None:
    """Agent, warm process, guard, store host and workers of a node, killed together, are replaced."""
    with ftrun(tmp_path) as job:
        run = job.start("--local-nodes", "2")
        stepped = job.stepped(1, nodes=2)
        for pid in family(job.agent("node1")):
            kill(pid)
        lost = job.wait("incident.opened", stepped.seq)
        assert lost.data.fault.cls == "node-lost" and lost.data.fault.nodes[0] == "node1"
        job.wait("incident.resolved", lost.seq)
        job.finish()
        assert run.end() == 0


def family(pid: int) -> list[int]:
    """A process and all below it, the parent first."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


@pytest.mark.parametrize("nodes", [[], ["--local-nodes", "2"]], ids=["alone", "local-nodes"])
def test_nothing_survives_a_killed_ftrun(tmp_path: Path, nodes: list[str]) -> None:
    """After SIGKILL of ftrun itself workers and what they forked are gone, and the master ends when nobody calls."""
    with ftrun(tmp_path, timing={"master_idle_s": 3.5}) as job:
        run = job.start(*nodes)
        job.stepped(1, nodes=len(nodes) or 1)
        job.do(0, "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)")
        wait_until(lambda: job.processes("sleep 1000"), "a child")
        job.events.close()
        kill(run.pid)
        run.end()
        assert not gone(job.processes())


def test_a_killed_job_is_taken_up_again(tmp_path: Path) -> None:
    """The same command after SIGKILL of ftrun joins the unfinished run and goes on from what was saved."""
    with ftrun(tmp_path) as job:
        first = job.start()
        job.stepped(1)
        job.steps_on()
        before = job.step()
        kill(first.pid)
        first.end()
        second = job.start()
        job.stepped(2)
        job.steps_on()
        assert job.step() > before
        job.finish()
        assert second.end() == 0
        assert len(job.of("job.submitted")) == 1


def helper(job: Ftrun, agent: int, word: str) -> int:
    """A child of the agent by its command line."""
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in family(agent)[1:]}
    return next(pid for pid, line in lines.items() if word in line)


def test_helpers_may_die_while_training(tmp_path: Path) -> None:
    """Warm process and guard are made anew without a worker noticing; the next recovery has them."""
    with ftrun(tmp_path) as job:
        run = job.start()
        job.stepped(1)
        old = [helper(job, run.pid, "warm process"), helper(job, run.pid, "_guard.py")]
        for pid in old:
            kill(pid)
        assert not gone(old)
        job.steps_on()
        assert not job.of("incident.opened")
        job.do(0, "sys.exit(3)")
        resolved = job.wait("incident.resolved")
        job.steps_on()
        assert helper(job, run.pid, "_guard.py") and len(job.of("world.formed")) == 2
        job.do(0, "sys.exit(3)")
        job.wait("worker.failed", resolved.seq)
        kill(helper(job, run.pid, "warm process"))
        job.wait("incident.resolved", resolved.seq)
        job.finish()
        assert run.end() == 0


def test_a_dead_store_host_costs_at_most_one_round(tmp_path: Path) -> None:
    """The loss of the round's store is told, and the job trains on, in this round or the next."""
    with ftrun(tmp_path) as job:
        run = job.start("--nproc-per-node", "2", script="ddp.py", preload=False)
        job.stepped(1)
        kill(helper(job, run.pid, "store host"))
        failed = job.wait("store.failed", round=1)
        job.wait("incident.resolved", failed.seq)
        job.stepped(2)
        job.finish()
        assert run.end() == 0
        assert len(job.of("world.formed")) == 2


def test_a_frozen_agent_is_fenced_and_comes_back(tmp_path: Path) -> None:
    """Silent for longer than its lease, the node is lost; awake again it stops its workers before it joins anew."""
    with ftrun(tmp_path) as job:
        run = job.start("--local-nodes", "2")
        job.stepped(1, nodes=2)
        old, frozen = job.pids(1, "node1"), job.agent("node1")
        os.kill(frozen, signal.SIGSTOP)
        lost = job.wait("node.lost", node="node1")
        os.kill(frozen, signal.SIGCONT)
        again = job.wait("node.joined", lost.seq, node="node1")
        assert again.data.pid == frozen
        assert not gone(old, 0.0), "its old workers are gone before it joins again"
        job.wait("incident.resolved", again.seq)
        job.finish()
        assert run.end() == 0


def test_an_agent_may_leave_and_come_back(tmp_path: Path) -> None:
    """Two agents of one store; one is told to leave and goes with its workers; started again it takes its place."""
    with ftrun(tmp_path) as job:
        flags = ["--nnodes", "2"]
        first = job.start(*flags, "--node-rank=0", "--node-id=a")
        second = job.start(*flags, "--node-rank=1", "--node-id=b")
        job.stepped(1, nodes=2)
        second.signal(signal.SIGTERM)
        assert second.end() == 5
        left = job.wait("node.left", node="b")
        assert not gone(job.pids(1, "b"), 0.0)
        again = job.start(*flags, "--node-rank=1", "--node-id=b")
        job.wait("incident.resolved", left.seq)
        job.finish()
        assert (first.end(), again.end()) == (0, 0)


def test_a_name_taken_twice_is_told(tmp_path: Path) -> None:
    """A second ftrun under the name of a node that takes part is turned away, and the first is not disturbed."""
    with ftrun(tmp_path) as job:
        first = job.start("--nnodes", "1:2", "--node-id=a")
        job.wait("node.joined")
        second = job.start("--nnodes", "1:2", "--node-id=a")
        assert second.end() == 2
        assert "--node-id" in second.stderr() and len(job.of("node.joined")) == 1
        third = job.start("--nnodes", "1:2", "--node-id=b")
        job.stepped(1, nodes=2)
        job.finish()
        assert (first.end(), third.end()) == (0, 0)
