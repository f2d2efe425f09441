"""Nodes that join and leave a job whose script registered its state: no completed step is computed again."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import Ftrun, Run, ftrun, kill
from test_ftrun_checkpoints import at_step, go, hold_after, loaded, weights
from test_ftrun_operator import ask

POLICY = """
version: 1
job: {checkpoints: {copies: 0}}
chain:
- dying_checkpoint
- process_restart
- shrink
- grow: {every: 0s, steady: 0s}
- stop
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Ftrun]:
    with ftrun(tmp_path) as one:
        one.drop("policy.yaml", POLICY)
        hold_after(one, 10)
        yield one


def start(job: Ftrun, layout: str, *argv: str) -> Run:
    flags = ("--nnodes=2:3", "--join-window=1", "--policy", "policy.yaml", "--checkpoints", "saved", *argv)
    return job.start(*flags, script="registered.py", preload=False, args=("40", layout, "0"))


def check_no_step_is_lost(job: Ftrun, nodes: int) -> None:
    """The workers were stopped at one boundary, and the next round begins with the step after it."""
    job.stepped(2, nodes=nodes)
    (saved,) = [e.data for e in job.of("action.ordered") if e.data.effect.startswith("save_checkpoint")]
    assert saved.command.hold
    stopped = {e.data.step for e in job.of("order.obeyed") if e.data.effect == saved.effect}
    (formed,) = [e.data for e in job.of("world.formed") if e.data.round == 2]
    assert stopped == {formed.resume.step} and formed.nodes == nodes
    assert {e.data.step for e in job.of("workers.stepped") if e.data.round == 2} == {formed.resume.step + 1}
    assert {each.step for each in loaded(job) if each.round == 2} == {formed.resume.step}
    assert not job.of("worker.failed")


@pytest.mark.parametrize("layout", [pytest.param("ddp", marks=pytest.mark.long), "fsdp"])
def test_a_job_grows_at_a_step_boundary(job: Ftrun, layout: str) -> None:
    """From 2 to 3 nodes; the state comes from memory, also if no node holds all of it."""
    runs = [start(job, layout, f"--node-id={node}") for node in "ab"]
    at_step(job, 10)
    runs.append(start(job, layout, "--node-id=c"))
    job.wait("order.obeyed", boundary=11)
    go(job)
    assert [run.end() for run in runs] == [0, 0, 0]
    check_no_step_is_lost(job, 3)
    assert job.of("world.formed")[-1].data.resume.source == "memory"
    assert not [e for e in job.of("checkpoint.committed") if e.data.step != 40]
    assert len(set.union(*map(weights, runs))) == 1


@pytest.mark.parametrize("layout", ["ddp", pytest.param("fsdp", marks=pytest.mark.long)])
def test_a_node_is_drained_at_a_step_boundary(job: Ftrun, layout: str) -> None:
    """From 3 to 2 nodes; what only the node that leaves holds is on storage before it does."""
    run = start(job, layout, "--local-nodes", "3")
    at_step(job, 10)
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(ask, job, "drain", "node2")
        job.wait("order.obeyed", boundary=11)
        go(job)
        code, answer = asked.result()
    assert (code, answer["outcome"]) == (0, "done"), answer
    assert run.end() == 0
    check_no_step_is_lost(job, 2)
    resume = job.of("world.formed")[-1].data.resume
    assert resume.source == ("memory" if layout == "ddp" else "storage")
    left = next(e.seq for e in job.of("node.left"))
    committed = [e.seq for e in job.of("checkpoint.committed") if e.data.step == resume.step]
    assert [seq < left for seq in committed] == ([True] if layout == "fsdp" else [])
    assert len(weights(run)) == 1


SKIPPING = """
version: 1
job: {checkpoints: {kept: 20}}
chain:
- rollback_and_skip: {on: [loss-nan], before: 5, AMOUNT}
- process_restart
- stop
"""


SLOW_THEN_HELD = """
if step > 20 and os.environ["FTCORE_ROUND"] == "1":
    time.sleep(0.5)  # a rank leaves a round at the end of a step: it must not be held in one
else:
    while step > int(open("limit").read()):
        open("held", "w").write(str(step - 1))
        time.sleep(0.002)
"""


def trained(job: Ftrun, rank: int) -> list[tuple[int, int]]:
    """Step and batch of every step that a rank computed, in order."""
    lines = (job.cwd / f"batches.{rank}").read_text().splitlines()
    return [(int(step), int(batch)) for step, batch in map(str.split, lines)]


@pytest.mark.parametrize(
    ("data", "amount", "unit"), [("data", 10, "batches"), ("samples", 39, "tokens")], ids=["batches", "tokens"]
)
def test_a_rollback_skips_batches_of_registered_data(job: Ftrun, data: str, amount: int, unit: str) -> None:
    """The script has no code for it; a restart afterwards does not skip again. ``ftctl samples`` accounts for it.

    A step has four tokens: 39 are ten batches.
    """
    job.drop("policy.yaml", SKIPPING.replace("AMOUNT", f"skip: {amount}, skip_unit: {unit}"))
    job.drop("limit", "7")
    job.always(0, SLOW_THEN_HELD)
    flags = ("--nproc-per-node", "2", "--policy", "policy.yaml", "--checkpoints", "saved")
    run = job.start(*flags, script="registered.py", preload=False, args=("40", data, "5"))
    for step in (5, 10, 15):  # one at a time: while the keeper writes, a newer state takes an older one's place
        job.drop("limit", str(step + 2))
        job.wait("checkpoint.committed", step=step)
    job.drop("limit", "30")
    job.wait("workers.stepped", round=2)
    assert job.pids(1) == job.pids(2)
    at_step(job, 30)
    kill(job.pids(2)[1])
    go(job)
    assert run.end() == 0
    assert job.of("job.rolled_back")[0].data.step == 10
    assert [(event.data.amount, event.data.unit) for event in job.of("data.skipped")] == [(amount, unit)]
    (skipped,) = [event.data for event in job.of("batches.skipped")]
    assert (skipped.step, skipped.batches) == (10, 10)
    for rank in (0, 1):
        found = trained(job, rank)
        back = next(place for place, one in enumerate(found) if one == (11, 21))
        assert [batch for _, batch in found[:back]] == list(range(1, back + 1))
        assert {step + 10 == batch for step, batch in found[back:]} == {True}
        assert {step for step, _ in found[back:]} == set(range(11, 41))
    assert len(weights(run)) == 1
    told = json.loads(job.ftctl("--job", "job", "samples", "--format", "json").stdout)
    if data == "samples":
        assert [(each["used"], each["left_out"], each["to_come"]) for each in told["epochs"]] == [(80, 20, 50)]
        [out] = told["ranges_left_out"]
        assert (out["first"], out["after"], out["seq"]) == (20, 40, job.of("data.skipped")[0].seq)
    assert not told["discrepancies"]
