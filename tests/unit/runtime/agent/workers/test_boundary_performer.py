"""Orders at step boundaries as an agent carries them out, on pages of workers that this process imitates."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ftcore.commands import FindBoundary, PauseWorkers, ResumeWorkers, SaveCheckpoint
from ftcore.errors import Refused
from ftcore.ids import Round
from ftcore.ports import Performed, Progress
from ftcore.runtime.agent.workers import boundary
from ftcore.runtime.agent.workers.boundary import BoundaryPerformer
from ftcore.shm.boundary import SAVES, WAITS, BoundaryOrders, BoundaryWords
from ftcore.shm.page import PAGE_BYTES

ONE, TWO = Round(1), Round(2)


class Worker:
    """A worker with a page: it steps while it is told to, and does at a boundary what its page orders."""

    def __init__(self, reached: int = 0, able: int = WAITS | SAVES) -> None:
        page = memoryview(bytearray(PAGE_BYTES))
        self.words, self.orders = BoundaryWords(page), BoundaryOrders(page)
        self.words.can(able)
        self.reached, self.alive, self.error = reached, True, ""
        self.saved_in_memory = False
        self.words.reach(reached)

    @property
    def stop_at(self) -> int:
        return next(number for number in range(100) if self.words.must_wait(number)) if self.stops else 0

    @property
    def stops(self) -> bool:
        return self.words.must_wait(99)

    def step(self) -> None:
        """Complete a step, unless it waits."""
        if self.words.must_save(self.reached):
            self.saved_in_memory = self.words.must_save_in_memory()
            self.words.saved(self.reached, self.error)
        waits = self.words.must_wait(self.reached)
        self.words.waits(waits)
        if not waits:
            self.reached += 1
            self.words.reach(self.reached)


class Node:
    """A node with its workers and its performer."""

    def __init__(self, *workers: Worker) -> None:
        self.workers = workers
        self.performer = BoundaryPerformer(self, self.progress)

    def boundaries(self) -> tuple[BoundaryOrders | None, ...]:
        return tuple(worker.orders if worker.alive else None for worker in self.workers)

    def progress(self) -> tuple[Progress | None, ...]:
        return tuple(
            Progress(steps=worker.reached, step=100 + worker.reached, absolute=True, mono=1, loss=None)
            for worker in self.workers
        )

    async def perform(self, command: object) -> Performed:
        return await self.performer.perform(command, "effect")

    async def find(self) -> int:
        return (await self.perform(FindBoundary(round=ONE))).boundary

    async def pause(self, number: int) -> Performed:
        return await self.perform(PauseWorkers(round=ONE, boundary=number))

    async def save(self, number: int) -> Performed:
        return await self.perform(SaveCheckpoint(round=ONE, boundary=number))

    async def resume(self) -> Performed:
        return await self.perform(ResumeWorkers(round=ONE))

    async def train(self, *only: Worker) -> None:
        while True:
            await asyncio.sleep(0.001)
            for worker in only or self.workers:
                if worker.alive:
                    worker.step()


def run(node: Node, scenario: Callable[[], Awaitable[None]], *training: Worker) -> None:
    """Run a scenario while workers train; default: all."""

    async def both() -> None:
        ranks = asyncio.create_task(node.train(*training))
        try:
            async with asyncio.timeout(20):
                await scenario()
        finally:
            ranks.cancel()

    asyncio.run(both())


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers go on early without a second order."""
    monkeypatch.setattr(boundary, "AGREE_S", 0.2)


def test_the_answer_is_the_latest_boundary_at_which_a_worker_can_stop() -> None:
    """One after the last reached, for a worker in a step."""
    node = Node(Worker(3), Worker(5))
    assert asyncio.run(node.find()) == 6
    assert [worker.stop_at for worker in node.workers] == [1, 1]


def test_a_worker_that_waits_already_stops_where_it_is() -> None:
    """A second question, as of the next master, has the same answer."""
    node = Node(Worker(4), Worker(4))

    async def scenario() -> None:
        await node.find()
        await asyncio.sleep(0.02)
        assert await node.find() == 4

    run(node, scenario)


