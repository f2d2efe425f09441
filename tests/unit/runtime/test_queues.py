"""Data queues between worker, keeper and agent: what is sent counts, also of a worker that was killed."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftcore.events.queue import DataLease, QueueMark, QueueOpened, QueueReported, QueueSpec, ReaderReport
from ftcore.runtime.agent.queues import NodeQueues
from ftcore.runtime.keeper.peer import Peer
from ftcore.runtime.keeper.queues import QueueRelay, merge_marks
from ftcore.runtime.wire.queue_news import QueueNews
from ftcore.shm import messages
from ftcore.worker._queues import QueueChannel

SPEC = {"shards": 7, "epochs": 1, "samples": 50, "size": 8, "seed": 0, "shuffle": True}
PLACE = {"queue": "train", "round": 3, "rank": 5}
OPENED = {**PLACE, "open": SPEC, "step": 4, "want": 8}


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with messages.new_socket() as listener:
        listener.bind(str(path))
        listener.listen()
        listener.setblocking(False)
        yield listener


def test_what_a_worker_sent_before_it_was_killed_is_reported(tmp_path: Path) -> None:
    """The keeper has not read it yet when the agent asks."""

    async def main() -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []
        relay = QueueRelay(told.append)
        with listening(tmp_path / "s") as listener:
            channel = QueueChannel(str(tmp_path / "s"), lambda: (3, 5, 8))
            assert channel.send(OPENED)
            peer = Peer(listener.accept()[0])
            hello, _ = await peer.receive()
            assert hello is not None and hello["hello"] == "queues"
            serving = asyncio.ensure_future(relay.serve(peer, 5))
            while not told:
                await asyncio.sleep(0)
            assert channel.receive() == []
            relay.deliver({**PLACE, "leases": [[0, 0, 4, 0]], "over": False, "refused": ""})
            assert channel.receive(60.0)[0]["leases"] == [[0, 0, 4, 0]]
            for step in (5, 6, 7):
                channel.send({**PLACE, "marks": [[step, step - 5, 1, 9]]})
            channel.close()
            relay.flush()
            counted = len(told)
            await serving
            peer.close()
            assert len(told) == counted, "its end is reported once"
        return told

    first, last = (each["queue"] for each in asyncio.run(main()))
    assert (first["want"], first["closed"]) == (8, False)
    assert (last["marks"], last["closed"]) == ([[7, 2, 1, 9]], True)


def test_marks_are_merged() -> None:
    marks: list[Any] = []
    merge_marks(marks, [[1, 0, 4, 4], [2, 1, 0, 4], [3, 1, 2, 2], [4, 2, 0, -1], [4, 2, 1, -1]])
    assert marks == [[2, 1, 0, 4], [3, 1, 2, 2], [4, 2, 1, -1]]
    merge_marks(marks, [[step, step, 0, -1] for step in range(5, 1000)])
    assert len(marks) == 256 and marks[-1] == [999, 999, 0, -1] and marks[0][3] == -1


def test_a_channel_without_a_keeper(tmp_path: Path) -> None:
    """Nothing is raised; a later message goes to the keeper that is there then."""
    channel = QueueChannel(str(tmp_path / "s"), lambda: (3, 5, 8))
    assert not channel.send(OPENED) and channel.receive() == []
    channel._retry_at = 0.0
    with listening(tmp_path / "s"):
        assert channel.send(OPENED)
    channel.close()


@pytest.fixture
def node() -> Iterator[Callable[..., tuple[list[Any], list[dict[str, Any]]]]]:
    """Runs calls of a node's queues; returns its facts, and what it has handed to the keeper."""

    def run(*calls: Callable[[NodeQueues], Any]) -> tuple[list[Any], list[dict[str, Any]]]:
        async def main() -> tuple[list[Any], list[dict[str, Any]]]:
            facts: list[Any] = []
            handed: list[dict[str, Any]] = []
            queues = NodeQueues(handed.append)
            queues.attach(facts.append, lambda: ("node0", "a1"), lambda report: report())
            for call in calls:
                call(queues)
            queues.flush()
            return facts, handed

        return asyncio.run(main())

    yield run


def test_reports_of_a_node_are_one_fact(node: Any) -> None:
    facts, _ = node(
        lambda queues: queues.take(OPENED),
        lambda queues: queues.take({**OPENED, "rank": 4}),
        lambda queues: queues.take({**PLACE, "marks": [[5, 1, 0, 9]]}),
        lambda queues: queues.take({**PLACE, "marks": [[6, 2, 0, 9]], "closed": True}),
    )
    about = {"node": "node0", "incarnation": "a1", "round": 3, "queue": "train"}
    assert facts == [
        QueueOpened(**about, spec=QueueSpec(**SPEC), step=4, ranks=(4, 5)),
        QueueReported(
            **about,
            readers=(
                ReaderReport(rank=4, want=8),
                ReaderReport(rank=5, want=8, marks=(QueueMark(step=6, done=2, rate=9),), closed=True),
            ),
        ),
    ]


def test_a_worker_that_opens_again_gets_its_leases_again(node: Any) -> None:
    """Those that it has not used up: its node's keeper has ended, and with it what was on the way."""
    news = QueueNews("train", 3, (DataLease(rank=5, at=0, first=0, after=2), DataLease(rank=5, at=2, first=6, after=9)))
    _, handed = node(
        lambda queues: queues.take(OPENED),
        lambda queues: queues.told(news),
        lambda queues: queues.told(news),
        lambda queues: queues.take({**PLACE, "marks": [[5, 2, 1, 9]]}),
        lambda queues: queues.told(QueueNews("train", 3, over=(5,), refused=(4,), reason="why")),
        lambda queues: queues.take(OPENED),
    )
    assert [each["leases"] for each in handed] == [[[0, 0, 2, 0], [2, 6, 9, 0]]] * 2 + [[], [], [[2, 6, 9, 0]]]
    assert [each["over"] for each in handed] == [False, False, False, True, True]
    assert [each["refused"] for each in handed] == ["", "", "why", "", ""]
