"""The replacer: orders from the log carried out at a platform, and what the platform knows made into facts."""

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
from ftcore.ports import CapacityChanged, NodeEnded, NodeWarned, Occupant
from ftcore.runtime.master import replacer as subject
from ftcore.runtime.master.replacer import Replacer
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
    state.actions[EFFECT] = ActionState(effect=EFFECT, command=command, waiting={PLATFORM: ""}, ordered=state.time)


class Desk:
    """A replacer with a platform in memory; keeps what it tells."""

    def __init__(self, state: JobState, platform: Any) -> None:
        self.told: list[Any] = []
        self.state = state
        self.platform = platform

        def tell(data: Any, holds: Callable[[], bool] = lambda: True) -> None:
            if holds():
                self.told.append(data)

        self.replacer = Replacer("test:", "job", tell, lambda: self.state, lambda url, job: platform)

    def attend(self) -> None:
        self.replacer.attend(self.state, self.state.time)

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
        task = asyncio.create_task(self.replacer.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.replacer.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60.0))  # type: ignore[arg-type]


def test_an_order_is_carried_out_once() -> None:
    """Cordon, launch and delete, then the answer; a next master that did not see the answer launches nothing more."""

    async def work() -> None:
        state, platform = a_job(), MemoryPlatform()
        ordered(state, "node1", isolate=True)
        first, second = Desk(state, platform), Desk(state, platform)
        for desk in (first, second):
            desk.attend()
            desk.attend()
            assert await desk.answer() == PlatformAnswered(effect=EFFECT, ok=True)
            desk.attend()
            await desk.replacer.close()
        assert platform.launched == [f"job/{EFFECT}/0"]
        assert platform.asked[:3] == [("cordon", "node1"), ("launch", "node1@1"), ("delete", "node1 in 30 s")]

    run(work)


def test_a_refusal_is_told_with_its_reason() -> None:
    """A platform without a machine is asked once."""

    async def work() -> None:
        state, platform = a_job(), MemoryPlatform(free=0)
        ordered(state, "node1")
        desk = Desk(state, platform)
        desk.attend()
        assert await desk.answer() == PlatformAnswered(effect=EFFECT, ok=False, reason="no machine is free")
        await desk.replacer.close()
        assert [method for method, _ in platform.asked] == ["launch", "close"]

    run(work)


@pytest.mark.parametrize("returns", [True, False])
def test_an_absence_is_waited_for(returns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an adapter raises, the order is tried until shortly before it fails; then the log can say why."""
    monkeypatch.setattr(subject, "AGAIN_S", (0.01, 0.02))

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
        assert answer.ok == returns and (returns or "it is away" in answer.reason)
        await desk.replacer.close()

    run(work)


def test_what_is_no_longer_ordered_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order that failed or was superseded is not tried any longer."""
    monkeypatch.setattr(subject, "AGAIN_S", (0.01, 0.02))

    async def work() -> None:
        state, platform = a_job(), MemoryPlatform()
        platform.away = True
        ordered(state, "node1")
        desk = Desk(state, platform)
        desk.attend()
        await asyncio.sleep(0)
        state.actions.clear()
        desk.attend()
        await desk.replacer.close()
        assert not desk.told

    run(work)


def test_what_the_platform_knows_becomes_facts() -> None:
    """The end of an agent and a notice are facts about the life that is meant, and of no other."""

    async def work() -> None:
        state, platform = a_job(), MemoryPlatform()
        node = state.nodes["node1"]
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
def test_a_repeated_end_is_not_that_of_who_has_the_name_now(anew: bool) -> None:
    """Without a pid it counts while one process alone has had the name; a new life of that very process is the same."""

    async def work() -> None:
        job = JobDriver(2, abilities=(Ability.REPLACE,))
        job.start()
        job.lose("node1")
        job.join("node1", pid=job.state.nodes["node1"].pid + anew)
        platform = MemoryPlatform()
        desk = Desk(job.state, platform)
        platform.tell(NodeEnded(node="node1", reason="its pod has ended"))
        platform.tell(NodeWarned(node="node1", reason="the spot is over", within_s=30.0))
        if anew:
            platform.tell(NodeEnded(node="node1", reason="OOM", pid=job.state.nodes["node1"].pid))
        async with desk.running():

            async def heard() -> bool:
                return bool(desk.of(NodeLost))

            await until(heard, "the end")
        (lost,) = desk.of(NodeLost)
        assert ("OOM" in lost.reason) == anew and len(desk.of(FaultObserved)) == (0 if anew else 1)

    run(work)


def test_the_ability_follows_the_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is declared in each run, taken back while no machine is free, and not repeated."""
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
                state.abilities["platform"] = names
            state.run += 1
            state.abilities.pop("platform")
            desk.attend()

            async def anew() -> bool:
                return len(desk.of(AbilityDeclared)) == 4

            await until(anew, "the next run")

    run(work)


def test_a_broken_adapter_is_only_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter that cannot be opened, or raises what it must not, costs its orders and nothing else."""
    monkeypatch.setattr(subject, "AGAIN_S", (0.01, 0.02))

    class Broken(MemoryPlatform):
        async def launch(self, effect: str, place: Occupant) -> None:
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


def test_who_still_trains_is_not_deleted() -> None:
    """A launch for a node that trains on deletes nothing; the order that follows once others are ready does."""

    async def work() -> None:
        state, platform = a_job(), MemoryPlatform()
        ordered(state, "node1", isolate=True, keep=True)
        desk = Desk(state, platform)
        desk.attend()
        assert await desk.answer() == PlatformAnswered(effect=EFFECT, ok=True)
        assert platform.asked == [("cordon", "node1"), ("launch", "node1@1")]
        command, effect = DeleteNodes(nodes=("node1",), isolate=True), "delete_nodes.1.6"
        state.actions = {effect: ActionState(effect=effect, command=command, waiting={PLATFORM: ""}, ordered=0)}
        desk.told.clear()
        desk.attend()
        assert await desk.answer() == PlatformAnswered(effect=effect, ok=True)
        await desk.replacer.close()
        assert platform.asked[2:4] == [("cordon", "node1"), ("delete", "node1 in 30 s")]
        assert len(platform.launched) == 1

    run(work)
