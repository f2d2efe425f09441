"""Registered state: it outlives workers, agents, keepers and logs; what is resumed equals an undisturbed run."""

import contextlib
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Ftrun, Run, ftrun, kill, wait_until
from test_ftrun_operator import ask

from ftcore.shm.staging import StagingSlot

STEPS = 60
TWO = ("--nproc-per-node", "2")
NODES = ("--local-nodes", "2", "--nproc-per-node", "1")


def start(job: Ftrun, *argv: str, layout: str = "ddp", until: int = STEPS, persist_every: int = 10) -> Run:
    """Start the script that registers its state, with a directory for checkpoints."""
    flags = argv or TWO
    if not any(flag.startswith("--checkpoints") for flag in flags):
        flags = (*flags, "--checkpoints", "saved")
    return job.start(*flags, script="registered.py", preload=False, args=(str(until), layout, str(persist_every)))


def weights(run: Run) -> set[str]:
    """Digests of the weights that the ranks print at their end."""
    return set(re.findall(r"ends with ([0-9a-f]{16})", run.stdout()))


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, set[str]]:
    """The layout, and the weights of a run of two ranks to which nothing happens."""
    with ftrun(tmp_path_factory.mktemp("undisturbed")) as job:
        run = start(job, layout=request.param)
        assert run.end() == 0
        (digest,) = weights(run)
        return request.param, {digest}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Ftrun]:
    with ftrun(tmp_path) as one:
        yield one


def keeper(job: Ftrun) -> int:
    """Process id of the only keeper."""
    (pid,) = job.processes("ftcore: keeper") or job.processes("ftcore.runtime.keeper")
    return pid


def hold_after(job: Ftrun, step: int) -> None:
    """Let rank 0 wait behind a step until ``go``, or until a later step is named; the others wait in a collective."""
    job.drop("limit", str(step))
    job.always(
        0, "while step > int(open('limit').read()):\n open('held', 'w').write(str(step - 1))\n time.sleep(0.002)"
    )


def at_step(job: Ftrun, step: int) -> None:
    """Wait until rank 0 waits behind a step."""
    job.stepped(1)
    held = job.cwd / "held"
    wait_until(lambda: held.exists() and held.read_text() == str(step), f"rank 0 to wait behind step {step}")


def kill_with_keeper(job: Ftrun, node: str) -> list[int]:
    """Kill a node's agent, and its keeper first: else the next agent of the node would take the memory over."""
    agent = job.agent(node)
    keepers = [pid for pid in job.processes("ftcore: keeper") if parent(pid) == agent]
    for pid in (*keepers, agent):
        kill(pid)
    return [*keepers, agent]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def holders(job: Ftrun, rank: int, step: int) -> list[int]:
    """The keepers that hold a rank's complete shard of a step."""
    return [pid for pid in job.processes("ftcore: keeper") if (rank, step) in shards(pid)]


def shards(keeper: int) -> set[tuple[int, int]]:
    """Rank and step of the complete shards that a keeper holds: its memory has no name, but is open for its user."""
    found = set()
    for entry in Path(f"/proc/{keeper}/fd").iterdir():
        with contextlib.suppress(OSError), entry.open("rb") as file:
            if "ftcore-staging" in str(entry.readlink()):
                index = (slot := StagingSlot(file.fileno(), writable=False)).index()
                slot.close()
                about = json.loads(index or b"{}")
                found |= {(about["rank"], about["step"])} if about else set()
    return found


def go(job: Ftrun) -> None:
    job.drop("limit", str(10**9))


def loaded(job: Ftrun) -> list[Any]:
    return [event.data for event in job.of("state.loaded")]


