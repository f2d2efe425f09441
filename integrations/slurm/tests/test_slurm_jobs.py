"""Jobs on a real Slurm: submitted as users do, with what happens to nodes, daemons and jobs."""

import json
import signal
from pathlib import Path

import pytest
from harness import JOBS
from slurm_cluster import Submitted, slurm, until

pytestmark = pytest.mark.timeout(400)


def test_a_node_that_loses_power_is_replaced_by_a_spare(tmp_path: Path) -> None:
    """Slurm's job goes on; the job's nodes, names and places come from the allocation."""
    with slurm(tmp_path) as cluster:
        job = Submitted(cluster, tmp_path / "job", ["--nodes", "3", "--spares", "1"], [str(JOBS / "count.py")])
        until(lambda: len(job.steps()) == 3, "three ranks")
        job.trains(3)
        status = json.loads(job.ftctl("status", "--format", "json"))
        assert sorted(node["node"] for node in status["nodes"]) == [host.name for host in cluster.nodes]
        victim = job.world()[-1]
        victim.power_off()
        job.trains(3)
        assert job.state == "RUNNING"
        until(lambda: victim.name not in job.cluster.field(job.number, "NodeList"), "Slurm to take the node away")
        job.trains(3)
        assert job.end() == "COMPLETED", job.output()


def test_slurms_own_failures_stop_no_rank(tmp_path: Path) -> None:
    """A killed controller, a frozen node and a killed slurmd: the ranks go on. What Slurm takes away leaves later."""
    with slurm(tmp_path) as cluster:
        job = Submitted(cluster, tmp_path / "job", ["--nodes", "2", "--spares", "1"], [str(JOBS / "count.py")])
        job.trains(2)
        cluster.restart_controller()
        job.trains(2)
        assert len(job.of("world.formed")) == 1
        victim = job.world()[-1]
        victim.signal(signal.SIGKILL, "slurmd -D")
        until(lambda: victim.name not in job.cluster.field(job.number, "NodeList"), "Slurm to take the node away")
        until(lambda: job.of("fault.observed"), "the platform's warning")
        warned = job.of("fault.observed")[0]["data"]
        assert (warned["kind"], warned["node"]) == ("preemption-notice", victim.name) and "Slurm" in warned["message"]
        job.trains(2)
        assert len(job.of("world.formed")) == 1, "the node trains as long as it lives"
        cluster.start_node(victim)  # it ends the tasks of a job that no longer has the node
        until(lambda: len(job.of("world.formed")) == 2, "a round with the spare")
        job.trains(2)
        assert job.end() == "COMPLETED", job.output()


def test_the_time_limit_saves_stops_and_requeues(tmp_path: Path) -> None:
    """Slurm's signal comes before it; the requeued job goes on in the same log, after the step that it had reached."""
    with slurm(tmp_path) as cluster:
        job = Submitted(cluster, tmp_path / "job", ["--nodes", "2"], [str(JOBS / "count.py")])
        job.trains(2)
        cluster.done("scancel", "--batch", "--signal=USR1", job.number)
        until(lambda: job.cluster.field(job.number, "Restarts") == "1", "the requeue")
        reached = min(job.steps().values())
        until(lambda: job.output().count("from slurm") == 2, "its second start")
        job.trains(2, reached)
        runs = [event["data"] for event in job.of("job.submitted")]
        assert [run["run"] for run in runs] == [1, 2]
        (stopped,) = [event["data"] for event in job.of("job.finished")]
        assert stopped["outcome"] == "stopped" and "before its end" in stopped["reason"]
        assert job.end() == "COMPLETED", job.output()


