"""The platform client: carries out orders from the log, and records what the platform reports."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ftcore.commands import PLATFORM, DeleteNodes, ReplaceNodes
from ftcore.events.node import NodeLost, PlatformAnswered
from ftcore.events.policy import AbilityDeclared
from ftcore.events.worker import FaultObserved
from ftcore.ids import seconds
from ftcore.policies.base import Ability
from ftcore.ports import CapacityChanged, LaunchRequest, NodeEnded, NodeWarned
from ftcore.runtime.master import platform_client as subject
from ftcore.runtime.master.platform_client import PlatformClient
from ftcore.states.model import ActionState, JobState
from ftcore.testing.driver import JobDriver
from ftcore.testing.platform import MemoryPlatform, until

EFFECT = "replace_nodes.1.5"


def a_job() -> JobState:
    job = JobDriver(2, abilities=(Ability.REPLACE,))
    job.start()
    return job.state


def ordered(state: JobState, *nodes: str, isolate: bool = False, keep: bool = False) -> None:
    command = ReplaceNodes(nodes=nodes, isolate=isolate, keep=keep)
    state.orders.open[EFFECT] = ActionState(effect=EFFECT, command=command, waiting={PLATFORM: ""}, ordered=state.time)


class Desk:
    """A platform client with a platform in memory; keeps the recorded facts."""

    def __init__(self, state: JobState, platform: Any) -> None:
        self.told: list[Any] = []
        self.state = state
        self.platform = platform

        def tell(data: Any, holds: Callable[[], bool] = lambda: True) -> None:
            if holds():
                self.told.append(data)

        self.client = PlatformClient(
            "test:", "job", tell, lambda: self.state, lambda url, job: platform, ("ftrun", "x.py")
        )

    def attend(self) -> None:
        self.client.reconcile(self.state, self.state.time)

    async def answer(self) -> PlatformAnswered:
        await until(self._answered, "an answer")
        found: PlatformAnswered = self.of(PlatformAnswered)[0]
        return found

    async def _answered(self) -> bool:
        return bool(self.of(PlatformAnswered))

    def of(self, kind: type[Any]) -> list[Any]:
        return [data for data in self.told if isinstance(data, kind)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.client.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.client.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60.0))  # type: ignore[arg-type]


def test_an_order_is_carried_out_once() -> None:
    """Cordon, launch and delete, then the answer; a new master that did not see the answer launches nothing more."""

    async def work() -> None:
        state, platform = a_job(), MemoryPlatform()
        ordered(state, "node1", isolate=True)
        first, second = Desk(state, platform), Desk(state, platform)
        for desk in (first, second):
            desk.attend()
            desk.attend()
            assert await desk.answer() == PlatformAnswered(effect=EFFECT, ok=True)
            desk.attend()
            await desk.client.close()
        assert platform.launched == [f"job/{EFFECT}/0"]
        assert platform.asked[:3] == [("cordon", "node1"), ("launch", "node1@1"), ("delete", "node1 in 30 s")]

    run(work)


def test_a_refusal_is_recorded_with_its_reason() -> None:
    """A platform without capacity is asked once."""

    async def work() -> None:
        state, platform = a_job(), MemoryPlatform(free=0)
        ordered(state, "node1")
        desk = Desk(state, platform)
        desk.attend()
        assert await desk.answer() == PlatformAnswered(effect=EFFECT, ok=False, reason="no machine is free")
        await desk.client.close()
        assert [method for method, _ in platform.asked] == ["launch", "close"]

    run(work)


@pytest.mark.parametrize("returns", [True, False])
def test_errors_are_retried_until_the_deadline(returns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any error of an adapter the order is retried until shortly before its deadline; then it is answered."""
    monkeypatch.setattr(subject, "BACKOFF_S", (0.01, 0.02))

    async def work() -> None:
        state, platform = a_job(), MemoryPlatform()
        platform.away = True
        ordered(state, "node1")
        state.deadlines[f"action/{EFFECT}"] = state.time + seconds(subject.MARGIN_S + (30.0 if returns else 0.2))
        desk = Desk(state, platform)
        desk.attend()

        async def tried() -> bool:
            return len(platform.asked) > 3

        await until(tried, "some tries")
        platform.away = not returns
        answer = await desk.answer()
        assert answer.ok == returns and (returns or "the platform is unreachable" in answer.reason)
        await desk.client.close()

    run(work)


