"""Unmodified torchrun over the event log: ``--rdzv-backend ftcore``, with real torchruns as nodes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from etcd_cluster import Cluster
from harness import JOBS, Ftrun, Run, checked, gone, is_dead, kill, wait_until
from packages import install

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "ftcore")
ROOT = Path(__file__).parents[3]
ENTRY_POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]

AWAY_S = 150.0
"""Longer than ``orphan_grace_s``, the longest of the time constants that concern workers."""

POLICY = (
    "version: 1\noptions:\n  grow: {every: 0, steady: 0, reserve: 0}\n  process_restart: {grace: 2s, patience: 2s}\n"
)
"""Waits hardly for a lost node, and takes one in as soon as it comes back."""

ERROR = (
    "import json\n"
    "with open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w') as file:\n"
    "    json.dump({'message': {'message': 'ValueError: on purpose', 'extraInfo': {'timestamp': '1'}}}, file)\n"
    "sys.exit(1)\n"
)


class Torchrun(Ftrun):
    """A job of torchruns; each is a node, called by its ``node_id``."""

    def __init__(self, root: Path, store: str = "") -> None:
        super().__init__(root, store, timing={"settle_s": 2.0})
        site = root / "site"
        if not site.exists():
            install(site, "ftcore-entry-points", "0", {}, ENTRY_POINTS)
        self.env |= {"PYTHONPATH": f"{site}:{ROOT}", "OMP_NUM_THREADS": "1"}
        self.nodes: dict[str, Run] = {}

    def node(
        self, name: str, *flags: str, script: str = "count.py", conf: str = "", args: tuple[str, ...] = (), **popen: Any
    ) -> Run:
        conf = f"node_id={name},join_window=60{conf}"
        endpoint = self.store.removeprefix("etcd://")
        command = [*TORCHRUN, "--rdzv-endpoint", endpoint, "--rdzv-id", self.job, "--rdzv-conf", conf]
        run = Run(subprocess.Popen([*command, *flags, str(JOBS / script), *args], **self._popen(popen)))
        self.nodes[name] = run
        self.runs.append(run)
        return run

    def power_off(self, name: str, round_: int) -> None:
        """Kill all of a node at once: torchrun, its sidecar, the workers, a master that it put up."""
        run, agent = self.nodes[name], self.agent(name)
        masters = [pid for pid in self.processes("ftcore.cli.master") if parent(pid) == agent]
        for pid in (run.pid, agent, *self.pids(round_, name), *masters):
            kill(pid, signal.SIGKILL)
        self.forget(name)

    def workers(self, name: str) -> list[int]:
        """The workers that live, as the kernel knows them: children of the node's torchrun that have a rank."""
        found = [pid for pid in self.processes(str(JOBS)) if parent(pid) == self.nodes[name].pid]
        return [pid for pid in found if b"\0LOCAL_RANK=" in Path(f"/proc/{pid}/environ").read_bytes()]

    def forget(self, name: str) -> None:
        """A torchrun that was killed says nothing of its end."""
        self.nodes[name].end()
        self.runs.remove(self.nodes[name])


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextlib.contextmanager
def torchrun(root: Path, store: str = "") -> Iterator[Torchrun]:
    with checked(Torchrun(root, store)) as job:
        yield job


