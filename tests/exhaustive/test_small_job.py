"""A job of two nodes, explored: every order of messages, doubled orders, crashes, and a master killed behind any write.

Breadth first over the states of master, agents and wires, with properties that hold always, that must hold sometimes,
and that must hold in the end whatever happened before. After stateright's explorer, in a hundred lines.
"""

import pickle
from collections import deque
from collections.abc import Callable

import pytest

from ftcore.commands import StartWorkers
from ftcore.engine import actions as act
from ftcore.engine import agent as core
from ftcore.engine.decide import turn
from ftcore.engine.master import answers_to, unanswered
from ftcore.engine.orders import Order
from ftcore.engine.turn import own_fact, sequence
from ftcore.events.deadline import DeadlineExpired
from ftcore.events.envelope import EventId, Fact
from ftcore.events.job import JobSpec, JobSubmitted
from ftcore.events.master import MasterElected
from ftcore.events.node import NodeJoined, NodeLost
from ftcore.events.world import WorldFormed
from ftcore.ids import Nanoseconds, Round, Term
from ftcore.policies.file.config import default_chain
from ftcore.ports import Progress, WorkerExit
from ftcore.states.fold import is_duplicate, next_deadline
from ftcore.states.job import ENDED
from ftcore.states.model import JobState

SPEC = JobSpec(argv=("train.py",), nodes_min=2, nodes_max=2)
PAGES = (Progress(steps=1, step=1, absolute=True, mono=1, loss=None),)
STATES_MAX, STATES_MAX_LONG = 1500, 6000
"""States whose every continuation is looked at, from each of two beginnings; the second with ``make long``."""

TROUBLES = ("exit", "kill", "lose", "double", "failover")


class Node:
    """An agent with its outbox, what it is doing, and the round whose workers live on it."""

    def __init__(self, name: str) -> None:
        self.name, self.lives = name, 0
        self.core = core.AgentCore(name, 1, SPEC.timing)
        self.outbox: list[Fact] = []
        self.doing: list[act.Action] = []
        self.alive = 0
        self.n = 0
        self.left = False
        self.begin()

    def begin(self) -> None:
        self.lives += 1
        self.n, self.doing, self.alive = 0, [], 0
        self.do(
            self.core.begin(
                NodeJoined(
                    node=self.name,
                    incarnation=f"{self.name}.{self.lives}",
                    slots=1,
                    host=self.name,
                    pid=1,
                    address=self.name,
                    version="v",
                )
            )
        )
        self.core.welcomed(Term(0))

    def do(self, actions: act.Actions) -> None:
        for action in actions:
            if isinstance(action, act.Tell | act.TellFailure):
                self.n += 1
                self.outbox.append(Fact(id=EventId(self.name, self.core.incarnation, self.n), data=action.data))
            elif isinstance(action, act.Leave):
                self.alive, self.left = 0, True
                self.do(self.core.farewell(action.outcome))
            else:
                if isinstance(action, act.StartRound):
                    assert not any(isinstance(other, act.StopRound) for other in self.doing)
                    self.alive = 0
                self.doing = [a for a in self.doing if not isinstance(a, act.StartRound)] + [action]

    def complete(self, action: act.Action) -> None:
        self.doing.remove(action)
        if isinstance(action, act.StartRound):
            self.alive = action.round
            self.do(self.core.started(action, (1,), "fork"))
        elif isinstance(action, act.StopRound):
            self.alive = 0
            self.do(self.core.stopped(action, (-15,)))
        elif isinstance(action, act.Open):
            self.do(self.core.store_opened(action, "h", action.round))

    def exit(self, code: int) -> None:
        ended = WorkerExit(round=Round(self.alive), local_rank=0, pid=1, exitcode=code, mono=1)
        self.alive = 0
        self.do(self.core.exited(ended, PAGES))


