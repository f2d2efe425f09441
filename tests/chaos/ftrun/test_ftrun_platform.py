"""The local platform: nodes are replaced, places wait for machines, and nothing is launched twice."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import packages
import pytest
from harness import JOBS, Ftrun, ftrun, kill, wait_until

from ftcore.commands import DeleteNodes, ReplaceNodes

CHAIN = """
version: 1
chain:
  - pod_replacement
  - process_restart
  - shrink
  - grow: {every: 0s, steady: 0s}
  - evict_straggler: {slower: 1.5}
  - stop
"""

SLOW = """
import os, pathlib, sys, time
if "--local-life" in sys.orig_argv and sys.orig_argv[sys.orig_argv.index("--local-life") + 1] == "1":
    pathlib.Path(os.environ["WAITS"]).touch()
    while not os.path.exists(os.environ["WAIT_FOR"]):
        time.sleep(0.02)
"""
"""Put into every process by its path: the agent of a replacement starts when it is told to."""


ACME = """
import asyncio, os, subprocess, sys
from pathlib import Path
from ftcore import CapacityChanged, PlatformAdapter
from ftcore.errors import UsageError

class Acme:
    def __init__(self, url, job):
        self.root = Path(url.partition(":")[2])

    async def capacity(self):
        return None

    async def launch(self, request):
        name = request.effect.replace("/", "-")
        if not (self.root / name).exists():
            (self.root / name).write_text(request.replaces.node)
            argv = [sys.executable, "-m", "ftcore.cli.ftrun", "--node-id", name, *request.argv[1:]]
            subprocess.Popen(argv, start_new_session=True)

    async def delete(self, place, grace_s):
        pass

    async def cordon(self, place, reason):
        pass

    async def watch(self):
        yield CapacityChanged(free=None)
        await asyncio.Event().wait()

    async def close(self):
        pass

def check(url):
    if not Path(url.partition(":")[2]).is_dir():
        raise UsageError(f"{url}: expected a folder")

