"""What ftrun tells at the terminal: one line per turn of the story."""

import asyncio
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from ftcore.batch import BatchRule
from ftcore.commands import ReleaseNode
from ftcore.events.action import ActionOrdered
from ftcore.events.checkpoint import HeldShard, MemoryHeld
from ftcore.events.job import BatchSpec, JobSpec
from ftcore.events.node import NodeQuarantined
from ftcore.events.worker import RankState, WorkersStood
from ftcore.ids import JobName, Seq
from ftcore.launch.narrator import Narrator
from ftcore.logs import open_store
from ftcore.policies.file.config import parse
from ftcore.ports import Candidate
from ftcore.testing.driver import JobDriver
from ftcore.wording import sentence


def lines(driver: JobDriver) -> list[str]:
    narrator = Narrator(Any, job="j")  # its log is only followed once it is entered
    return [line for event in driver.events if (line := narrator.line(event))]


def running(text: str = "", **options: Any) -> JobDriver:
    policy = parse(f"version: 1\nchain:\n{text}- stop\n", "policy.yaml") if text else None
    driver = JobDriver(policy=policy, **options)
    driver.start()
    driver.make_steps(5)
    return driver


def test_a_fault_and_its_recovery():
    """What happened, who passes and why, who takes it, the new round, how long it took."""
    driver = running("- process_restart\n")
    driver.fail("node1", exitcode=-9)
    driver.settle()
    first, *told = lines(driver)
    assert first == "round 1: 2 nodes, 2 ranks"
    assert told[0].startswith("i1: rank 1 on node1") and told[1].startswith("i1: process_restart: restart 1 of")
    assert told[2] == "round 2: 2 nodes, 2 ranks" and told[3].startswith("i1: resolved by process_restart in ")


def test_what_a_round_resumes_from():
    """Of a script that registered its state: memory, or the place on storage."""
    driver = running("- process_restart\n")
    held = HeldShard(rank=0, round=1, step=41, group=0, groups=1, ranks=2)
    for node in ("node0", "node1"):
        life = driver.state.membership.nodes[node].incarnation
        driver.say(node, MemoryHeld(node=node, incarnation=life, log="", shards=(held,)))
    driver.fail("node1", exitcode=-9)
    driver.settle()
    assert "round 2: 2 nodes, 2 ranks, resumes from step 41 in memory" in lines(driver)


def test_another_number_of_ranks_changes_the_batch():
    """Once per change: what it means for a script with a fixed batch per rank; or the batch that the job declares."""
    for batch, shrunk, grown in (
        (
            None,
            "2 instead of 3 ranks: a script with a fixed batch per rank now trains with 2/3 of its global batch (ftrun "
            "--global-batch keeps it)",
            "3 instead of 2 ranks: a script with a fixed batch per rank now trains with 3/2 of its global batch (ftrun "
            "--global-batch keeps it)",
        ),
        (BatchSpec(size=7), "global batch 7: 3 to 4 per rank", "global batch 7: 2 to 3 per rank"),
        (
            BatchSpec(size=6, rule=BatchRule.LINEAR_LR),
            "global batch 4: 2 per rank, learning rate x 0.6667",
            "global batch 6: 2 per rank",
        ),
    ):
        driver = running(nodes=3, spec=JobSpec(argv=("t.py",), nodes_min=2, nodes_max=3, batch=batch))
        driver.lose("node1")
        driver.settle()
        driver.make_steps(5)
        driver.fail("node0", exitcode=-9)
        driver.settle()
        driver.make_steps(5)
        driver.join("node1")
        driver.settle()
        told = [line for line in lines(driver) if line.startswith("round")]
        same = "" if batch is None else f", {shrunk}"
        assert told[1:] == [
            f"round 2: 2 nodes, 2 ranks, {shrunk}",
            f"round 3: 2 nodes, 2 ranks{same}",
            f"round 4: 3 nodes, 3 ranks, {grown}",
        ]


def test_what_can_never_apply_and_what_is_known_is_not_told():
    """A policy that lacks an ability passes at every fault; a fault that is read anew as before is no news."""
    driver = running()
    driver.fail("node1", exitcode=-9)
    driver.settle()
    told = lines(driver)[1:]
    assert not [line for line in told if "needs `" in line]
    assert len([line for line in told if "rank 1 on node1" in line]) == 1


