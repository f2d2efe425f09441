"""Worlds that change: nodes of unequal width, spares, growth and shrinking, on real agents."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from etcd_cluster import Cluster
from harness import JOBS, PATIENCE_S, Ftrun, ftrun, kill, wait_until

FTRUN = [sys.executable, "-m", "ftcore.cli.ftrun"]
PIPES: dict[str, Any] = {
    "stdin": subprocess.DEVNULL,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.PIPE,
    "text": True,
}

DUMP = "import json; open('env.' + os.environ['RANK'], 'w').write(json.dumps(dict(os.environ)))"


def env_of(job: Ftrun, rank: int) -> dict[str, str]:
    """The environment of a rank, as its worker saw it at its next step."""
    path = job.cwd / f"env.{rank}"
    path.unlink(missing_ok=True)
    job.do(rank, DUMP)
    wait_until(lambda: path.exists() and path.stat().st_size > 500, f"the environment of rank {rank}")
    found: dict[str, str] = json.loads(path.read_text())
    return found


OTHER_VERSION = "from ftcore import version; version.__version__ = '9.0.0'; from ftcore.cli.ftrun import run; run()"


def test_nodes_of_unequal_width_train_together_over_ipv6(tmp_path: Path) -> None:
    """One worker here and two there, laid out by their labels, with etcd, master and gloo at ``::1``: all is counted
    right. Who asks for something else, has another version, or a name that is taken, is told and disturbs nobody."""
    etcd = Cluster(tmp_path / "etcd", ipv6=True).start()
    store = f"etcd://[::1]:{etcd.members[0].port}/elastic"
    try:
        with ftrun(tmp_path / "home", store=store) as job:
            flags = ["--nnodes=2", "--order-by=switch", "--local-addr=[::1]"]
            runs = [
                job.start(*flags, f"--node-id={node}", f"--nproc-per-node={wide}",
                          f"--node-labels=switch={switch},rack=r1", script="ddp.py", preload=False)
                for node, wide, switch in (("a", 1, "s10"), ("b", 2, "s2"))
            ]  # fmt: skip
            job.stepped(1, nodes=2)
            assert job.of("master.elected")[-1].data.address.startswith("[::1]:")
            found = [env_of(job, rank) for rank in range(3)]
            names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
            assert [[int(env[name]) for name in names] for env in found] == [
                [0, 0, 2, 3, 0, 2],
                [1, 1, 2, 3, 0, 2],
                [2, 0, 1, 3, 1, 2],
            ]
            assert {env["MASTER_ADDR"] for env in found} == {"::1"}
            _turned_away(job, flags)
            job.steps_on()
            job.finish()
            assert [run.end() for run in runs] == [0, 0]
            assert len(job.of("world.formed")) == 1 and len(job.of("node.joined")) == 2
            sums = [line.rpartition(" ")[2] for run in runs for line in run.stdout().splitlines() if "ends at" in line]
            assert len(sums) == 3 and len(set(sums)) == 1
    finally:
        etcd.stop()


def _turned_away(job: Ftrun, flags: list[str]) -> None:
    argv = ["--store", job.store, "--job", job.job, *flags, "--preload=json"]
    script = str(JOBS / "ddp.py")
    told = {
        "another": subprocess.Popen([*FTRUN, *argv, "--node-id=c", script, "7"], **PIPES, env=job.env, cwd=job.cwd),
        "taken": subprocess.Popen([*FTRUN, *argv, "--node-id=b", script], **PIPES, env=job.env, cwd=job.cwd),
        "version": subprocess.Popen(
            [sys.executable, "-c", OTHER_VERSION, *argv, "--node-id=d", script], **PIPES, env=job.env, cwd=job.cwd
        ),
    }
    said = {name: process.communicate(timeout=PATIENCE_S)[1] for name, process in told.items()}
    assert {name: process.returncode for name, process in told.items()} == dict.fromkeys(told, 2), said
    assert f"the command is {script} 7 here and {script} there" in said["another"]
    assert "a node named b already takes part" in said["taken"] and "--node-id" in said["taken"]
    assert "ftcore 9.0.0" in said["version"] and "install the same version on every node" in said["version"]


LOOP = """\
version: 1
chain:
- process_restart: {patience: 30s}
- shrink: {node_faults: 2}
- grow: {every: 0s, steady: 0s, reserve: 0}
- stop
"""


def test_a_node_that_comes_and_goes_is_kept_out_until_it_is_admitted(tmp_path: Path) -> None:
    """An agent that is killed and started again in a loop is quarantined; its ftrun says so and ends with 5, the others
    train on undisturbed; once admitted it takes part again."""
    with ftrun(tmp_path) as job:
        (job.cwd / "policy.yaml").write_text(LOOP)
        flags = ["--nnodes=1:2", "--policy", "policy.yaml"]
        first = job.start(*flags, "--node-id=a")
        looping = job.start(*flags, "--node-id=b")
        seen = job.stepped(1, nodes=2)
        for _ in range(2):
            kill(looping.pid)
            looping.end()
            looping = job.start(*flags, "--node-id=b")
            seen = job.wait("incident.resolved", seen.seq)
        kept_out = job.wait("node.quarantined", node="b")
        assert "b is kept out" in job.wait("policy.considered", policy="shrink", verdict="take").data.reason
        assert looping.end() == 5
        assert "--job job admit b" in looping.stderr() or "quarantined" in looping.stderr(), looping.stderr()
        again = job.start(*flags, "--node-id=b")
        assert again.end() == 5 and "this node is released" in again.stderr() and "--job job admit b" in again.stderr()
        rounds = len(job.of("world.formed"))
        job.steps_on()
        assert "quarantined" in job.ftctl("status").stdout
        done = job.ftctl("admit", "b", "--why", "its memory was replaced", "--format", "json")
        told = json.loads(done.stdout)
        assert (done.returncode, told["outcome"]) == (0, "admitted") and "ftrun is started" in told["reason"]
        assert len(job.of("world.formed")) == rounds
        back = job.start(*flags, "--node-id=b")
        joined = job.wait("node.joined", kept_out.seq + 1, node="b")
        grown = job.wait("world.formed", joined.seq, nodes=2)
        job.stepped(grown.data.round, nodes=2)
        job.finish()
        assert (first.end(), back.end()) == (0, 0)


def test_a_loss_is_not_waited_for_if_the_others_can_go_on(tmp_path: Path) -> None:
    """With the default chain the nodes that are left train on at once: no window of time stands between the loss and
    the smaller world. One that comes back within the join window is taken in at once, too."""
    with ftrun(tmp_path, timing={"join_window_s": 120.0, "node_lease_s": 8.0}) as job:
        first = job.start("--nnodes=1:2", "--node-id=a")
        second = job.start("--nnodes=1:2", "--node-id=b")
        job.stepped(1, nodes=2)
        kill(second.pid)
        second.end()
        lost = job.wait("node.lost", node="b")
        shrunk = job.wait("incident.resolved", lost.seq, policy="shrink")
        job.stepped(2, nodes=1)
        assert not [e for e in job.of("deadline.expired") if lost.seq < e.seq < shrunk.seq]
        back = job.start("--nnodes=1:2", "--node-id=b")
        job.stepped(3, nodes=2)
        assert [e.data.verdict for e in job.of("policy.considered") if e.data.policy == "grow"] == ["take"]
        job.finish()
        assert (first.end(), back.end()) == (0, 0)


STAYS = """\
version: 1
chain:
- process_restart
- shrink: {node_faults: 2}
- stop
"""


def test_a_bad_node_without_which_the_job_could_not_go_on_stays_and_people_are_told(tmp_path: Path) -> None:
    """A job of fixed size keeps the node to which faults come back, for it would wait for ever without it; who sits at
    the terminal reads which node that is, why it stays and what would help. A spare takes its place at the next."""
    with ftrun(tmp_path, timing={"node_lease_s": 20.0}) as job:
        (job.cwd / "policy.yaml").write_text(STAYS)
        flags = ["--nnodes=2", "--policy", "policy.yaml"]
        runs = {node: job.start(*flags, f"--node-id={node}", f"--node-rank={rank}") for rank, node in enumerate("ab")}
        seen = job.stepped(1, nodes=2)
        for round_ in (2, 3):
            kill(job.pids(round_ - 1, "b")[0])
            seen = job.stepped(round_, nodes=2)
        assert not job.of("node.quarantined")
        wait_until(lambda: "b is at fault and stays" in runs["a"].stderr(), "the line about the bad node")
        assert "start ftrun on one more node as a spare" in runs["a"].stderr()
        runs["c"] = job.start(*flags, "--node-id=c")
        job.wait("node.joined", node="c")
        kill(job.pids(3, "b")[0])
        job.wait("node.quarantined", seen.seq, node="b")
        job.stepped(4, nodes=2)
        assert runs.pop("b").end() == 5
        job.finish()
        assert [run.end() for run in runs.values()] == [0, 0]


GROWS = """\
version: 1
chain:
- process_restart
- shrink
- grow: {every: 0s, steady: 0s, reserve: 0}
- stop
"""


def world(job: Ftrun, round_: int) -> list[str]:
    """The members of a round, in order of rank."""
    told = [event.data for event in job.of("world.members") if event.data.round == round_]
    return [member.node for data in told for member in data.members]


def test_a_job_shrinks_and_grows_by_its_sizes(tmp_path: Path) -> None:
    """Two or four nodes train, never three: three begin with two after the join window, and the third is a spare; it
    takes a lost node's place; with the fourth the job grows, right behind a checkpoint; without one, half are left."""
    with ftrun(tmp_path) as job:
        (job.cwd / "policy.yaml").write_text(GROWS)
        flags = ["--nnodes=2:4", "--node-sizes=2,4", "--join-window=3", "--policy", "policy.yaml"]
        runs = {node: job.start(*flags, f"--node-id=n-{node}") for node in (10, 2, 9)}
        job.stepped(1, nodes=2)
        begun = job.of("world.formed")[0]
        trained, [spare] = world(job, 1), {"n-2", "n-9", "n-10"} - set(world(job, 1))
        in_order = sorted(trained, key=lambda name: int(name[2:]))
        assert trained == in_order
        joined = [event.time for event in job.of("node.joined") if event.seq < begun.seq]
        assert begun.time - sorted(joined)[1] >= 2.9e9, "it waited for more"
        status = json.loads(job.ftctl("status", "--format", "json").stdout)
        assert {node["node"]: node["state"] for node in status["nodes"]} == dict.fromkeys(trained, "running") | {
            spare: "standby"
        }
        lost = runs.pop(int(trained[0][2:]))
        kill(lost.pid)
        lost.end()
        told = job.wait("node.lost", node=trained[0])
        job.stepped(2, nodes=2)
        assert world(job, 2) == [spare, trained[1]], "the spare has its place, nobody else has moved"
        assert job.of("workers.stepped", spare)[0].time - told.time < 30e9
        job.do(0, "from ftcore.worker import saved; saved(step, 'here')")
        committed = job.wait("checkpoint.committed")
        job.wait("job.progressed", committed.seq)  # so that the master knows of steps that no checkpoint holds
        runs |= {node: job.start(*flags, f"--node-id=n-{node}") for node in (10, 2, 9, 11) if node not in runs}
        job.wait("policy.considered", policy="grow", verdict="pass", at_commit=True)
        assert len(job.of("world.formed")) == 2
        job.do(0, "from ftcore.worker import saved; saved(step, 'here')")
        grown = job.wait("world.formed", nodes=4)
        before = [event for event in job.of("checkpoint.committed") if event.seq < grown.seq]
        assert len(before) == 2
        job.stepped(3, nodes=4)
        last = world(job, 3)
        gone_now = runs.pop(int(last[2][2:]))
        kill(gone_now.pid)
        gone_now.end()
        shrunk = job.wait("world.formed", grown.seq, nodes=2)
        assert [member for member in world(job, 4) if member in last] == world(job, 4)
        job.stepped(shrunk.data.round, nodes=2)
        job.finish()
        assert [run.end() for run in runs.values()] == [0, 0, 0]