@pytest.mark.timeout(300)
def test_workers_and_nodes_are_lost_and_the_job_goes_on(tmp_path: Path) -> None:
    """Workers that die, with and without an error file, cost a round; so does a whole node, even the one that serves
    the store and leads; when it comes back it has its old place again. All of it stands in the log."""
    flags = ("--nnodes", "1:2", "--nproc-per-node", "2", "--max-restarts", "20")
    with torchrun(tmp_path) as job:
        (job.cwd / "policy.yaml").write_text(POLICY)
        conf = ",policy=policy.yaml"
        job.node("a", *flags, conf=f"{conf},node_rank=0")
        job.wait("node.joined", node="a")
        job.node("b", *flags, conf=conf)
        started = job.wait("round.started", round=1)
        assert job.wait("world.formed", round=1).data.size == 4

        dead = job.pids(1, "b")[1]
        kill(dead)
        failed = job.wait("worker.failed", started.seq)
        assert (failed.data.node, failed.data.rank, failed.data.exitcode) == ("b", 3, -9)
        started = job.wait("round.started", started.seq)
        assert started.data.round == 2 and not gone(job.pids(1), 0.0)
        job.steps_on(0)

        job.do(0, ERROR)
        failed = job.wait("worker.failed", started.seq)
        assert (failed.data.node, failed.data.rank, failed.data.exitcode) == ("a", 0, 1)
        assert failed.data.error.message == "ValueError: on purpose"
        assert Path(failed.data.log_dir).name == "0"
        started = job.wait("round.started", started.seq)
        job.steps_on(3)

        host = job.wait("store.opened", round=started.data.round).data.node
        other = "b" if host == "a" else "a"
        place = job.of("world.members")[-1].data.members
        job.power_off(host, started.data.round)
        if job.master() not in job.processes("ftcore.cli.master"):
            job.wait("master.elected", started.seq)
        smaller = job.wait("world.formed", started.seq, size=2)
        assert smaller.data.gone == (host,)
        survivor = job.nodes[other].stderr
        wait_until(
            lambda: "ftcore: round " in survivor().partition(f"{host} ")[2], "the story on the survivor's terminal"
        )
        started = job.wait("round.started", smaller.seq)
        job.steps_on(0)

        job.node(host, *flags, conf=conf)
        larger = job.wait("world.formed", started.seq, size=4)
        assert [m.node for m in job.of("world.members")[-1].data.members] == [m.node for m in place]
        job.wait("round.started", larger.seq)
        job.finish()
        assert [run.end() for run in job.nodes.values()] == [0, 0]
        assert job.of("job.finished")[-1].data.outcome == "succeeded"
        assert other in [event.data.node for event in job.of("workers.finished")]
        listed = job.ftctl("events", "--format", "json", "--job", job.job).stdout.splitlines()
        assert json.loads(listed[-1])["seq"] == len(listed)


@pytest.mark.timeout(300)
@pytest.mark.etcd
def test_etcd_and_a_torchrun_killed_inside_a_collective(tmp_path: Path, own_etcd: Cluster) -> None:
    """Without etcd, training goes on. Of a torchrun that is killed no worker trains on; its successor takes its place.
    Then that one gives up: the job has failed, and ends with its code on every node."""
    flags = ("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts")
    with torchrun(tmp_path, own_etcd.url()) as job:
        for name in "ab":
            job.node(name, *flags, "20", script="ddp.py")
        started = job.wait("round.started", round=1)
        job.steps_on(0)

        own_etcd.members[0].kill()
        job.steps_on(0, by=100)
        own_etcd.start()
        job.steps_on(0)

        orphans = job.pids(1, "b")
        kill(job.nodes["b"].pid)
        assert not gone(orphans)
        wait_until(
            lambda: job.of("node.left", "b") or job.of("node.lost", "b"), "the end of b, in its words or by silence"
        )
        job.forget("b")
        job.node("b", *flags, "0", script="ddp.py")
        started = job.wait("round.started", started.seq)
        aim = job.step(0) + 3
        wait_until(lambda: job.step(0) >= aim, "training to go on")

        job.do(next(m.base_rank for m in job.of("world.members")[-1].data.members if m.node == "b"), "sys.exit(7)")
        finished = job.wait("job.finished", started.seq).data
        assert (finished.outcome, finished.exit_code) == ("failed", 1)
        assert "b gave up" in finished.reason and "code 7" in finished.reason
        assert [run.end() for run in job.nodes.values()] == [1, 1]
        assert "ftctl" in job.nodes["a"].stderr() and "SystemExit" not in job.nodes["a"].stderr()


