"""Agents, workers and keepers that are killed or stopped at bad moments, as processes of their own."""

import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from keeper_harness import KeeperHost, Party, ended, stat, until

from ftcore.checkpoint import directory
from ftcore.checkpoint.storage import Storage
from ftcore.checkpoint.verify import verify

SIZE = 1 << 20
HELD_UP = 1.0
"""Bandwidth in bytes per second at which no write ends within a test: a storage that holds up its writers."""


def steps(agent: Party) -> list[int]:
    return sorted(each["step"] for each in agent.ask("held"))


def complete(host: KeeperHost) -> list[int]:
    """Steps of the complete checkpoints on storage; each of them is whole."""
    storage = Storage(str(host.saved))
    found = [each for each in directory.checkpoints(storage) if each.complete]
    assert all(verify(storage, each.directory) == [] for each in found)
    return [each.step for each in found]


def test_a_worker_killed_while_it_writes_leaves_the_shard_before(host: KeeperHost) -> None:
    """The next worker of the rank reads it, and writes into the torn slot first."""
    agent, worker = host.agent(), host.worker()
    slots = [worker.ask("stage", step, SIZE) for step in (1, 2)]
    assert sorted(slots) == [0, 1]
    assert worker.ask("tear", SIZE) == slots[0]
    worker.kill()
    assert steps(agent) == [2]
    successor = host.worker(round_=2)
    assert successor.ask("held") == [[0, 2]]
    assert successor.ask("read", 2) == "[2]"
    assert successor.ask("stage", 3, SIZE) == slots[0]
    assert steps(agent) == [2, 3]


def test_a_killed_reader_keeps_no_shard(host: KeeperHost) -> None:
    """Its pins end with its process, although a child of it has inherited its connection."""
    agent, writer = host.agent(), host.worker()
    writer.ask("stage", 1, SIZE)
    reader = host.worker(1)
    assert reader.ask("hold", 1)
    assert writer.ask("pins") == [2, 0, 0]
    reader.kill()
    until(lambda: writer.ask("pins") == [0, 0, 0])
    assert steps(agent) == [1]


def test_a_killed_agent_leaves_a_complete_checkpoint_and_its_memory(host: KeeperHost) -> None:
    """Nothing waits for the keeper; the successor gets the memory, and the reports that it missed."""
    agent = host.agent()
    workers = [host.worker(rank, ranks=2, group=rank, groups=2) for rank in range(2)]
    for worker in workers:
        assert worker.ask("stage", 7, SIZE) == 0
    keeper = agent.ask("pid")
    for process in (agent, *workers):
        process.kill()
    assert agent.output_ends()
    until(lambda: complete(host) == [7])
    successor = host.agent()
    assert successor.ask("pid") == keeper
    assert [each["rank"] for each in successor.ask("held")] == [0, 1]
    assert successor.report("committed")["step"] == 7
    assert not successor.reports, "the shards of a checkpoint that is committed are not reported"
    reader = host.worker(round_=2)
    assert sorted(reader.ask("held")) == [[0, 7], [1, 7]]


def test_a_killed_agent_saves_the_newest_step_that_all_groups_have(host: KeeperHost) -> None:
    """A kill between two seals leaves ranks with different steps; the step before is complete."""
    agent = host.agent()
    first, second = (host.worker(rank, ranks=2, group=rank, groups=2) for rank in range(2))
    for step in (9, 10):
        first.ask("stage", step, SIZE)
    for step in (8, 9):
        second.ask("stage", step, SIZE)
    second.ask("tear", SIZE)
    for process in (agent, first, second):
        process.kill()
    until(lambda: complete(host) == [9])


def test_two_dead_agents_in_a_row_lose_no_memory(host: KeeperHost) -> None:
    """The time without an agent begins anew with each of them."""
    agent, worker = host.agent(), host.worker()
    worker.ask("stage", 7, SIZE)
    keeper = agent.ask("pid")
    for _ in range(3):
        agent.kill()
        agent = host.agent()
        assert agent.ask("pid") == keeper and steps(agent) == [7]


def test_a_keeper_without_agents_ends_by_itself(host: KeeperHost) -> None:
    """After its time, with its socket and its memory."""
    agent, worker = host.agent(linger_s=0.3), host.worker()
    worker.ask("stage", 7, SIZE)
    keeper = agent.ask("pid")
    worker.kill()
    agent.kill()
    until(lambda: ended(keeper))
    assert not list((host.root / "run").iterdir())
    assert complete(host) == [7]


def test_sigterm_ends_a_keeper_without_an_agent_alone(host: KeeperHost) -> None:
    """A scheduler sends it to all processes of a job: a living agent decides; without one, what is held is saved."""
    agent, worker = host.agent(), host.worker()
    worker.ask("stage", 7, SIZE)
    keeper = agent.ask("pid")
    os.kill(keeper, signal.SIGTERM)
    assert steps(agent) == [7]
    worker.kill()
    agent.kill()
    until(lambda: ended(keeper))
    assert complete(host) == [7]