def test_a_killed_worker_costs_no_completed_step(undisturbed: tuple[str, set[str]], job: Ftrun) -> None:
    """The next round resumes from memory, and the weights equal those of an undisturbed run to the last bit.

    So they do if LOCAL_RANK is 0 on all ranks: each has memory of its own.
    """
    layout, expected = undisturbed
    hold_after(job, 20)
    flags = (*TWO, "--virtual-local-rank") if layout == "fsdp" else TWO
    run = start(job, *flags, layout=layout)
    at_step(job, 20)
    kill(job.pids(1)[1])
    go(job)
    job.stepped(2)
    assert run.end() == 0
    assert weights(run) == expected
    formed = job.of("world.formed")[-1].data.resume
    (resolved,) = job.of("incident.resolved")
    assert formed.source == "memory" and formed.step in (19, 20)
    assert resolved.data.steps_lost in (0, 1)
    assert loaded(job)[-1].source == "memory"


def test_a_killed_keeper_stops_no_training(job: Ftrun) -> None:
    """Its memory is lost; the next save starts another one, from whose memory a round resumes."""
    hold_after(job, 15)
    run = start(job, persist_every=0, until=3 * STEPS)
    at_step(job, 15)
    first = keeper(job)
    kill(first)
    job.drop("limit", "40")
    at_step(job, 40)
    wait_until(lambda: len(job.processes("ftcore: keeper")) == 1 and keeper(job) != first, "another keeper")
    assert len(job.of("world.formed")) == 1
    kill(job.pids(1)[0])
    go(job)
    job.stepped(2)
    assert job.of("world.formed")[-1].data.resume.step in (39, 40)
    assert run.end() == 0


def test_a_stopped_keeper_stops_no_training(job: Ftrun) -> None:
    """Workers go on without saving while it does not answer."""
    hold_after(job, 10)
    run = start(job, persist_every=0)
    at_step(job, 10)
    kill(keeper(job), signal.SIGSTOP)
    job.drop("limit", "45")
    at_step(job, 45)
    kill(keeper(job), signal.SIGCONT)
    go(job)
    assert run.end() == 0
    assert len(job.of("world.formed")) == 1 and not job.of("worker.failed")


def test_a_killed_agent_leaves_its_state_to_the_next_one(undisturbed: tuple[str, set[str]], job: Ftrun) -> None:
    """The keeper writes it, and the same command resumes from memory."""
    layout, expected = undisturbed
    hold_after(job, 20)
    first = start(job, layout=layout, persist_every=0)
    at_step(job, 20)
    survivor = keeper(job)
    first.signal(signal.SIGKILL)
    first.end()
    wait_until(lambda: list((job.cwd / "saved").glob("*/manifest.json")) != [], "the breakpoint save")
    second = start(job, layout=layout, persist_every=0)
    go(job)
    assert second.end() == 0
    assert weights(second) == expected
    resume = job.of("world.formed")[-1].data.resume
    assert resume.source == "memory" and resume.step in (19, 20)
    assert survivor not in job.processes(), "the keeper ends with the job"


def test_a_stopped_job_resumes_from_storage(undisturbed: tuple[str, set[str]], job: Ftrun) -> None:
    """The keeper writes the newest step before it ends, when no agent can report it; the next one finds it."""
    layout, expected = undisturbed
    hold_after(job, 25)
    first = start(job, layout=layout)
    at_step(job, 25)
    stopped = job.ftctl("--job", "job", "stop")
    assert stopped.returncode == 0, stopped
    assert first.end() == 5
    second = start(job, layout=layout)
    go(job)
    assert second.end() == 0
    assert weights(second) == expected
    assert loaded(job)[-1].source in ("storage", "replica") and loaded(job)[-1].step in (24, 25)
    assert job.of("world.formed")[-1].data.resume.step == loaded(job)[-1].step


def test_a_damaged_checkpoint_is_refused_for_an_older_one(job: Ftrun) -> None:
    """It is found before training starts from it, and the log names it."""
    first = start(job, until=30)
    assert first.end() == 0
    newest = max((job.cwd / "saved").glob("step-*"))
    (file,) = newest.glob("shard-*")
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    second = start(job, until=STEPS)
    assert second.end() == 0
    (found,) = [each for each in loaded(job) if each.step]
    assert found.step == 20 and newest.name in found.refused[0], found
    assert not job.of("worker.failed")