PLAIN = """
import os, pathlib, time
at = pathlib.Path(f"step.{os.environ['RANK']}")
step = 0
while not pathlib.Path("finish").exists():
    time.sleep(0.02)
    step += 1
    new = at.with_name(f"new.{at.name}")
    new.write_text(str(step))
    new.replace(at)
"""
"""A script that tells nobody of its steps."""


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.etcd
def test_etcd_is_away_for_minutes(tmp_path: Path, own_etcd: Cluster) -> None:
    """Longer than every time constant, hanging and then killed: no worker is touched, of a script that reports its
    steps as of one that does not. Once etcd is back, a worker that dies is restarted; both jobs end well.
    """
    (tmp_path / "plain.py").write_text(PLAIN)
    roots = [tmp_path / name for name in ("tells", "plain")]
    with contextlib.ExitStack() as stack:
        for root in roots:
            root.mkdir()
        jobs = [stack.enter_context(torchrun(root, own_etcd.url(root.name))) for root in roots]
        for job, script in zip(jobs, ("count.py", str(tmp_path / "plain.py")), strict=True):
            for name in "ab":
                job.node(name, "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "5", script=script)
        rounds = [job.wait("round.started", round=1) for job in jobs]
        member = own_etcd.members[0]
        for go, come in ((member.freeze, member.thaw), (member.kill, member.start)):
            go()
            until = time.monotonic() + AWAY_S
            while time.monotonic() < until:
                for job, started in zip(jobs, rounds, strict=True):
                    job.steps_on(0)
                    job.steps_on(1)
                    assert not any(map(is_dead, job.pids(started.data.round))), [run.stderr() for run in job.runs]
                time.sleep(1.0)
            come()
            for job, started in zip(jobs, rounds, strict=True):
                kill(job.pids(started.data.round, "b")[0])
            rounds = [job.wait("round.started", at.seq) for job, at in zip(jobs, rounds, strict=True)]
        for job in jobs:
            job.finish()
            assert [run.end() for run in job.nodes.values()] == [0, 0]


@pytest.mark.timeout(300)
def test_the_sidecar_is_killed_and_a_spare_waits(tmp_path: Path) -> None:
    """Torchrun gets another sidecar when that one dies; a torchrun too many stands by, and ends well when
    the job does. What cannot be used is told in one message."""
    flags = ("--nnodes", "1", "--max-restarts", "5")
    with torchrun(tmp_path) as job:
        job.node("a", *flags)
        started = job.wait("round.started", round=1)
        job.node("spare", *flags, conf=",timeout=1")
        wrong = job.node("wrong", *flags, conf=",policy=nowhere.yaml")
        job.wait("node.joined", node="spare")
        os.kill(job.agent("a"), signal.SIGKILL)
        started = job.wait("round.started", started.seq)
        job.steps_on(0)
        job.finish()
        assert [run.end() for run in job.nodes.values()] == [0, 0, 2]
        assert "cannot read nowhere.yaml" in wrong.stderr() and "Traceback" not in wrong.stderr()


@pytest.mark.timeout(300)
@pytest.mark.etcd
def test_a_torchrun_killed_before_its_first_look_at_its_workers(tmp_path: Path, own_etcd: Cluster) -> None:
    """Its workers are found and killed before the node leaves; the node is lost, and the other goes on without it."""
    flags = ("--nnodes", "1:2", "--nproc-per-node", "2", "--max-restarts", "20")
    with torchrun(tmp_path, own_etcd.url()) as job:
        job.node("a", *flags)
        job.wait("node.joined", node="a")
        job.node("b", *flags, "--monitor-interval", "30")
        formed = job.wait("world.formed", round=1, size=4)
        wait_until(lambda: len(job.workers("b")) == 2, "the workers of b")
        orphans = job.workers("b")
        job.nodes["b"].signal(signal.SIGKILL)
        left = job.wait("node.left", formed.seq, node="b")
        assert not gone(orphans, 0.0)
        job.forget("b")
        smaller = job.wait("world.formed", left.seq, size=2)
        assert (smaller.time - left.time) / 1e9 < job.of("job.submitted")[0].data.spec.timing.join_window_s
        job.wait("round.started", smaller.seq)
        opened = job.of("incident.opened")[0].data
        assert (opened.fault.cls, opened.fault.nodes) == ("node-lost", ("b",))
        assert not job.of("workers.unstartable")
        assert not job.of("workers.stopped", "b")
        job.finish()
        assert job.nodes["a"].end() == 0


@pytest.mark.timeout(300)
@pytest.mark.etcd
def test_one_job_name_in_another_store(tmp_path: Path, own_etcd: Cluster) -> None:
    """What a torchrun could not tell before it was killed is not told to the log of the same name in another store."""
    member, flags = own_etcd.members[0], ("--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", "5")
    with torchrun(tmp_path, own_etcd.url("one")) as job:
        job.node("a", *flags)
        job.wait("round.started", round=1)
        member.freeze()
        kill(job.pids(1)[0])
        told = lambda: [path for path in job.home.rglob("*.outbox") if b"worker.failed" in path.read_bytes()]  # noqa: E731
        wait_until(told, "a fact that no master has taken")
        job.power_off("a", 1)
        member.thaw()
        first = job.of("master.elected")[0].data.log_id
        lives = {event.data.incarnation for event in job.of("node.joined")}
    with torchrun(tmp_path, own_etcd.url("two")) as job:
        job.node("a", *flags)
        job.wait("round.started", round=1)
        job.steps_on(0)
        job.finish()
        assert job.nodes["a"].end() == 0
        assert told()
        assert job.of("master.elected")[0].data.log_id != first
        assert not lives & {event.id.incarnation for event in job.events.read()}
        assert not {"worker.failed", "incident.opened"} & {event.type for event in job.events.read()}
