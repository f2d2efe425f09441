"""Two nodes whose keepers copy to each other, killed and stopped in the middle of a copy."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from keeper_harness import KeeperHost, Party, until

SIZE = 1 << 20
SLOW = SIZE / 2
"""Bandwidth in bytes per second at which a copy can be interrupted."""

FAST: dict[str, Any] = {"peer_s": 0.5}


class TwoNodes:
    """Node ``a`` copies to node ``b``; each has an agent.

    Args:
        root: their directory.
    """

    def __init__(self, root: Path) -> None:
        self.hosts = {}
        for name in "ab":
            (root / name).mkdir()
            self.hosts[name] = KeeperHost(root / name)
        self.agents: dict[str, Party] = {}

    def start(self, *, a: dict[str, Any] | None = None, b: dict[str, Any] | None = None) -> Party:
        """Start both agents, and node ``b``'s keeper; returns a worker of node ``a``.

        Args:
            a: options of node ``a``'s keeper.
            b: those of node ``b``.
        """
        for name, options in (("a", a or {}), ("b", b or {})):
            about = {"node": name, "address": "127.0.0.1", **FAST, **options}
            self.agents[name] = self.hosts[name].agent(url=False, **about)
        port = self.agents["b"].ask("copies_port")
        buddy = {"node": "b", "address": "127.0.0.1", "port": port}
        self.agents["a"].ask("copy", {"ranks": 1, "buddies": [buddy], "wards": []})
        self.agents["b"].ask("copy", {"ranks": 1, "buddies": [], "wards": ["a"]})
        self.worker_of_b()
        return self.hosts["a"].worker()

    def worker_of_b(self) -> Party:
        """Start a worker of node ``b``, and with it a keeper."""
        worker = self.hosts["b"].worker(1)
        assert worker.ask("held") is not None
        return worker

    def copies(self) -> list[int]:
        """Steps of the complete copies on node ``b``."""
        held = self.agents["b"].ask("held")
        return sorted(each["step"] for each in held if each["copy"]) if isinstance(held, list) else []

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[TwoNodes]:
    made = TwoNodes(tmp_path)
    yield made
    made.close()


def copying(worker: Party) -> bool:
    """Whether a shard of the worker is being sent."""
    return 2 in worker.ask("pins")


def slow_copy(nodes: TwoNodes) -> Party:
    """A worker whose step 1 is copied, and whose step 2 is being sent."""
    worker = nodes.start(a={"bandwidth": SLOW})
    worker.ask("stage", 1, SIZE)
    until(lambda: nodes.copies() == [1])
    until(lambda: not copying(worker))
    worker.ask("stage", 2, SIZE)
    until(lambda: copying(worker))
    return worker


def test_what_is_staged_is_copied_and_can_be_read(nodes: TwoNodes) -> None:
    """A copy counts like any shard of that node; two steps are kept, and two stay on the node itself."""
    worker = nodes.start()
    for step in (1, 2, 3):
        worker.ask("stage", step, SIZE)
        until(lambda step=step: step in nodes.copies())
    assert nodes.copies() == [2, 3]
    reader = nodes.worker_of_b()
    assert sorted(reader.ask("held")) == [[0, 2], [0, 3]]
    assert reader.ask("read", 3) == "[3]"


def test_saves_that_are_faster_than_their_copies_never_queue(nodes: TwoNodes) -> None:
    """Steps between are left out; the older complete copy stays until the new one is complete."""
    worker = nodes.start(a={"bandwidth": 2 * SIZE})
    worker.ask("stage", 1, SIZE)
    until(lambda: nodes.copies() == [1])
    for step in range(2, 9):
        worker.ask("stage", step, SIZE)
    until(lambda: 8 in nodes.copies())
    before, last = nodes.copies()
    assert before < last == 8
    assert {each["step"] for each in nodes.agents["a"].ask("held")} >= {before, 7, 8}


def test_a_receiver_that_is_killed_costs_its_copies_alone(nodes: TwoNodes) -> None:
    """The worker goes on, and the node's next keeper gets the next step."""
    worker = slow_copy(nodes)
    os.kill(nodes.agents["b"].ask("pid"), signal.SIGKILL)
    assert worker.ask("stage", 3, SIZE) in range(4)
    until(lambda: not nodes.agents["b"].ask("alive"))
    nodes.worker_of_b()
    until(lambda: nodes.copies() != [])
    assert {2, 3} <= {each["step"] for each in nodes.agents["a"].ask("held")}