def test_storage_that_cannot_be_written_stops_no_training(job: Ftrun) -> None:
    """One alert; state in memory is as good as ever."""
    (job.cwd / "saved").write_text("a file, not a directory")
    hold_after(job, 25)
    run = start(job)
    at_step(job, 25)
    kill(job.pids(1)[1])
    go(job)
    job.stepped(2)
    assert run.end() == 0
    assert job.of("checkpoint.failed")
    assert len([event for event in job.of("alert.raised") if "was not written" in event.data.title]) == 1
    assert job.of("world.formed")[-1].data.resume.source == "memory"
    assert len(job.of("world.formed")) == 2


def test_a_lost_node_gets_the_state_from_another_one(job: Ftrun) -> None:
    """With DDP, its replacement receives the state over the network; nothing is read from storage."""
    hold_after(job, 20)
    run = start(job, *NODES, persist_every=0)
    at_step(job, 20)
    assert len(kill_with_keeper(job, "node1")) == 2
    go(job)
    job.stepped(2, nodes=2)
    assert run.end() == 0
    resume = job.of("world.formed")[-1].data.resume
    assert resume.source == "memory" and resume.step in (19, 20)
    second = [each for each in loaded(job) if each.round == 2]
    assert sorted(each.source for each in second) == ["memory", "replica"]
    assert len(weights(run)) == 1


def test_a_lost_node_gets_its_own_state_from_a_buddy(tmp_path: Path, job: Ftrun) -> None:
    """With FSDP no other rank has it: its replacement receives the copy, and the weights equal those without a loss."""
    three = ("--local-nodes", "3", "--nproc-per-node", "1")
    options: dict[str, Any] = {"layout": "fsdp", "until": 16, "persist_every": 0}
    hold_after(job, 10)
    run = start(job, *three, **options)
    at_step(job, 10)
    wait_until(lambda: all(len(holders(job, rank, 10)) == 2 for rank in range(3)), "copies of step 10")
    assert len(kill_with_keeper(job, "node1")) == 2
    go(job)
    job.stepped(2, nodes=3)
    assert run.end() == 0
    resume = job.of("world.formed")[-1].data.resume
    assert (resume.source, resume.step) == ("memory", 10)
    assert sorted(each.source for each in loaded(job) if each.round == 2) == ["memory", "memory", "replica"]
    assert [event.data.buddies for event in job.of("world.members")] == [((1,), (2,), (0,))] * 2
    (resolved,) = job.of("incident.resolved")
    assert resolved.data.steps_lost == 0
    with ftrun(tmp_path / "undisturbed") as other:
        expected = start(other, *three, **options)
        assert expected.end() == 0
    assert weights(run) == weights(expected)


def test_fewer_nodes_share_the_state_of_a_lost_one(job: Ftrun) -> None:
    """Each rank receives what overlaps its new part; there is no storage, and no step is lost."""
    job.drop("policy.yaml", "version: 1\nchain: [process_restart, shrink, stop]\n")
    hold_after(job, 10)
    flags = ("--nnodes=2:3", "--nproc-per-node=1", "--policy=policy.yaml")
    runs = {
        name: job.start(*flags, f"--node-id={name}", script="registered.py", preload=False, args=("16", "fsdp"))
        for name in "abc"
    }
    at_step(job, 10)
    wait_until(lambda: all(len(holders(job, rank, 10)) == 2 for rank in range(3)), "copies of step 10")
    lost = job.of("world.members")[-1].data.members[1].node
    kill_with_keeper(job, lost)
    go(job)
    job.stepped(2, nodes=2)
    runs.pop(lost).end()
    assert [run.end() for run in runs.values()] == [0, 0]
    resume = job.of("world.formed")[-1].data.resume
    assert (resume.source, resume.step) == ("memory", 10)
    assert [event.data.buddies for event in job.of("world.members")] == [((1,), (2,), (0,)), ((1,), (0,))]
    assert job.of("incident.resolved")[-1].data.steps_lost == 0
    assert len(set.union(*map(weights, runs.values()))) == 1