def test_workers_before_the_boundary_move_up_to_it() -> None:
    """All wait at the boundary of the second order, and the steps are in the answer."""
    node = Node(Worker(3), Worker(5))

    async def scenario() -> None:
        await node.find()
        assert await node.pause(8) == Performed(108, 8)
        assert [(w.reached, w.orders.read().waits) for w in node.workers] == [(8, True), (8, True)]
        await node.resume()
        await asyncio.sleep(0.02)
        assert all(worker.reached > 8 for worker in node.workers)

    run(node, scenario)


def test_a_worker_past_the_boundary_is_refused_and_all_go_on() -> None:
    """It cannot come back."""
    node = Node(Worker(3), Worker(5))

    async def scenario() -> None:
        await node.find()
        with pytest.raises(Refused, match=r"local rank 1 is past step boundary 4; it is at [56]"):
            await node.pause(4)
        assert not any(worker.stops for worker in node.workers)

    run(node, scenario)


@pytest.mark.parametrize("command", [PauseWorkers(round=ONE, boundary=9), SaveCheckpoint(round=ONE, boundary=9)])
def test_a_wait_ends_with_a_worker(command: object) -> None:
    """The other workers of its node go on; the agent reports the end as usual."""
    node = Node(Worker(3), Worker(3))

    async def scenario() -> None:
        await node.find()
        waiting = asyncio.create_task(node.perform(command))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        node.workers[0].alive = False
        with pytest.raises(Refused, match="the worker of local rank 0 has ended"):
            await waiting
        assert not node.workers[1].stops and not node.workers[1].words.must_save(9)

    run(node, scenario, node.workers[1])


def test_a_worker_has_ended_before_the_search() -> None:
    """No worker stays stopped for a boundary that will not be found."""
    node = Node(Worker(3), Worker(3))
    node.workers[1].alive = False
    with pytest.raises(Refused, match="the worker of local rank 1 has ended"):
        asyncio.run(node.find())
    assert not node.workers[0].stops


def test_workers_go_on_without_a_second_order(soon: None) -> None:
    """And a second order that comes later is refused: one of them may be in a step that others do not begin."""
    node = Node(Worker(3), Worker(3))

    async def scenario() -> None:
        found = await node.find()
        await asyncio.sleep(0.4)
        assert not any(worker.stops for worker in node.workers)
        for order in (node.pause, node.save):
            with pytest.raises(Refused, match="the workers have gone on"):
                await order(found + 1000)
        assert not any(worker.stops or worker.words.must_save(found + 1000) for worker in node.workers)

    run(node, scenario)


def test_a_second_order_ends_the_time_limit(soon: None) -> None:
    """A paused worker stays paused."""
    node = Node(Worker(3))

    async def scenario() -> None:
        await node.pause(await node.find())
        await asyncio.sleep(0.4)
        assert node.workers[0].orders.read().waits

    run(node, scenario)


def test_a_save_lets_a_running_job_go_on() -> None:
    """Every worker saves at the boundary, once."""
    node = Node(Worker(3), Worker(4))

    async def scenario() -> None:
        found = await node.find()
        assert (await node.save(found)).boundary == found
        assert [worker.orders.read().saved for worker in node.workers] == [found, found]
        assert not any(worker.stops or worker.words.must_save(found) for worker in node.workers)

    run(node, scenario)


def test_a_save_while_paused_keeps_the_pause(soon: None) -> None:
    """The workers save where they wait."""
    node = Node(Worker(3), Worker(4))

    async def scenario() -> None:
        found = await node.find()
        await node.pause(found)
        assert await node.find() == found
        await node.save(found)
        await asyncio.sleep(0.4)
        for worker in node.workers:
            state = worker.orders.read()
            assert (state.saved, state.reached, state.waits) == (found, found, True)

    run(node, scenario)


def test_a_paused_worker_saves_again_when_it_is_asked_again() -> None:
    """The save before failed, or was in memory alone."""
    worker = Worker(3)
    node = Node(worker)

    async def scenario() -> None:
        number = await node.find()
        await node.pause(number)
        worker.error = "disk full"
        with pytest.raises(Refused, match="disk full"):
            await node.save(number)
        worker.error = ""
        await node.perform(SaveCheckpoint(round=ONE, boundary=number, hold=True))
        assert worker.saved_in_memory
        await node.save(number)
        assert not worker.saved_in_memory
        assert worker.stop_at == number

    run(node, scenario)


