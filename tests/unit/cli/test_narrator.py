"""What ftrun tells at the terminal: one line per turn of the story."""

from typing import Any

from ftcore.events.job import JobSpec
from ftcore.launch.narrator import Narrator
from ftcore.policies.config import parse
from ftcore.testing.driver import JobDriver


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


def test_what_can_never_apply_and_what_is_known_is_not_told():
    """A policy that lacks an ability passes at every fault; a fault that is read anew as before is no news."""
    driver = running()
    driver.fail("node1", exitcode=-9)
    driver.settle()
    told = lines(driver)[1:]
    assert not [line for line in told if "needs `" in line]
    assert len([line for line in told if "rank 1 on node1" in line]) == 1


def test_a_pause_and_a_resume():
    """The wish is told once, with who asked; then that it is fulfilled."""
    driver = running(abilities=("pause",))
    driver.command("pause", why="maintenance")
    driver.settle()
    driver.command("resume")
    driver.settle()
    told = lines(driver)[1:]
    assert told[0] == "user@host asks for pause: maintenance"
    assert "i1: training waits at a step boundary; go on with: ftctl --job j resume" in told
    assert told[-1] == "i2: training goes on"


def test_commands_in_lines_run_as_they_are_printed():
    """The store is named where `ftctl` does not take it by itself; the job always."""
    driver = running(abilities=("pause",))
    driver.command("pause", why="maintenance")
    driver.settle()
    narrator = Narrator(Any, job="a job", store="etcd://h1:2379")
    told = [line for event in driver.events if (line := narrator.line(event))]
    [line] = [line for line in told if "ftctl" in line]
    assert line.endswith("go on with: ftctl --store etcd://h1:2379 --job 'a job' resume")


def test_a_wish_that_nobody_takes():
    """Why, and that nothing changes."""
    driver = running()
    driver.command("checkpoint")
    told = lines(driver)[1:]
    assert told[0] == "user@host asks for checkpoint"
    assert any("needs `save`" in line for line in told)
    assert told[-1] == "i1: no policy takes it; training goes on as before"


def test_a_node_that_is_evicted_is_released():
    """It is kept out and told to leave; the platform asks who was released."""
    driver = running(spec=JobSpec(argv=("t.py",), nodes_min=1, nodes_max=2))
    driver.command("evict", node="node1")
    driver.settle()
    told = lines(driver)
    assert any(line.startswith("node1 is kept out of this job") for line in told)
    assert any(line.startswith("node1 is released: ") for line in told)
    narrator = Narrator(Any, job="j")
    for event in driver.events:
        narrator.line(event)
    assert narrator.released == {"node1"}


def test_plans_in_place_refusals_and_saves():
    """An order that was refused is told with why; a checkpoint saved on the way, too."""
    text = "- dying_checkpoint\n- step_retry\n- process_restart\n"
    driver = running(text, abilities=("retry", "snapshot", "replicas", "save"))
    driver.refuses["node0"] = ("retry_step",)
    driver.observe("node1", "uce", message="uncorrectable memory error")
    driver.settle()
    told = lines(driver)
    assert "i1: dying_checkpoint saved; the chain goes on" in told
    assert any(line.startswith("i1: step_retry did not succeed: node0: ") for line in told)
    assert told[-1].startswith("i1: resolved by process_restart")


def test_a_health_check_is_told_when_it_begins_and_when_it_is_over():
    """Before the first start; nobody is to wonder why nothing trains."""
    policy = parse("version: 1\njob: {health: suspect, check_s: 90s}\n", "policy.yaml")
    driver = JobDriver(policy=policy, abilities=("check",))
    driver.start()
    assert lines(driver)[:3] == [
        "node0, node1 are checked before round 1: devices, links, configuration; up to 90.0 s a stage",
        "2 nodes checked: all healthy",
        "round 1: 2 nodes, 2 ranks",
    ]