@pytest.mark.parametrize("layout", [pytest.param("ddp", marks=pytest.mark.long), "fsdp"])
def test_another_number_of_ranks_resumes(job: Ftrun, layout: str) -> None:
    """Saved by two ranks, loaded by three."""
    first = start(job, layout=layout, until=20)
    assert first.end() == 0
    second = start(job, "--nproc-per-node", "3", layout=layout, until=40)
    assert second.end() == 0
    assert [each.step for each in loaded(job)] == [0, 20]
    assert len(weights(second)) == 1


def test_a_checkpoint_on_request_is_on_storage_when_it_is_answered(job: Ftrun) -> None:
    """All ranks after the same step, without ending a process."""
    run = start(job, persist_every=0, until=10 * STEPS)
    job.stepped(1)
    code, answer = ask(job, "checkpoint")
    assert (code, answer["outcome"]) == (0, "done"), answer
    assert len(list((job.cwd / "saved").glob("*/manifest.json"))) == 1
    assert job.ftctl("--job", "job", "checkpoints", "verify").returncode == 0
    assert run.end() == 0
    assert len(job.of("world.formed")) == 1


def saved_by_survivors(job: Ftrun, step: int) -> tuple[int, ...]:
    """The ranks that wrote a dying checkpoint, by replica group."""
    job.wait("checkpoint.committed", step=step)
    commands = [e.data.command for e in job.of("action.ordered") if e.data.effect.startswith("persist_shards")]
    assert commands[-1].step == step
    saved = {e.data.shard.group: e.data.shard.rank for e in job.of("shard.persisted") if e.data.shard.step == step}
    assert [saved[group] for group in sorted(saved)] == list(commands[-1].ranks)
    return tuple(commands[-1].ranks)


def test_survivors_of_a_lost_node_save_one_shard_of_each_group(job: Ftrun) -> None:
    """Data parallel 8, optimizer shard 4: without rank 1 and its memory, 0, 5, 2 and 3 save the last step, and the
    same command resumes behind it. So it is if rank 0 dies with the master. Ranks 0 and 1 have nodes of their own."""
    (job.cwd / "policy.yaml").write_text("version: 1\njob: {replicas: {data_parallel: 8, optimizer_shard: 4}}\n")

    def begin(rank: int) -> Run:
        width = (1, 1, 6)[rank]
        flags = (f"--node-rank={rank}", f"--node-id=node{rank}", f"--nproc-per-node={width}", "--policy=policy.yaml")
        return start(job, "--nnodes=3", *flags, "--checkpoints=saved", layout="slices:4", until=10, persist_every=0)

    hold_after(job, 5)
    runs = [begin(rank) for rank in range(3)]
    at_step(job, 5)
    status = job.ftctl("status", "--job", "job").stdout
    assert "[0,4] [1,5] [2,6] [3,7], as registered by the script" in status, status
    for number, (lost, step, savers) in enumerate([("node1", 5, (0, 5, 2, 3)), ("node0", 8, (4, 1, 2, 3))]):
        at_step(job, step)
        wait_until(lambda step=step: all(job.step(rank) == step for rank in range(8)), f"all ranks to end step {step}")
        if lost == "node0":
            kill(job.master())
        assert len(kill_with_keeper(job, lost)) == 2
        assert saved_by_survivors(job, step) == savers
        job.drop("limit", "8" if lost == "node1" else "100")
        runs.append(begin(int(lost[-1])))
        job.stepped(number + 2, nodes=3)
        assert job.of("world.formed")[-1].data.resume.step == step
    assert [run.end() for run in runs] == [-9, -9, 0, 0, 0]
    assert len(set().union(*map(weights, runs))) == 1
    assert not [e for e in job.of("alert.raised") if "replicas" in e.data.title]
    assert job.ftctl("--job", "job", "checkpoints", "verify").returncode == 0