def test_a_pause_and_a_resume():
    """The request is printed once, with its user; then its result."""
    driver = running(abilities=("pause",))
    driver.command("pause", why="maintenance")
    driver.settle()
    driver.command("resume")
    driver.settle()
    told = lines(driver)[1:]
    assert told[0] == "user@host requests pause: maintenance"
    assert "i1: training waits at a step boundary; continue with: ftctl --job j resume" in told
    assert told[-1] == "i2: training goes on"


def test_commands_in_lines_run_as_they_are_printed():
    """The store is named where `ftctl` does not take it by itself; the job always."""
    driver = running(abilities=("pause",))
    driver.command("pause", why="maintenance")
    driver.settle()
    narrator = Narrator(Any, job="a job", store="etcd://h1:2379")
    told = [line for event in driver.events if (line := narrator.line(event))]
    [line] = [line for line in told if "ftctl" in line]
    assert line.endswith("continue with: ftctl --store etcd://h1:2379 --job 'a job' resume")


def test_a_request_that_no_policy_takes():
    """Why, and that nothing changes."""
    driver = running()
    driver.command("checkpoint")
    told = lines(driver)[1:]
    assert told[0] == "user@host requests checkpoint"
    assert any("needs `save`" in line for line in told)
    assert told[-1] == "i1: no policy takes it; training goes on unchanged"


def test_a_request_that_is_dropped_during_a_pause():
    """The job stays paused, and the line says so."""
    driver = running(abilities=("pause",))
    driver.command("pause")
    driver.settle()
    driver.command("checkpoint")
    assert lines(driver)[-1] == "i2: no policy takes it; the request is dropped, the job stays paused"
    driver.command("resume")
    driver.settle()
    driver.command("checkpoint")
    assert lines(driver)[-1] == "i4: no policy takes it; training goes on unchanged"


def test_the_time_of_a_hang_includes_the_hang():
    """It counts from the last completed step."""
    driver = running()
    stopped = RankState(ranks=(1,), state="stopped", still_s=60.0, silent_s=60.0)
    driver.own(WorkersStood(round=1, stands=(stopped, RankState(ranks=(0,), op="all_reduce", silent_s=59.0))))
    driver.settle()
    found = re.fullmatch(r"i1: resolved by process_restart in ([0-9.]+) s", lines(driver)[-1])
    assert found is not None and float(found[1]) >= 60.0


def test_a_node_that_is_evicted_is_released():
    """It is kept out and told to leave; the platform asks who was released."""
    driver = running(spec=JobSpec(argv=("t.py",), nodes_min=1, nodes_max=2))
    driver.command("evict", node="node1")
    driver.settle()
    told = lines(driver)
    assert any(line.startswith("node1 is quarantined: ") for line in told)
    assert any(line.startswith("node1 is released: ") for line in told)
    narrator = Narrator(Any, job="j")
    for event in driver.events:
        narrator.line(event)
    assert narrator.released == {"node1"}


def test_plans_in_place_refusals_and_saves():
    """An order that was refused is told with why; a checkpoint saved on the way, too."""
    text = "- dying_checkpoint\n- step_retry\n- process_restart\n"
    driver = running(text, abilities=("retry", "replicas", "save", "pause"))
    driver.observe("node1", "uce", message="uncorrectable memory error")
    driver.settle()
    told = lines(driver)
    assert "i1: dying_checkpoint saved; the chain goes on" in told
    assert told[-1].startswith("i1: resolved by step_retry")
    driver.refuses["node0"] = ("save_checkpoint",)
    driver.fail("node1", exitcode=-9)
    driver.settle()
    told = lines(driver)
    assert any(line.startswith("i2: dying_checkpoint did not succeed: node0: ") for line in told)
    assert told[-1].startswith("i2: resolved by process_restart")


def test_ranks_that_wait_are_told():
    """Nothing says that they are stopped or restarted."""
    driver = running("- hot_swap\n- process_restart\n", abilities=("park",))
    driver.fail("node1", exitcode=-9)
    driver.settle()
    assert "i1: hot_swap: the live ranks wait for a new process on node1; 1 of 10 in 1h" in lines(driver)


