"""Data queues in real jobs that lose workers, a master and a node: each sample is used once."""

import json
import signal
from collections import Counter
from pathlib import Path

from harness import Ftrun, ftrun, kill, wait_until
from test_ftrun_checkpoints import kill_with_keeper

DIES = """
if step == {step} and not os.path.exists("died"):
    open("died", "w").close()
    os.kill(os.getpid(), 9)
"""
SPOILT = """
if step == {step} and not os.path.exists("spoilt"):
    open("spoilt", "w").close()
    report(loss=float("nan"))
time.sleep(0.03)  # the checkpoint before it is complete
"""
BACK = """
version: 1
chain:
- rollback_and_skip: {before: 3, skip: 0}
- process_restart
- stop
"""
HELD = """
while step > int(open("limit").read()):
    open(".held", "w").write(str(step - 1))
    os.replace(".held", "held")
    time.sleep(0.002)
"""


def used(where: Path) -> Counter[int]:
    """How often the living lineage has used each sample: of each step, what its last round used."""
    found: dict[int, dict[int, list[int]]] = {}
    for path in where.glob("used.*"):
        for line in path.read_text().splitlines():
            round_, step, *numbers = map(int, line.split())
            found.setdefault(step, {}).setdefault(round_, []).extend(numbers)
    return Counter(number for rounds in found.values() for number in rounds[max(rounds)])


def check(job: Ftrun, samples: int, epochs: int) -> None:
    """The script and the ledger agree: each sample was used once in each epoch."""
    assert used(job.cwd) == dict.fromkeys(range(samples), epochs)
    told = json.loads(job.ftctl("--job", job.job, "samples", "--format", "json").stdout)["queues"]["train"]
    assert [(each["used"], each["to_come"]) for each in told["epochs"]] == [(samples, 0)] * epochs
    assert not told["discrepancies"] and not told["unsure"], told


def until(job: Ftrun, step: int) -> None:
    """Let the ranks train until rank 0 waits behind a step."""
    job.drop("limit", str(step))
    wait_until(lambda: (job.cwd / "held").exists() and (job.cwd / "held").read_text() == str(step), f"step {step}")


def has_reported(job: Ftrun, node: str) -> bool:
    """Whether the readers of a node have reported steps."""
    return any(each.marks for event in job.of("queue.reported", node) for each in event.data.readers)


def test_a_killed_worker_and_a_killed_master(tmp_path: Path) -> None:
    """The next master gives out what is left, and the shards of the killed worker return where it was."""
    with ftrun(tmp_path) as job:
        job.always(0, HELD)
        job.always(1, DIES.format(step=14))
        job.drop("limit", "0")
        flags = ["--standalone", "--nproc-per-node=2", f"--checkpoints={tmp_path / 'saved'}"]
        run = job.start(*flags, script="shards.py", preload=False, args=("198", "5", "4", "2"))
        until(job, 8)
        job.stepped(1)
        kill(job.master(), signal.SIGKILL)
        job.drop("limit", "1000")
        job.wait("queue.returned", round=2)
        assert run.end() == 0, run.stderr()
        check(job, 198, 2)
        back = job.of("queue.returned")[0].data
        assert back.doing and back.offsets, "a shard was begun, and continues where it was"


def test_a_rollback(tmp_path: Path) -> None:
    """What was used after the step of the checkpoint returns, and is used again."""
    with ftrun(tmp_path) as job:
        job.always(0, SPOILT.format(step=19))
        job.drop("policy.yaml", BACK)
        flags = ["--nproc-per-node=2", f"--checkpoints={tmp_path / 'saved'}", "--policy", "policy.yaml"]
        run = job.start(*flags, script="shards.py", preload=False, args=("198", "5", "4", "2"))
        assert run.end() == 0, run.stderr()
        back = job.of("job.rolled_back")[0].data
        assert 0 < back.step <= 16
        assert [event.data for event in job.of("queue.returned") if event.data.round == 2]
        check(job, 198, 2)


def test_a_lost_node(tmp_path: Path) -> None:
    """What the node had not reported follows from its pace; the other one does the rest, with its own."""
    with ftrun(tmp_path, timing={"join_window_s": 120.0, "node_lease_s": 4.0}) as job:
        job.always(0, HELD)
        job.drop("limit", "0")
        runs = {
            node: job.start(
                "--nnodes=1:2", f"--node-id={node}", script="shards.py", preload=False, args=("400", "16", "4", "1")
            )
            for node in "ab"
        }
        until(job, 9)
        job.stepped(1, nodes=2)
        wait_until(lambda: has_reported(job, "b"), "the pace of the node that is lost")
        kill_with_keeper(job, "b")
        runs["b"].end()
        job.drop("limit", "1000")
        assert runs["a"].end() == 0, runs["a"].stderr()
        check(job, 400, 1)