def test_a_sender_that_is_killed_leaves_the_older_copy(nodes: TwoNodes) -> None:
    """Half of a shard does not count; the node that holds the copy loses nothing of its own."""
    worker = slow_copy(nodes)
    os.kill(nodes.agents["a"].ask("pid"), signal.SIGKILL)
    until(lambda: not nodes.agents["a"].ask("alive"))
    reader = nodes.worker_of_b()
    assert reader.ask("stage", 7, SIZE) == 0
    assert nodes.copies() == [1]
    assert reader.ask("read", 1) == "[1]"
    worker.ask("stage", 3, SIZE)
    until(lambda: nodes.copies() == [1, 3])


@pytest.mark.parametrize("stopped", ["a", "b"])
def test_a_frozen_keeper_holds_up_no_other_one(nodes: TwoNodes, stopped: str) -> None:
    """Both ends give the copy up; it is made after the pause."""
    worker = slow_copy(nodes)
    frozen = nodes.agents[stopped].ask("pid")
    os.kill(frozen, signal.SIGSTOP)
    if stopped == "b":
        assert worker.ask("stage", 3, SIZE) in range(4)
        until(lambda: not copying(worker))
        assert "not copied to node b" in nodes.agents["a"].report("warning")
    else:
        assert nodes.copies() == [1]
        assert nodes.worker_of_b().ask("stage", 7, SIZE) == 0
    os.kill(frozen, signal.SIGCONT)
    until(lambda: max(nodes.copies(), default=0) >= 2)


def test_memory_that_a_receiver_lacks_is_said_once(nodes: TwoNodes) -> None:
    """Training and saving go on."""
    worker = nodes.start(b={"memory": SIZE})
    for step in (1, 2):
        worker.ask("stage", step, SIZE)
    warning = nodes.agents["a"].report("warning")
    assert "not copied to node b" in warning and "the limit is" in warning
    assert worker.ask("stage", 3, SIZE) in range(4)
    assert nodes.copies() == []
    assert not [report for report in nodes.agents["a"].reports if "warning" in report]


def test_a_keeper_with_another_token_gets_and_gives_nothing(nodes: TwoNodes) -> None:
    """Nor does one of another job, whose node has the same name."""
    worker = nodes.start(a={"access": {"token": "a" * 16}}, b={"access": {"token": "b" * 16}})
    worker.ask("stage", 1, SIZE)
    assert "does not know the job's token" in nodes.agents["a"].report("warning")
    assert nodes.copies() == []


def test_agents_that_die_change_nothing_about_copies(nodes: TwoNodes) -> None:
    """Copies are made without them; their successors have the same port, and the copies."""
    worker = nodes.start()
    worker.ask("stage", 1, SIZE)
    until(lambda: nodes.copies() == [1])
    port = nodes.agents["b"].ask("copies_port")
    for agent in nodes.agents.values():
        agent.kill()
    worker.ask("stage", 2, SIZE)
    nodes.agents["b"] = nodes.hosts["b"].agent(url=False, node="b", address="127.0.0.1")
    assert nodes.agents["b"].ask("copies_port") == port
    until(lambda: nodes.copies() == [1, 2])


def test_copies_end_with_the_round_that_needs_them(nodes: TwoNodes) -> None:
    """When workers of a later round have staged twice, copies of earlier rounds are freed."""
    worker = nodes.start()
    worker.ask("stage", 1, SIZE)
    until(lambda: nodes.copies() == [1])
    nodes.agents["b"].ask("copy", {"ranks": 1, "buddies": [], "wards": []})
    later = nodes.hosts["b"].worker(1, round_=2)
    later.ask("stage", 2, SIZE)
    assert nodes.copies() == [1]
    later.ask("stage", 3, SIZE)
    until(lambda: nodes.copies() == [])