class World:
    """Master, agents and wires. ``left`` says how often each kind of trouble may still happen."""

    def __init__(self) -> None:
        self.state, self.term, self.now = JobState(), 1, 1_000_000_000
        self.nodes = {name: Node(name) for name in ("a", "b")}
        self.wire: list[tuple[str, str, Order]] = []
        self.known: set[str] = set()
        self.left = {"exit": 1, "kill": 1, "lose": 1, "double": 1, "failover": 1}
        self.own(MasterElected(host="h", pid=1, address="m", version="v"))
        self.own(default_chain())
        self.own(
            JobSubmitted(job="j", run=1, spec=SPEC, digest="d", command=(), versions={}, user="u@h"),
        )

    def key(self) -> str:
        state = self.state
        incident = state.incident
        plan = incident.plan if incident is not None else None
        return repr(
            (
                state.phase,
                state.rounds.newest,
                state.rounds.world.members if state.rounds.world is not None else (),
                [(n.node, n.incarnation, n.phase, n.round, n.stepped) for n in state.membership.nodes.values()],
                sorted((a.effect, sorted(a.waiting.items())) for a in state.orders.open.values()),
                (incident.phase, incident.revision) if incident is not None else (),
                plan.kind if plan is not None else "",
                sorted(state.deadlines),
                sorted(state.rounds.stores.items()),
                [
                    (n.core.snapshot(), n.alive, n.doing, [(f.id.n, f.type) for f in n.outbox])
                    for n in self.nodes.values()
                ],
                sorted((node, life, order.effect, order.term) for node, life, order in self.wire),
                sorted(self.left.items()),
            )
        )

    # -- the master

    def own(self, data: object, **how: bool) -> None:
        self.take(own_fact(data), **how)

    def take(self, fact: Fact, *, dies: bool = False) -> None:
        """The master takes a fact, writes, and tells; unless it dies behind the write."""
        if not is_duplicate(self.state, *fact.id):
            batch = turn(self.state, sequence(self.state, fact, now=Nanoseconds(self.now), term=Term(self.term)))
            self.known |= {event.data.effect for event in batch if event.type == "action.ordered"}
            assert all(event.type != "anomaly.observed" or "worker" in event.data.machine for event in batch), batch
            if any(isinstance(event.data, WorldFormed) for event in batch):
                self.check_formed()
            if not dies:
                for (node, life), orders in answers_to(self.state, batch).orders.items():
                    self.wire += [(node, life, order) for order in orders]
        if dies:
            self.term += 1
            self.own(MasterElected(host="h", pid=1, address="m", version="v"))
            for node in self.nodes.values():
                life = node.core.incarnation
                self.wire += [(node.name, life, order) for order in unanswered(self.state, node.name, life)]

    def check_formed(self) -> None:
        for node in self.nodes.values():
            if self.state.membership.current(node.name, node.core.incarnation) is not None:
                assert not node.alive, (
                    f"round {self.state.rounds.newest} is formed while {node.name} trains in {node.alive}"
                )

    def is_gone(self, node: Node) -> bool:
        found = self.state.membership.nodes.get(node.name)
        return found is not None and found.incarnation == node.core.incarnation and not found.alive

    # -- what may happen

    def choices(self) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = []
        for name, node in self.nodes.items():
            if node.outbox:
                found += [("fact", name), ("failover", name)]
            found += [("do", name, str(i)) for i in range(len(node.doing))]
            if self.is_gone(node) and not node.left:
                found.append(("rejoin", name))
            elif not node.left and name in self.state.membership.nodes:
                found += [("kill", name), ("lose", name)]
            if node.core.running:
                found += [("exit", name)] if node.alive else []
                found += [("look", name)] if node.core.awaits_steps and self.trains(node.alive) else []
        for i in range(len(self.wire)):
            found += [("order", str(i)), ("double", str(i))]
        return [choice for choice in found if self.left.get(choice[0], 1)]

    def trains(self, round_: int) -> bool:
        return all(node.alive == round_ for node in self.nodes.values())

    def act(self, kind: str, *about: str) -> None:
        if kind in self.left:
            self.left[kind] -= 1
        if kind in ("order", "double"):
            self.deliver(int(about[0]), keep=kind == "double")
            return
        node = self.nodes[about[0]]
        if kind == "fact":
            self.take(node.outbox.pop(0))
        elif kind == "failover":
            self.take(node.outbox[0], dies=True)
        elif kind == "do":
            node.complete(node.doing[int(about[1])])
        elif kind == "exit":
            node.exit(3)
        elif kind == "look":
            node.do(node.core.looked(PAGES, 0.0))
        elif kind == "lose":
            self.own(NodeLost(node=node.name, incarnation=node.core.incarnation, reason="silent"))
        else:
            if kind == "rejoin":
                node.core.refused("lost", rejoin=True)
            else:
                fresh = core.AgentCore(node.name, 1, SPEC.timing)
                node.core = fresh
            node.core.halt()
            node.begin()

    def deliver(self, place: int, *, keep: bool) -> None:
        name, life, order = self.wire[place] if keep else self.wire.pop(place)
        node = self.nodes[name]
        if life == node.core.incarnation:
            assert order.effect in self.known, "an order that is not in the log"
            before = node.core.round
            actions = node.core.obey(order)
            if any(isinstance(action, act.StartRound) for action in actions):
                assert isinstance(order.command, StartWorkers)
                assert order.command.round > before
            node.do(actions)

    # -- the end

    def settle(self) -> None:
        """No more trouble: everything arrives and is done, time passes, until the job trains or has ended."""
        for _ in range(400):
            calm = [choice for choice in self.choices() if choice[0] not in TROUBLES]
            if calm:
                self.act(*calm[0])
            elif self.at_rest():
                return
            else:
                coming = next_deadline(self.state)
                assert coming is not None, f"stuck: {self.key()}"
                self.now = max(self.now, coming[1])
                self.own(DeadlineExpired(key=coming[0], due=coming[1]))
        raise AssertionError(f"no rest: {self.key()}")

    def at_rest(self) -> bool:
        state = self.state
        if state.phase in ENDED:
            return not state.membership.alive()
        return state.phase == "running" and state.incident is None and self.trains(state.rounds.newest)


def running() -> World:
    """A job whose workers train."""
    world = World()
    world.settle()
    return world


@pytest.mark.longer
@pytest.mark.timeout(400)  # bound by the processor
@pytest.mark.parametrize(
    ("root", "reached"),
    [
        (World, {"job assembling", "job forming", "job starting", "job recovering", "round 2"}),
        (running, {"job running", "job recovering", "job forming", "round 2", "in the end running"}),
    ],
)
def test_whatever_happens_the_job_trains_on_or_ends(root: Callable[[], World], reached: set[str], longer: bool) -> None:
    """Always: what is done is in the log, no round is formed over a living one. Sometimes: phases. In the end: rest."""
    first = root()
    seen, frontier = {first.key()}, deque([pickle.dumps(first)])
    sometimes: set[str] = set()
    explored, most = 0, STATES_MAX_LONG if longer else STATES_MAX
    while frontier and explored < most:
        packed = frontier.popleft()
        explored += 1
        here: World = pickle.loads(packed)
        sometimes |= {f"job {here.state.phase}", f"round {here.state.rounds.newest}"}
        for choice in here.choices():
            after: World = pickle.loads(packed)
            after.act(*choice)
            key = after.key()
            if key not in seen:
                seen.add(key)
                frontier.append(pickle.dumps(after))
        if explored % 10 == 0:
            here.settle()
            sometimes |= {f"in the end {here.state.phase}", f"round {here.state.rounds.newest}"}
    assert sometimes >= reached
    assert explored == most
