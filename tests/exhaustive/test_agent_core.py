"""Every order, answer and loss is fed to every state that an agent's core reaches with them, in every order."""

import copy
from collections import deque

from ftcore.commands import (
    CheckHealth,
    Command,
    OpenStore,
    ParkWorkers,
    PauseWorkers,
    ReleaseNode,
    SaveCheckpoint,
    StartWorkers,
    StopWorkers,
)
from ftcore.engine import actions as act
from ftcore.engine import agent as core
from ftcore.engine.orders import Order, Slice
from ftcore.engine.stragglers import PagePace
from ftcore.events.node import NodeJoined
from ftcore.events.worker import WorkersStarted, WorkersStopped
from ftcore.ids import EffectId, Round, Term
from ftcore.ports import Performed, Progress, WorkerExit
from ftcore.states.agent import AgentPhase
from ftcore.timing import Timing

PART = Slice(
    group_rank=0,
    base_rank=0,
    slots=1,
    size=1,
    role_base_rank=0,
    role_size=1,
    nodes=1,
    store_host="h",
    store_port=1,
    restart_count=0,
    max_restarts=1,
)
TIMING = Timing()
PAGES = (Progress(steps=2, step=2, absolute=True, mono=1, loss=None),)
COMMANDS = (
    StartWorkers(round=Round(1)),
    StopWorkers(round=Round(1), grace_s=1.0),
    StartWorkers(round=Round(2)),
    StopWorkers(round=Round(2), grace_s=1.0),
    OpenStore(round=Round(2)),
    PauseWorkers(round=Round(1)),
    CheckHealth(round=Round(2)),
    ReleaseNode(outcome="succeeded", exit_code=0, reason="done"),
)
IN_PLACE = (
    ParkWorkers(round=Round(1), grace_s=1.0),
    ParkWorkers(round=Round(1), grace_s=2.0),
    SaveCheckpoint(round=Round(1)),
    StopWorkers(round=Round(1), grace_s=1.0),
    StartWorkers(round=Round(2)),
)


def orders(commands: tuple[Command, ...], terms: tuple[int, ...]) -> tuple[Order, ...]:
    return tuple(
        Order(effect=EffectId(f"e{number}.{term}"), term=Term(term), command=command, slice=PART)
        for number, command in enumerate(commands)
        for term in terms
    )


def joined(life: str) -> NodeJoined:
    return NodeJoined(node="a", incarnation=life, slots=1, host="h", pid=1, address="x", version="v")