def test_an_order_that_ended_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order that failed or was superseded is not retried."""
    monkeypatch.setattr(subject, "BACKOFF_S", (0.01, 0.02))

    async def work() -> None:
        state, platform = a_job(), MemoryPlatform()
        platform.away = True
        ordered(state, "node1")
        desk = Desk(state, platform)
        desk.attend()
        await asyncio.sleep(0)
        state.orders.open.clear()
        desk.attend()
        await desk.client.close()
        assert not desk.told

    run(work)


def test_reports_of_the_platform_become_facts() -> None:
    """The end of an agent and a preemption notice apply only to the incarnation that they name."""

    async def work() -> None:
        state, platform = a_job(), MemoryPlatform()
        node = state.membership.nodes["node1"]
        desk = Desk(state, platform)
        for happening in (
            NodeEnded(node="node1", reason="an older agent", pid=node.pid + 1),
            NodeEnded(node="nobody", reason="x"),
            NodeWarned(node="node1", reason="the spot is\nover", within_s=30.0),
            NodeEnded(node="node1", reason="OOM", pid=node.pid),
        ):
            platform.tell(happening)
        async with desk.running():

            async def heard() -> bool:
                return bool(desk.of(NodeLost)) and bool(desk.of(AbilityDeclared))

            await until(heard, "the facts")
        (lost,), (warned,) = desk.of(NodeLost), desk.of(FaultObserved)
        assert (lost.node, lost.incarnation) == ("node1", node.incarnation) and "OOM" in lost.reason
        assert (warned.kind, warned.source, warned.values) == ("preemption-notice", "platform", {"within_s": 30.0})

    run(work)


@pytest.mark.parametrize("anew", [True, False])
def test_a_repeated_end_does_not_end_a_later_incarnation(anew: bool) -> None:
    """Without a pid it counts only if one process has had the name; later incarnations of that process count."""

    async def work() -> None:
        job = JobDriver(2, abilities=(Ability.REPLACE,))
        job.start()
        job.lose("node1")
        job.join("node1", pid=job.state.membership.nodes["node1"].pid + anew)
        platform = MemoryPlatform()
        desk = Desk(job.state, platform)
        platform.tell(NodeEnded(node="node1", reason="its pod has ended"))
        platform.tell(NodeWarned(node="node1", reason="the spot is over", within_s=30.0))
        if anew:
            platform.tell(NodeEnded(node="node1", reason="OOM", pid=job.state.membership.nodes["node1"].pid))
        async with desk.running():

            async def heard() -> bool:
                return bool(desk.of(NodeLost))

            await until(heard, "the end")
        (lost,) = desk.of(NodeLost)
        assert ("OOM" in lost.reason) == anew and len(desk.of(FaultObserved)) == (0 if anew else 1)

    run(work)


def test_the_ability_follows_the_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is declared in each run, withdrawn while there is no capacity, and not repeated."""
    monkeypatch.setattr(subject, "DECLARE_S", 0.01)

    async def work() -> None:
        state, platform = a_job(), MemoryPlatform()
        desk = Desk(state, platform)
        async with desk.running():
            for free, names in ((None, ("replace",)), (0, ()), (3, ("replace",))):
                platform.tell(CapacityChanged(free=free))
                platform.tell(CapacityChanged(free=free))

                async def declared(names: tuple[str, ...] = names) -> bool:
                    found = desk.of(AbilityDeclared)
                    return bool(found) and found[-1].abilities == names

                await until(declared, f"{names}")
                state.abilities.declared["platform"] = names
            state.run += 1
            state.abilities.declared.pop("platform")
            desk.attend()

            async def anew() -> bool:
                return len(desk.of(AbilityDeclared)) == 4

            await until(anew, "the next run")

    run(work)


def test_a_broken_adapter_is_only_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter that cannot be opened, or raises an unexpected error, affects only its own orders."""
    monkeypatch.setattr(subject, "BACKOFF_S", (0.01, 0.02))

    class Broken(MemoryPlatform):
        async def launch(self, request: LaunchRequest) -> None:
            raise ZeroDivisionError("a bug")

        def watch(self) -> Any:
            self.asked.append(("watch", ""))
            raise ZeroDivisionError("a bug")

    async def work() -> None:
        state, platform = a_job(), Broken()
        ordered(state, "node1")
        state.deadlines[f"action/{EFFECT}"] = state.time + seconds(subject.MARGIN_S + 0.1)
        desk = Desk(state, platform)
        async with desk.running():
            desk.attend()
            answer = await desk.answer()
        assert not answer.ok and "ZeroDivisionError: a bug" in answer.reason
        assert platform.asked.count(("watch", "")) > 1

    run(work)


def test_a_request_describes_the_node_that_it_replaces() -> None:
    """An adapter without knowledge of the job can launch an equal node."""

    async def work() -> None:
        state, platform = a_job(), MemoryPlatform()
        state.membership.nodes["node1"].labels, state.membership.nodes["node1"].accelerators = {"switch": "s1"}, 8
        ordered(state, "node1")
        desk = Desk(state, platform)
        desk.attend()
        assert (await desk.answer()).ok
        (request,) = platform.requests
        assert request.argv == ("ftrun", "x.py") and request.labels == {"switch": "s1"} and request.count == 1
        assert request.resources == {"workers": state.membership.nodes["node1"].slots, "accelerators": 8}
        assert request.replaces is not None and request.replaces.node == "node1"

    run(work)


def test_a_training_node_is_not_deleted() -> None:
    """A launch for a node that keeps training deletes nothing; the later order does."""

    async def work() -> None:
        state, platform = a_job(), MemoryPlatform()
        ordered(state, "node1", isolate=True, keep=True)
        desk = Desk(state, platform)
        desk.attend()
        assert await desk.answer() == PlatformAnswered(effect=EFFECT, ok=True)
        assert platform.asked == [("cordon", "node1"), ("launch", "node1@1")]
        command, effect = DeleteNodes(nodes=("node1",), isolate=True), "delete_nodes.1.6"
        state.orders.open = {effect: ActionState(effect=effect, command=command, waiting={PLATFORM: ""}, ordered=0)}
        desk.told.clear()
        desk.attend()
        assert await desk.answer() == PlatformAnswered(effect=effect, ok=True)
        await desk.client.close()
        assert platform.asked[2:4] == [("cordon", "node1"), ("delete", "node1 in 30 s")]
        assert len(platform.launched) == 1

    run(work)
