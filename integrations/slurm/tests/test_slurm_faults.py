"""Jobs on a real Slurm: nodes that Slurm does not see fail, nodes given again, limits, preemption, neighbours."""

from pathlib import Path

import pytest
from harness import JOBS
from slurm_cluster import Submitted, slurm, until

pytestmark = pytest.mark.timeout(400)

COUNT = str(JOBS / "count.py")


def test_a_frozen_and_a_cut_off_node_are_replaced_and_fenced(tmp_path: Path) -> None:
    """Both by spares; when they are back, no worker of theirs goes on."""
    with slurm(tmp_path, silent_s=300) as cluster:
        job = Submitted(cluster, tmp_path / "job", ["--nodes", "2", "--spares", "2"], [COUNT])
        job.trains(2)
        batch = cluster.field(job.number, "BatchHost")
        for breaks, mends in (("freeze", "thaw"), ("cut", "heal")):
            victim = next(host for host in reversed(job.world()) if host.name != batch)
            getattr(victim, breaks)()
            until(lambda victim=victim: victim not in job.world(), f"a round without it: {job.output()}")
            job.trains(2)
            getattr(victim, mends)()
            until(lambda: not victim.processes(f"python {COUNT}"), "its workers' end")  # noqa: B023
            job.trains(2)
        assert job.end() == "COMPLETED", job.output()


def test_dead_nodes_that_slurm_does_not_miss_yet(tmp_path: Path) -> None:
    """One that the job gets at its start, and one whose loss ends the job: it is requeued, and waits for neither."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("{version: 1, options: {process_restart: {patience: 15s}}}")
    with slurm(tmp_path, nodes=3, silent_s=70) as cluster:  # Slurm must not be the first to notice
        first, second, third = cluster.nodes
        second.power_off()
        flags = ["--nodes", "2", "--no-drain"]
        job = Submitted(cluster, tmp_path / "job", flags, ["--policy", str(policy), COUNT])
        until(lambda: f"requeued: {second.name} of the allocation cannot be reached" in job.output(), "a requeue")
        job.trains(2)
        assert {host.name for host in job.world()} == {first.name, third.name}
        third.power_off()
        until(lambda: f"requeued: {third.name} of the allocation cannot be reached" in job.output(), "the next one")
        assert f"{third.name} cannot be reached, and is not waited for" in job.output()


def test_a_requeued_job_is_kept_off_a_quarantined_node(tmp_path: Path) -> None:
    """Slurm would give it again: it is up, and this user may not drain it."""
    with slurm(tmp_path) as cluster:
        flags = ["--nodes", "2", "--spares", "1", "--no-drain"]
        job = Submitted(cluster, tmp_path / "job", flags, [COUNT])
        job.trains(2)
        victim = job.world()[-1]
        until(lambda: len(job.of("node.joined")) == 3, "the spare")
        job.ftctl("evict", victim.name, "--why", "its links flap")
        cluster.done("scancel", "--batch", "--signal=USR1", job.number)
        until(lambda: job.output().count("from slurm") == 2, f"its second start: {job.output()}")
        job.trains(2)
        assert cluster.field(job.number, "ExcNodeList") == victim.name
        assert victim not in job.world()
        assert job.end() == "COMPLETED", job.output()


def test_the_batch_host_is_lost_and_the_log_is_elsewhere(tmp_path: Path) -> None:
    """Training goes on with a spare, without a batch script; after its end, a deputy ends Slurm's job."""
    with slurm(tmp_path) as cluster:
        url = f"http://{cluster.controller.address}:2379"
        listen = ["--listen-client-urls", url, "--advertise-client-urls", url]
        with (tmp_path / "etcd.out").open("wb") as out:
            cluster.controller.spawn(["etcd", "--data-dir", str(tmp_path / "etcd"), *listen], stdout=out, stderr=out)
        env = [f"FTCORE_STORE=etcd://{cluster.controller.address}:2379"]
        job = Submitted(cluster, tmp_path / "job", ["--nodes", "2", "--spares", "1"], [COUNT], env)
        job.trains(2)
        host = cluster.lan[cluster.field(job.number, "BatchHost")]
        host.power_off()
        job.trains(2)
        until(lambda: host.name not in cluster.field(job.number, "NodeList"), "Slurm to take the node away")
        job.trains(2)
        assert job.state == "RUNNING"
        (job.place / "finish").touch()
        until(lambda: job.state == "CANCELLED", f"the end of Slurm's job: {job.output()}")
        told = (job.place / "state" / job.name / "deputy.log").read_text()
        assert "the job has ended: succeeded" in told