def test_a_killed_keeper_blocks_no_worker_and_no_agent(host: KeeperHost) -> None:
    """The save after it is lost or goes to the next keeper, which is another process with empty memory."""
    agent, worker = host.agent(), host.worker()
    worker.ask("stage", 1, SIZE)
    keeper = agent.ask("pid")
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not agent.ask("alive"))
    assert "no keeper" in agent.ask("held")["error"]
    found = until(lambda: (slot := worker.ask("stage", 2, SIZE)) in (0, 1) and [slot])
    assert found == [0] and agent.ask("pid") != keeper and steps(agent) == [2]


def test_a_keeper_that_does_not_start_is_tried_again(host: KeeperHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in a tight loop; the worker waits, and gets its memory."""
    flawed = host.root / "flawed"
    flawed.mkdir()
    (flawed / "sitecustomize.py").write_text(
        "import os, sys\n"
        f"path = {str(host.root / 'tries')!r}\n"
        "if 'ftcore.runtime.keeper' in sys.orig_argv:\n"
        "    with open(path, 'a') as file: file.write('x')\n"
        "    if os.path.getsize(path) < 4: os._exit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(flawed))
    agent, worker = host.agent(), host.worker()
    assert worker.ask("stage", 1, SIZE) == 0
    assert steps(agent) == [1]
    assert (host.root / "tries").read_text() == "xxxx"


def test_a_stopped_keeper_blocks_no_worker_and_no_agent(host: KeeperHost) -> None:
    """Saves go on in the memory that the worker has; the agent's request fails in time; all is there afterwards."""
    agent, worker = host.agent(), host.worker()
    worker.ask("stage", 1, SIZE)
    keeper = agent.ask("pid")
    os.kill(keeper, signal.SIGSTOP)
    until(lambda: stat(keeper) == "T")
    for step in (2, 3, 4):
        assert worker.ask("stage", step, SIZE) in (0, 1)
    assert "did not answer within" in agent.ask("held")["error"]
    os.kill(keeper, signal.SIGCONT)
    assert steps(agent) == [3, 4]


def test_a_stopped_keeper_ends_with_its_job(host: KeeperHost) -> None:
    """No process and no memory is left after a goodbye."""
    agent, worker = host.agent(), host.worker()
    worker.ask("stage", 1, SIZE)
    keeper = agent.ask("pid")
    os.kill(keeper, signal.SIGSTOP)
    until(lambda: stat(keeper) == "T")
    agent.ask("bye", "succeeded")
    assert ended(keeper)


def test_a_stopped_agent_stops_neither_saves_nor_their_way_to_storage(host: KeeperHost) -> None:
    """What was written meanwhile is reported when it goes on."""
    agent, worker = host.agent(), host.worker()
    worker.ask("stage", 1, SIZE)
    agent.kill(signal.SIGSTOP)
    for step in (2, 3):
        assert worker.ask("stage", step, SIZE, True) in (0, 1)
        until(lambda step=step: list(host.saved.glob(f"step-*{step}-r1/shard-*")))
    agent.kill(signal.SIGCONT)
    assert [agent.report("persisted")["step"] for _ in range(2)] == [2, 3]


def test_a_goodbye_leaves_no_process_and_no_memory(host: KeeperHost) -> None:
    """The worker has no staging memory but its own mapping; without it, there is none."""
    agent, worker = host.agent(), host.worker()
    worker.ask("stage", 1, SIZE)
    keeper = agent.ask("pid")
    assert worker.ask("memory") > 0
    agent.ask("bye", "succeeded")
    assert ended(keeper) and complete(host) == []
    agent.close()
    assert isinstance(worker.ask("stage", 2, SIZE), str)
    assert worker.ask("memory") == 0
    worker.close()
    assert not list((host.root / "run").iterdir()) and host.processes() == {}


@pytest.mark.parametrize("outcome", ["failed", "stopped"])
def test_a_job_that_can_be_resumed_is_saved_before_its_keeper_ends(host: KeeperHost, outcome: str) -> None:
    """Also if no save to storage was due."""
    agent, worker = host.agent(), host.worker()
    worker.ask("stage", 5, SIZE)
    keeper = agent.ask("pid")
    agent.ask("bye", outcome)
    assert ended(keeper) and complete(host) == [5]


def test_a_goodbye_waits_for_what_is_being_written(host: KeeperHost) -> None:
    """The last save of a job that has succeeded is a checkpoint."""
    agent, worker = host.agent(bandwidth=4.0 * SIZE), host.worker()
    worker.ask("stage", 5, SIZE, True)
    keeper = agent.ask("pid")
    agent.ask("bye", "succeeded")
    assert ended(keeper) and complete(host) == [5]


def test_a_storage_that_holds_up_its_writers_holds_up_nothing_else(host: KeeperHost) -> None:
    """Saves go on in memory, and the keeper ends with the job after a limit."""
    agent, worker = host.agent(bandwidth=HELD_UP, linger_s=0.5), host.worker()
    for step in range(1, 6):
        assert worker.ask("stage", step, SIZE, True) in (0, 1, 2)
    assert steps(agent)[-1] == 5
    keeper = agent.ask("pid")
    agent.ask("bye", "succeeded")
    assert ended(keeper)
    assert not list(host.saved.glob("*/shard-*"))


def test_the_slot_that_is_being_written_to_storage_is_spared(host: KeeperHost) -> None:
    """A storage that is slower than the saves gets the oldest ones whole, and the slot behind them is written again."""
    agent, worker = host.agent(bandwidth=HELD_UP), host.worker()
    assert worker.ask("stage", 1, SIZE, True) == 0
    until(lambda: worker.ask("pins")[0] == 2)
    assert worker.ask("stage", 2, SIZE, True) == 1
    until(lambda: worker.ask("pins") == [2, 1, 0])
    for step in (3, 4):
        assert worker.ask("stage", step, SIZE) == 2
    assert steps(agent) == [1, 2, 4]


def test_a_worker_killed_in_a_copy_leaves_the_step_before_although_storage_is_slow(host: KeeperHost) -> None:
    """While the first shard is written to storage, two other slots take turns; the third one is not used otherwise."""
    agent, worker = host.agent(bandwidth=HELD_UP), host.worker()
    for step in (1, 2, 3):
        assert worker.ask("stage", step, SIZE) == 1 - step % 2
    assert worker.ask("stage", 4, SIZE, True) == 1
    until(lambda: worker.ask("pins") == [0, 2, 0])
    for step, slot in ((5, 0), (6, 2), (7, 0), (8, 2)):
        assert worker.ask("stage", step, SIZE) == slot
    assert worker.ask("tear", SIZE) == 0
    worker.kill()
    assert steps(agent) == [4, 8]


def test_a_shard_that_was_overwritten_while_it_was_written_is_dropped(host: KeeperHost) -> None:
    """A writer that has no other slot, or does not see the pin, costs this file alone; the next save is whole."""
    agent, worker = host.agent(bandwidth=3000.0), host.worker()
    first = worker.ask("stage", 1, 1000, True)
    until(lambda: worker.ask("pins")[first] == 2)
    assert worker.ask("stage", 2, 1000, False, first) == first
    failed: Any = agent.report("failed")
    assert failed["step"] == 1 and "overwr" in failed["error"]
    assert not list(host.saved.glob("*/*"))
    worker.ask("stage", 3, 1000, True)
    assert agent.report("persisted")["step"] == 3


def test_a_full_disk_costs_no_memory_copy(host: KeeperHost) -> None:
    """The failure says what to do; with space again, the next save is on storage."""
    agent, worker = host.agent(), host.worker()
    worker.ask("stage", 1, SIZE)
    keeper = agent.ask("pid")
    hard = resource.prlimit(keeper, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(keeper, resource.RLIMIT_FSIZE, (SIZE // 2, hard))
    worker.ask("stage", 2, SIZE, True)
    failed: Any = agent.report("failed")
    assert failed["step"] == 2 and "free space" in failed["error"]
    assert [path for path in host.saved.rglob("*") if path.is_file()] == []
    assert steps(agent) == [1, 2]
    resource.prlimit(keeper, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
    worker.ask("stage", 3, SIZE, True)
    file = agent.report("persisted")["file"]
    agent.ask("commit", 1, 3, [file])
    assert complete(host) == [3]


def test_kills_at_random_moments_leave_only_complete_shards(host: KeeperHost) -> None:
    """Whatever the writer did when it was killed, what is held is whole, and never older than one save."""
    agent = host.agent(url=False)
    newest = 0
    for number in range(8):
        worker = host.worker(round_=number + 1)
        for step in range(newest + 1, newest + 4):
            worker.send("stage", step, 16 * SIZE)
        for _ in range(number % 3 + 1):
            worker.answer()
        sealed = newest + number % 3 + 1
        time.sleep(0.002 * number)  # into the next write
        worker.kill()
        reader = host.worker(round_=number + 1)
        held = [step for _, step in reader.ask("held")]
        assert max(held) >= sealed, (held, sealed)
        assert reader.ask("read", max(held)) == f"[{max(held)}]"
        reader.close()
        newest = max(held)
    assert Path(f"/proc/{agent.ask('pid')}").exists()