def test_a_health_check_is_told_when_it_begins_and_when_it_is_over():
    """Before the first start; nobody is to wonder why nothing trains."""
    policy = parse("version: 1\njob: {health: suspect, check_s: 90s}\n", "policy.yaml")
    driver = JobDriver(policy=policy, abilities=("check",))
    driver.start()
    assert lines(driver)[:3] == [
        "node0, node1 are checked before round 1: devices, links, configuration; up to 90.0 s for each stage",
        "2 nodes checked: all healthy",
        "round 1: 2 nodes, 2 ranks",
    ]


def test_a_log_that_was_replaced_is_read_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """The log goes back to an older copy and continues: what it says since then is printed, the rest not again."""
    monkeypatch.setattr("ftcore.launch.narrator.RETRY_S", 0.01)
    driver = running()
    copied = len(driver.events)
    driver.command("drain", node="node1", why="of the log that is lost")
    lost = driver.events[copied:]
    driver = running()
    driver.now = lost[-1].time + 1
    driver.command("stop", why="of the copy")
    driver.settle()
    printed = ""

    async def wait_for(text: str) -> None:
        nonlocal printed
        while text not in printed:
            await asyncio.sleep(0.01)
            printed += capsys.readouterr().err

    async def main() -> Narrator:
        store = open_store(f"sqlite://{tmp_path}/j.db")
        log = await store.open(JobName("j"), create=True)
        term = (await log.campaign(Candidate(host="h", pid=1, address="a"))).term
        async with Narrator(log, job="j") as narrator:
            await log.append(driver.events[:copied], term=term, expected_seq=Seq(0))
            _copy(tmp_path / "j.db", tmp_path / "copy.db")
            await log.append(lost, term=term, expected_seq=Seq(copied))
            await wait_for("of the log that is lost")
            _copy(tmp_path / "copy.db", tmp_path / "j.db")
            await wait_for("older copy")
            await log.append(driver.events[copied:], term=term, expected_seq=Seq(copied))
            await wait_for("of the copy")
            while narrator.finished is None:
                await asyncio.sleep(0.01)
        await store.close()
        return narrator

    assert asyncio.run(main()).finished is not None
    assert printed.count("round 1: ") == 1


def _copy(source: Path, target: Path) -> None:
    with sqlite3.connect(source) as read, sqlite3.connect(target) as written:
        read.backup(written)


def test_a_quarantined_node_is_named_once():
    """The reason may begin with the node's name; the list of reasons of a release names it as well."""
    assert sentence(NodeQuarantined(node="node1", reason="node1: no frame")) == "node1 is quarantined: no frame"
    assert sentence(NodeQuarantined(node="node1", reason="x")) == "node1 is quarantined: x"
    release = ReleaseNode(outcome="released", exit_code=5, reason="quarantined: node1: node1: no frame")
    ordered = ActionOrdered(effect="release_node.1.2", command=release, nodes=("node1",))
    assert sentence(ordered) == "node1 is released: quarantined: node1: no frame"


def test_a_pause_for_a_disruption_and_its_end():
    """Why training waits, that it goes on by itself, and what follows if it lasts too long."""
    driver = running("- step_pause: {on: [maintenance-notice], patience: 3s}\n", abilities=("pause",))
    driver.observe("node1", "maintenance-notice", message="live migration")
    driver.settle(step=False)
    while any(key.startswith("disruption") for key in driver.state.deadlines):
        driver.wait()
    driver.settle(step=False)
    assert driver.state.phase == "running"
    assert lines(driver)[1:] == [
        "i1: warning: node1: maintenance: live migration",
        "i1: step_pause: training waits until the maintenance of node1 is over, at most 3s",
        "i1: training waits at a step boundary, and goes on by itself; continue at once with: ftctl --job j resume",
        "i2: the maintenance of node1 lasts too long: it is to be drained",
        "i2: no policy takes it",
        "i3: the maintenance of node1 lasts too long",
        "i3: step_pause: the maintenance of node1 lasts too long",
        "i3: training goes on",
    ]