ADAPTER = PlatformAdapter(open=Acme, check=check)
"""
"""A platform of a package that knows nothing of the job: it runs the command line that it is given."""


def policy(job: Ftrun) -> str:
    path = job.cwd / "policy.yaml"
    path.write_text(CHAIN)
    return str(path)


def orders(job: Ftrun) -> list[tuple[str, ...]]:
    """Who was ordered from the platform to be replaced, in order."""
    found = job.of("action.ordered")
    return [event.data.command.nodes for event in found if isinstance(event.data.command, ReplaceNodes)]


def results(said: str) -> set[tuple[int, str]]:
    """The steps at which ranks of ``ddp.py`` ended, and what they had come to."""
    return {(int(step), end) for step, end in re.findall(r"ends at step (\d+) with (\S+)", said)}


def undisturbed(steps: int, cwd: Path) -> str:
    """What ``ddp.py`` says where nothing happens: all ranks have the same data, so one rank comes to the same."""
    cwd.mkdir()
    env = os.environ | {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    argv = [sys.executable, str(JOBS / "ddp.py"), str(steps)]
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=True).stdout


@pytest.mark.timeout(400)
def test_a_replaced_node_leaves_no_trace_in_the_result(tmp_path: Path) -> None:
    """Killed, then evicted: others come in its place, and the model is that of a job to which nothing happened."""
    with ftrun(tmp_path) as job:
        run = job.start("--local-nodes", "2", script="ddp.py", preload=False)
        job.stepped(1, nodes=2)
        kill(job.agent("node1"))
        lost = job.wait("node.lost", node="node1")
        assert "killed by SIGKILL" in lost.data.reason, "the platform tells it, before its lease does"
        job.wait("incident.resolved", lost.seq, policy="pod_replacement")
        told = job.ftctl("evict", "node0", "--why", "a test", "--job", job.job)
        assert told.returncode == 0 and "pod_replacement takes it" in told.stderr, told.stderr
        job.stepped(3, nodes=2)
        assert orders(job)[-1] == ("node0",)
        (formed,) = [event for event in job.of("world.members") if event.data.round == 3]
        members = [(member.node, member.ordinal, member.base_rank) for member in formed.data.members]
        assert members == [("node0.1", 0, 0), ("node1", 1, 1)]
        job.finish()
        assert run.end() == 0
        (result,) = results(run.stdout())
        assert results(undisturbed(result[0], tmp_path / "undisturbed")) == {result}


@pytest.mark.timeout(400)
def test_a_packages_platform_launches_by_the_command_line_that_it_is_given(tmp_path: Path) -> None:
    """The lost node had flags of its own; what comes in its place was started without them, and trains."""
    entries = {"ftcore.platforms": {"acme": "acme_platform:ADAPTER"}}
    site = packages.install(tmp_path / "site", "acme", "1.0", {"acme_platform.py": ACME}, entries)
    with ftrun(tmp_path) as job:
        job.env["PYTHONPATH"] = f"{site}:{job.env.get('PYTHONPATH', '')}"
        wrong = job.start("--nnodes", "2", "--platform", "acme:/nowhere")
        assert wrong.end() == 2 and "acme:/nowhere: expected a folder" in wrong.stderr()
        flags = ["--nnodes", "2", "--platform", f"acme:{tmp_path}", "--policy", policy(job)]
        run = job.start("--node-id", "a", "--node_rank=0", *flags)
        lost = job.start("--node-id", "b", "--node-rank", "1", *flags)
        job.stepped(1, nodes=2)
        kill(lost.process.pid)
        job.wait("incident.resolved", policy="pod_replacement")
        job.stepped(2, nodes=2)
        (launched,) = tmp_path.glob("job-replace_nodes.*")
        assert launched.read_text() == "b" and job.of("node.joined")[-1].data.node == launched.name
        (formed,) = [event for event in job.of("world.members") if event.data.round == 2]
        assert [(member.node, member.ordinal) for member in formed.data.members] == [("a", 0), (launched.name, 1)]
        job.finish()
        assert run.end() == 0


def starts_late(job: Ftrun, root: Path) -> tuple[Path, Path]:
    """Have agents of replacements start when a file is there; returns that file, and one that says that one waits."""
    slow, go, waits = root / "slow", root / "go", root / "waits"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(SLOW)
    job.env |= {"PYTHONPATH": str(slow), "WAIT_FOR": str(go), "WAITS": str(waits)}
    return go, waits


@pytest.mark.timeout(400)
def test_an_evicted_node_trains_until_its_replacement_is_ready(tmp_path: Path) -> None:
    """Nothing is stopped while another machine is launched; then the outage is that of a restart, without a launch."""
    with ftrun(tmp_path) as job:
        go, waits = starts_late(job, tmp_path)
        run = job.start("--local-nodes", "2", "--policy", policy(job))
        job.stepped(1, nodes=2)
        assert job.ftctl("evict", "node1", "--no-wait", "--job", job.job).returncode == 0
        deferred = job.wait("departure.deferred", nodes=("node1",))
        wait_until(waits.exists, "the replacement's agent to start")
        job.steps_on(rank=0)
        job.steps_on(rank=1)
        status = job.ftctl("status", "--job", job.job).stdout
        assert "node1 leaves once its replacement is ready; training goes on" in " ".join(status.split())
        again = job.ftctl("drain", "node1", "--job", job.job)
        assert again.returncode == 0 and "leaves once its replacement is ready" in again.stderr, again.stderr
        go.touch()
        begun = job.wait("departure.begun", deferred.seq, ready=("node1.1",))
        resolved = job.wait("incident.resolved", begun.seq, policy="pod_replacement")
        events = {event.seq: event for event in job.events.read()}
        trained = [events[seq].type for seq in range(deferred.seq, begun.seq)]
        assert trained.count("node.joined") == trained.count("node.warmed") == 1, "joined and warm, then the stop"
        assert not {"workers.stopped", "worker.failed", "round.planned"} & {*trained}
        outage = [events[seq] for seq in range(begun.seq, resolved.seq)]
        assert not [event for event in outage if event.type in ("node.joined", "node.warmed", "health.checked")]
        assert [event.type for event in outage].count("workers.stopped") == 2
        assert orders(job) == [("node1",)], "launched once"
        [ended] = [e for e in job.of("action.ordered") if isinstance(e.data.command, DeleteNodes)]
        assert begun.seq < ended.seq < resolved.seq and ended.data.command.nodes == ("node1",)
        assert "node1 leaves once its replacement is ready; training goes on" in run.stderr()
        told = job.ftctl("explain", "--job", job.job).stdout
        assert "node1 leaves now: node1.1 is ready" in told and "wait" in told, told
        job.finish()
        assert run.end() == 0


@pytest.mark.timeout(400)
def test_a_node_that_dies_before_its_replacement_is_ready(tmp_path: Path) -> None:
    """The recovery begins at once, and waits for the machine that was launched already; then the wish is fulfilled."""
    with ftrun(tmp_path) as job:
        go, waits = starts_late(job, tmp_path)
        run = job.start("--local-nodes", "2", "--policy", policy(job))
        job.stepped(1, nodes=2)
        assert job.ftctl("evict", "node1", "--no-wait", "--job", job.job).returncode == 0
        wait_until(waits.exists, "the replacement's agent to start")
        kill(job.agent("node1"))
        lost = job.wait("node.lost", node="node1")
        job.wait("workers.stopped", lost.seq, node="node0")
        go.touch()
        recovered = job.wait("incident.resolved", lost.seq, policy="pod_replacement")
        job.wait("incident.resolved", recovered.seq, outcome="released")
        job.stepped(2, nodes=2)
        assert orders(job) == [("node1",)], "launched once"
        assert [event.data.node for event in job.of("node.quarantined")] == ["node1"]
        job.finish()
        assert run.end() == 0


@pytest.mark.timeout(400)
def test_without_a_machine_the_job_shrinks_and_grows_back(tmp_path: Path) -> None:
    """No machine: fewer nodes train; one is repaired: its place is filled, and the job grows to its size again."""
    with ftrun(tmp_path) as job:
        flags = ["--local-nodes", "2", "--nnodes", "1:2", "--platform", "local:?capacity=0&repair=15s"]
        run = job.start(*flags, "--policy", policy(job))
        job.stepped(1, nodes=2)
        kill(job.agent("node1"))
        shrunk = job.wait("incident.resolved", policy="shrink")
        (formed,) = [event for event in job.of("world.formed") if event.data.round == 2]
        assert formed.data.nodes == 1
        again = job.wait("node.joined", shrunk.seq, node="node1")
        grown = job.wait("incident.resolved", again.seq, policy="grow")
        assert job.wait("world.formed", again.seq).data.nodes == 2
        job.wait("ability.declared", abilities=())
        job.stepped(3, nodes=2)
        assert grown.seq > shrunk.seq
        job.finish()
        assert run.end() == 0


@pytest.mark.timeout(400)
def test_a_replacement_that_comes_after_the_end_begins_nothing(tmp_path: Path) -> None:
    """It was launched for a run that ends before its agent is up: it leaves, and so does ``ftrun``."""
    with ftrun(tmp_path) as job:
        go, waits = starts_late(job, tmp_path)
        run = job.start("--local-nodes", "2", "--nnodes", "1:2", "--policy", policy(job))
        job.stepped(1, nodes=2)
        assert job.ftctl("evict", "node1", "--no-wait", "--job", job.job).returncode == 0
        wait_until(waits.exists, "the replacement's agent to start")
        run.signal(signal.SIGTERM)
        finished = job.wait("job.finished")
        job.wait("node.left", finished.seq, node="node0")
        go.touch()
        assert run.end() == 5
        assert len(job.of("job.submitted")) == 1
        assert not [event for event in job.of("node.joined") if event.data.node == "node1.1"]


@pytest.mark.timeout(400)
def test_a_new_master_launches_nothing_twice(tmp_path: Path) -> None:
    """The master dies between order and result, then with its own node: its successors order each launch once."""
    with ftrun(tmp_path) as job:
        run = job.start("--local-nodes", "3", "--platform", "local:?delay=2s&fill=no", "--policy", policy(job))
        stepped = job.stepped(1, nodes=3)
        assert job.ftctl("evict", "node2", "--no-wait", "--job", job.job).returncode == 0
        wait_until(lambda: orders(job), "the order")
        kill(job.master())
        elected = job.wait("master.elected", stepped.seq)
        job.wait("node.joined", node="node2.1", ordinal=2)
        job.wait("incident.resolved", elected.seq, policy="pod_replacement")
        between = job.wait("workers.stepped", elected.seq)
        for pid in (job.master(), job.agent("node0")):
            kill(pid)
        again = job.wait("node.joined", between.seq, node="node0", ordinal=0)
        job.wait("incident.resolved", again.seq, policy="pod_replacement")
        job.stepped(3, nodes=3)
        assert orders(job) == [("node2",), ("node0",)]
        joined = [event.data.node for event in job.of("node.joined") if event.seq > stepped.seq]
        assert joined == ["node2.1", "node0"], "each place was filled once"
        job.finish()
        assert run.end() == 0


@pytest.mark.timeout(400)
def test_a_preempted_node_leaves_and_comes_back(tmp_path: Path) -> None:
    """The platform warns, the node leaves within its grace with its workers, and another machine takes its place."""
    with ftrun(tmp_path) as job:
        job.on_term(1, "time.sleep(12); (HERE / 'saved').write_text(str(step)); sys.exit(0)")
        flags = ["--local-nodes", "2", "--leave-within", "40s", "--platform", "local:?preempt=node1@5s&grace=60s"]
        run = job.start(*flags)
        first = job.stepped(1, nodes=2)
        job.wait("incident.opened", first.seq, kind="warning")
        (warned,) = job.of("fault.observed", "node1")
        assert warned.data.kind == "preemption-notice" and warned.data.values == {"within_s": 60.0}
        left = job.wait("node.left", warned.seq, node="node1")
        assert (job.cwd / "saved").exists(), "its worker had more time to save than a worker has otherwise"
        again = job.wait("node.joined", left.seq, ordinal=1)  # under another name, if the old process is still there
        job.wait("incident.resolved", again.seq)
        job.steps_on(rank=1)
        job.finish()
        assert run.end() == 0


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_slow_rank_of_a_pipeline_is_named_among_its_stage(tmp_path: Path) -> None:
    """The second stage works twice as long, and waits are everywhere: the slow rank of the first one is named."""
    with ftrun(tmp_path, timing={"pace_window_s": 0.6}) as job:
        job.always(2, "time.sleep(0.01)")  # in each of two backward passes of 10 ms
        run = job.start("--local-nodes", "2", "--nproc-per-node", "2", script="stages.py")
        job.stepped(1, nodes=2)  # four processes import torch's pipelines: on a busy machine that alone takes a minute
        named = job.wait("fault.observed", kind="straggler", rank=2)
        assert (named.data.node, named.data.phase) == ("node1", "backward")
        assert named.data.values["own"] > 1.2 * named.data.values["own_usual"]
        job.finish()
        assert run.end() == 0


@pytest.mark.timeout(400)
def test_a_slow_node_is_named_and_evicted(tmp_path: Path) -> None:
    """Its rank sleeps outside of collectives: a step takes all ranks as long, and yet it is told whose fault it is."""
    with ftrun(tmp_path, timing={"pace_window_s": 0.6}) as job:
        job.always(1, "time.sleep(0.05)")  # of a step that takes some 15 ms otherwise
        run = job.start("--local-nodes", "2", "--policy", policy(job), script="slow.py", preload=False)
        named = job.wait("fault.observed", kind="straggler")
        assert (named.data.node, named.data.rank, named.data.phase) == ("node1", 1, "forward")
        assert named.data.values["value"] > 1.5 * named.data.values["usual"]
        took = job.wait("policy.considered", named.seq, policy="evict_straggler", verdict="take")
        (job.cwd / "always.1").unlink()
        job.wait("node.joined", took.seq, node="node1.1")
        job.wait("incident.resolved", took.seq, policy="evict_straggler")
        assert orders(job) == [("node1",)]
        job.finish()
        assert run.end() == 0