@pytest.mark.long
def test_members_of_an_array_reach_their_time_limit(tmp_path: Path) -> None:
    """Each is a job of its own, with a log of its own; each is stopped in time, requeued, and goes on."""
    script = tmp_path / "member.py"
    script.write_text(
        "import os, runpy\n"
        "where = f\"{os.environ['SLURM_ARRAY_TASK_ID']}\"\n"
        "os.makedirs(where, exist_ok=True)\n"
        "os.chdir(where)\n"
        f"runpy.run_path({COUNT!r}, run_name='__main__')\n"
    )
    with slurm(tmp_path, nodes=2) as cluster:
        flags = ["--nodes", "1", "--lead", "45", "--sbatch=--array=1-2", "--sbatch=--time=2"]
        job = Submitted(cluster, tmp_path / "job", flags, [str(script)])
        members = [tmp_path / "job" / number for number in ("1", "2")]
        until(lambda: all((member / "step.0").exists() for member in members), "both members")
        until(lambda: all(cluster.field(f"{job.number}_{n}", "Restarts") == "1" for n in (1, 2)), "their requeues")
        reached = [int((member / "step.0").read_text()) for member in members]
        until(lambda: [int((member / "step.0").read_text()) for member in members] > reached, "their next steps")
        assert job.output().count("requeued: Slurm's signal") == 2, job.output()
        for member in members:
            (member / "finish").touch()
        until(lambda: set(job.state.split()) == {"COMPLETED"}, f"their ends: {job.output()}")


def test_a_job_that_is_preempted_goes_on_afterwards(tmp_path: Path) -> None:
    """Slurm requeues it by itself, for a job of a partition with priority."""
    with slurm(tmp_path, nodes=2) as cluster:
        job = Submitted(cluster, tmp_path / "job", ["--nodes", "2"], [COUNT])
        job.trains(2)
        urgent = cluster.done("sbatch", "--parsable", "-p", "urgent", "-N2", "--exclusive", "--wrap=sleep 600").strip()
        until(lambda: cluster.job_state(urgent) == "RUNNING", "the urgent job")
        assert job.state == "PENDING"
        reached = min(job.steps().values())
        cluster.done("scancel", urgent)
        until(lambda: job.output().count("from slurm") == 2, "its second start")
        job.trains(2, reached)
        assert job.end() == "COMPLETED", job.output()


def test_two_jobs_of_a_user_on_one_node(tmp_path: Path) -> None:
    """Neither takes the other's ports, directories or processes."""
    with slurm(tmp_path, nodes=1) as cluster:
        flags = ["--nodes", "1", "--sbatch=--oversubscribe", "--sbatch=--cpus-per-task=1"]
        first, second = (Submitted(cluster, tmp_path / name, flags, [COUNT]) for name in ("first", "second"))
        first.trains(1)
        second.trains(1)
        (first.place / "do.0").write_text("os.kill(os.getpid(), signal.SIGKILL)")
        until(lambda: len(first.of("world.formed")) == 2, "a round of the first")
        first.trains(1)
        assert first.end() == "COMPLETED", first.output()
        second.trains(1)
        assert len(second.of("world.formed")) == 1
        assert second.end() == "COMPLETED", second.output()