@pytest.mark.parametrize("paused", [False, True])
def test_held_workers_save_in_memory_and_wait(soon: None, paused: bool) -> None:
    """Without an order to stop they go on, unless the job is paused; the next save is one to storage again."""
    node = Node(Worker(3), Worker(4))

    async def scenario() -> None:
        found = await node.find()
        if paused:
            await node.pause(found)
            await node.find()
        await node.perform(SaveCheckpoint(round=ONE, boundary=found, hold=True))
        states = [worker.orders.read() for worker in node.workers]
        assert {(state.saved, state.reached) for state in states} == {(found, found)}
        assert all(worker.stops and worker.saved_in_memory for worker in node.workers)
        await asyncio.sleep(0.4)
        assert [worker.stops for worker in node.workers] == [paused] * 2
        if not paused:
            await node.save(await node.find())
            assert not any(worker.saved_in_memory for worker in node.workers)

    run(node, scenario)


@pytest.mark.parametrize("paused", [False, True])
def test_the_error_of_a_save_is_the_reason_of_the_refusal(paused: bool) -> None:
    """With the rank; a paused job stays paused."""
    node = Node(Worker(3), Worker(3))
    node.workers[1].error = "OSError: no space left"

    async def scenario() -> None:
        found = await node.find()
        if paused:
            await node.pause(found)
        with pytest.raises(Refused, match="local rank 1 could not save: OSError: no space left"):
            await node.save(found)
        assert all(worker.stops == paused for worker in node.workers)

    run(node, scenario)


@pytest.mark.parametrize("command", [PauseWorkers(round=ONE), SaveCheckpoint(round=ONE)])
def test_an_order_without_a_boundary_is_refused(command: object) -> None:
    """And the workers that were stopped for it go on."""
    node = Node(Worker(3))

    async def scenario() -> None:
        await node.find()
        with pytest.raises(Refused, match="the order names no step boundary"):
            await node.perform(command)
        assert not node.workers[0].stops

    run(node, scenario)


@pytest.mark.parametrize(
    ("able", "command", "text"),
    [
        (SAVES, FindBoundary(round=ONE), "cannot wait at a step boundary"),
        (WAITS, SaveCheckpoint(round=ONE, boundary=9), "cannot save on request"),
    ],
)
def test_what_a_script_cannot_do_is_refused(able: int, command: object, text: str) -> None:
    """A script has changed since the abilities of the job were reported."""
    node = Node(Worker(3), Worker(3, able))

    async def scenario() -> None:
        if isinstance(command, SaveCheckpoint):
            await node.find()
        with pytest.raises(Refused, match=f"the script of local rank 1 {text}"):
            await node.perform(command)
        assert not any(worker.stops for worker in node.workers)

    run(node, scenario)


def test_a_new_round_forgets_the_pause(soon: None) -> None:
    """The pages of its workers are new: they are stopped, not taken for paused."""
    node = Node(Worker(3))

    async def scenario() -> None:
        await node.pause(await node.find())
        node.workers = (Worker(0),)
        await node.perform(FindBoundary(round=TWO))
        assert node.workers[0].stop_at == 1
        await asyncio.sleep(0.4)
        assert not node.workers[0].stops
        await node.perform(FindBoundary(round=TWO))
        with pytest.raises(Refused, match="the workers have gone on"):
            await node.perform(SaveCheckpoint(round=Round(3), boundary=500))

    run(node, scenario)


@pytest.mark.parametrize("save", [False, True])
def test_an_order_to_resume_ends_a_wait(save: bool) -> None:
    """A worker that does not come to the boundary, as in a long evaluation, must not pause or save later."""
    node = Node(Worker(3), Worker(3))
    slow, other = node.workers

    async def scenario() -> None:
        await node.find()
        waiting = asyncio.create_task((node.save if save else node.pause)(7))
        await asyncio.sleep(0.03)
        await node.resume()
        again = asyncio.create_task(node.find())
        with pytest.raises(Refused, match="a later order revoked it"):
            await waiting
        assert slow.stop_at == other.stop_at == 1, "the end of a revoked order changes nothing of a later one"
        assert not slow.words.must_save(7)
        await again

    run(node, scenario, other)


def test_no_worker_is_a_boundary_of_none() -> None:
    """The workers were stopped in between: the answer belongs to no order any more."""
    assert asyncio.run(Node().find()) == 0