def test_the_batch_host_loses_power(tmp_path: Path) -> None:
    """Slurm requeues the job by itself; the log is on the shared file system, so the job goes on in it."""
    with slurm(tmp_path) as cluster:
        job = Submitted(cluster, tmp_path / "job", ["--nodes", "2"], [str(JOBS / "count.py")])
        job.trains(2)
        host = next(host for host in cluster.nodes if host.name == cluster.field(job.number, "BatchHost"))
        host.power_off()
        until(lambda: job.output().count("from slurm") == 2, "its second start")
        job.trains(2, min(job.steps().values()))
        assert [event["data"]["run"] for event in job.of("job.submitted")] in ([1], [1, 2])
        assert job.end() == "COMPLETED", job.output()


def test_an_agent_is_started_anew_on_its_node(tmp_path: Path) -> None:
    """By a further step of the allocation, in the same place; then an evicted node is drained, with a reason."""
    with slurm(tmp_path, nodes=2) as cluster:
        job = Submitted(cluster, tmp_path / "job", ["--nodes", "2"], [str(JOBS / "count.py")])
        job.trains(2)
        _, second = cluster.nodes
        assert second.signal(signal.SIGKILL, "bin/ftrun")
        until(lambda: len(job.of("world.formed")) == 2, f"the next round: {job.output()}")
        job.trains(2)
        names = [event["data"]["node"] for event in job.of("node.joined")]
        assert len(names) == 3 and names[-1].startswith(f"{second.name}."), names
        assert job.end() == "COMPLETED", job.output()


def test_an_evicted_node_is_drained(tmp_path: Path) -> None:
    """Where Slurm allows it: with the reason, for the administrators."""
    with slurm(tmp_path, nodes=3) as cluster:
        job = Submitted(cluster, tmp_path / "job", ["--nodes", "2", "--spares", "1"], [str(JOBS / "count.py")])
        job.trains(2)
        victim = job.world()[-1]
        job.ftctl("evict", victim.name, "--why", "its links flap")
        until(lambda: "drain" in cluster.state_of(victim), f"a drained node: {cluster.state_of(victim)}")
        reason = cluster.done("sinfo", "-h", "-N", "-n", victim.name, "-o", "%E")
        assert reason.startswith(f"ftcore {job.name}: ") and "its links flap" in reason
        job.trains(2)
        assert job.end() == "COMPLETED", job.output()


def test_what_an_operator_ends_is_not_requeued(tmp_path: Path) -> None:
    """``ftctl stop`` ends with exit code 5, ``scancel`` as Slurm does; no process is left on a node."""
    with slurm(tmp_path, nodes=2) as cluster:
        stopped = Submitted(cluster, tmp_path / "stopped", ["--nodes", "2"], [str(JOBS / "count.py")])
        stopped.trains(2)
        stopped.ftctl("stop", "--why", "a priority job")
        until(lambda: stopped.state == "FAILED", f"its end: {stopped.output()}")
        assert cluster.field(stopped.number, "ExitCode") == "5:0"
        canceled = Submitted(cluster, tmp_path / "canceled", ["--nodes", "2"], [str(JOBS / "count.py")])
        canceled.trains(2)
        cluster.done("scancel", canceled.number)
        until(lambda: canceled.state == "CANCELLED", "its end")
        for host in cluster.nodes:
            until(lambda host=host: not host.processes("ftcore") and not host.processes("etcd"), "empty nodes")


def test_a_job_whose_chain_gave_up_is_requeued_while_it_makes_progress(tmp_path: Path) -> None:
    """As the last resort; without a step in between, it fails."""
    with slurm(tmp_path, nodes=2) as cluster:
        flags = ["--max-restarts", "0", str(JOBS / "count.py")]
        job = Submitted(cluster, tmp_path / "job", ["--nodes", "2"], flags)
        job.trains(2)
        (job.place / "do.1").write_text("sys.exit(3)")
        until(lambda: job.cluster.field(job.number, "Restarts") == "1", f"the requeue: {job.output()}")
        [(job.place / f"always.{rank}").write_text("sys.exit(3)") for rank in (0, 1)]
        until(lambda: job.state == "FAILED", f"its end: {job.output()}")
        assert "no step was completed" in job.output()
        assert cluster.field(job.number, "ExitCode") == "1:0"