class Explored:
    """A core with what its owner still has to answer, and what a witness saw: rounds whose workers live."""

    def __init__(self, given: tuple[Order, ...]) -> None:
        self.core = core.AgentCore("a", 1, TIMING, able=(PauseWorkers, CheckHealth, ParkWorkers, SaveCheckpoint))
        self.given = given
        self.open: list[act.Action] = []
        self.alive: set[int] = set()
        self.obeyed = (0, 0)
        self.do(self.core.begin(joined("1")))

    def copy(self) -> "Explored":
        """One that goes its own way: containers are copied, what is in them never changes."""
        made = copy.copy(self)
        made.open, made.alive, made.core = [*self.open], {*self.alive}, copy.copy(self.core)
        for name, value in vars(self.core).items():
            if isinstance(value, list | set | dict):
                setattr(made.core, name, copy.copy(value))
            elif isinstance(value, PagePace):
                setattr(made.core, name, copy.deepcopy(value))
        return made

    def key(self) -> str:
        return repr((sorted(self.core.snapshot().items()), self.open, sorted(self.alive)))

    def do(self, actions: act.Actions) -> None:
        for action in actions:
            if isinstance(action, act.StartRound):
                self.alive.clear()  # by its contract a supervisor ends an older round first
                assert not any(isinstance(other, act.StopRound) for other in self.open), "started while stopping"
                self.open = [other for other in self.open if not isinstance(other, act.StartRound)]
            if isinstance(action, act.StopRound):
                self.open = [other for other in self.open if not isinstance(other, act.StartRound)]
            if isinstance(action, act.StartRound | act.StopRound | act.Open | act.Perform):
                self.open.append(action)
            if isinstance(action, act.Rejoin):
                self.core.halt()
                self.alive, self.open, self.obeyed = set(), [], (0, 0)
                self.do(self.core.begin(joined(self.core.incarnation + "+")))

    def inputs(self) -> list[tuple[str, object]]:
        phase = self.core.phase
        found: list[tuple[str, object]] = [("answer", action) for action in self.open]
        found += [("fail", action) for action in self.open if not isinstance(action, act.StopRound)]
        if phase is AgentPhase.FOLLOWING:
            found += [("order", order) for order in self.given]
            found += [("break", None)]
        if phase in (AgentPhase.CONNECTING, AgentPhase.ORPHANED):
            found += [("welcome", None)]
        if phase is AgentPhase.ORPHANED:
            found += [("wait", None)]
        if phase is not AgentPhase.LEAVING and len(self.core.incarnation) < 2:
            found += [("refuse", None)]
        if self.alive:
            found += [("exit", 0), ("exit", 1)]
        return found

    def feed(self, kind: str, what: object) -> None:
        known = self.core
        if kind == "order":
            assert isinstance(what, Order)
            self.feed_order(what)
        elif kind == "answer" or kind == "fail":
            self.open.remove(what)  # type: ignore[arg-type]
            self.do(self.answer(what, failed=kind == "fail"))
        elif kind == "break":
            self.do(known.stream_broken())
        elif kind == "welcome":
            self.do(known.welcomed(Term(1)))
        elif kind == "wait":
            known.looked_up(0.0, True)
            self.do(known.waited(1000.0, (None,)))
            known.looked_up(1000.0, False)
        elif kind == "refuse":
            self.do(known.refused("lost", rejoin=True))
        elif kind == "exit":
            ended = WorkerExit(round=Round(max(self.alive)), local_rank=0, pid=1, exitcode=int(str(what)), mono=1)
            self.alive.clear()
            self.do(known.exited(ended, PAGES))

    def feed_order(self, order: Order) -> None:
        known = self.core
        actions = known.obey(order)
        round_ = getattr(order.command, "round", 0)
        if any(isinstance(action, act.StartRound | act.StopRound) for action in actions):
            assert (order.term, round_) >= (self.obeyed[0], 0), "an older term was obeyed"
            assert round_ >= self.obeyed[1], "an older round was obeyed"
            self.obeyed = (order.term, round_)
        before = repr(known.snapshot())
        assert known.obey(order) == [], "an order was carried out twice"
        assert repr(known.snapshot()) == before
        self.do(actions)

    def answer(self, action: object, *, failed: bool) -> act.Actions:
        known = self.core
        if isinstance(action, act.StartRound):
            if failed:
                return known.unstartable(action, "no")
            self.alive.add(action.round)
            actions = known.started(action, (1,), "fork")
            assert [type(tell.data) for tell in actions if isinstance(tell, act.Tell)] == [WorkersStarted]
            return actions
        if isinstance(action, act.StopRound):
            self.alive.clear()
            actions = known.stopped(action, (0,))
            (told,) = [tell.data for tell in actions if isinstance(tell, act.Tell)]
            assert isinstance(told, WorkersStopped)
            assert told.round >= action.round
            return actions
        if isinstance(action, act.Open):
            return known.store_failed(action, "no") if failed else known.store_opened(action, "h", 1)
        assert isinstance(action, act.Perform)
        return known.failed_to(action, "no") if failed else known.performed(action, Performed(1))


def explore(first: Explored) -> tuple[set[str], set[str]]:
    """All states at most four inputs away, and which kinds of states were among them."""
    seen, frontier = {first.key()}, deque([(first, 0)])
    sometimes: set[str] = set()
    while frontier:
        here, depth = frontier.popleft()
        before = here.key()
        for kind, what in here.inputs():
            after = here.copy()
            after.feed(kind, what)
            assert len(after.alive) <= 1
            assert not (after.core.running and any(isinstance(other, act.StopRound) for other in after.open))
            sometimes |= {str(after.core.phase), str(after.core.work)}
            key = after.key()
            if key not in seen and depth < 4:
                seen.add(key)
                frontier.append((after, depth + 1))
        assert here.key() == before, "a copy shares state with what it was made from"
    return seen, sometimes


def test_no_order_of_events_confuses_the_core():
    """Nothing older is obeyed, nothing twice; one round's workers at a time; what runs is known to run."""
    first = Explored(orders(COMMANDS, (1, 2)))
    first.feed("welcome", None)
    seen, sometimes = explore(first)
    assert sometimes >= {"started", "idle", "following", "orphaned", "leaving", "connecting"}
    assert len(seen) > 1000


def test_no_order_of_orders_in_place_confuses_the_core():
    """Workers that run are asked to save and to park, more than once: by masters that follow each other, say."""
    first = Explored(orders((*IN_PLACE, StartWorkers(round=Round(1))), (1,)))
    first.feed("welcome", None)
    first.feed("order", first.given[-1])
    first.feed("answer", first.open[0])
    seen, sometimes = explore(first)
    assert sometimes >= {"started", "idle", "parked", "finished", "starting"}
    assert len(seen) > 500
