"""A job without processes: drives the production engine with simulated nodes.

For tests of policies, launchers and tools: inject facts about nodes, read the master's decisions. Virtual time advances
by ``tick_s`` with every fact, and to the next deadline on ``wait``; nothing here reads a clock.

    driver = JobDriver(nodes=2)
    driver.start()
    driver.fail("node1", exitcode=-9)
    driver.settle()
    assert driver.state.phase == "running"
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ftcore.commands import (
    AskPolicy,
    CheckHealth,
    DeleteNodes,
    ParkWorkers,
    ReleaseNode,
    ReplaceNodes,
    SaveCheckpoint,
    StartWorkers,
    StopWorkers,
    tag_of,
)
from ftcore.engine.actions import Findings
from ftcore.engine.decide import turn
from ftcore.engine.orders import Order, order_for
from ftcore.engine.turn import own_fact, sequence
from ftcore.errors import UsageError
from ftcore.events.checkpoint import CheckpointCommitted, HeldShard
from ftcore.events.deadline import DeadlineExpired
from ftcore.events.envelope import At, Event, EventId, Fact
from ftcore.events.job import JobSpec, JobSubmitted
from ftcore.events.master import MasterElected
from ftcore.events.node import NodeJoined, NodeLost, NodeWarmed
from ftcore.events.operator import OperatorCommanded
from ftcore.events.policy import AbilityDeclared, PolicyLoaded
from ftcore.events.worker import FaultObserved, WorkerError, WorkerFailed, WorkersFinished
from ftcore.ids import Nanoseconds, Term, seconds
from ftcore.policies.base import Ability, Policy
from ftcore.policies.external import ask
from ftcore.policies.file.config import default_chain
from ftcore.sim.responder import HEALTHY, answer, failure, stepped
from ftcore.states.fold import next_deadline
from ftcore.states.model import JobState, to_json
from ftcore.states.phases import has_ended
from ftcore.states.revisions import NEWEST
from ftcore.states.worker import WorkerPhase
from ftcore.version import __version__

EPOCH_NS = 1_700_000_000_000_000_000


class JobDriver:
    """A job with simulated nodes.

    Args:
        nodes: number of nodes of the job.
        slots: workers per node.
        spec: the job's spec, instead of the default.
        policy: the chain, instead of the default.
        tick_s: seconds of virtual time between two facts.
        abilities: abilities of the job's platform and script (``policies.base.Ability``).
        external: policies that are not part of ftcore, by name; they run in this process.
        launch: ID of the launch that started all nodes.
        decides: revision of the decision rules (``states/revisions.py``).

    Attributes:
        refuses: kinds of orders (``park_workers``) that a node does not carry out, by node; ``*``: every node. It
            answers as in production: a failed start or store, or a refusal.
        health: result of a node's health check, if not ``healthy``: ``faulty``, ``failed``, ``unavailable``, ``slow``,
            ``unreachable`` (no data exchange with any node), or ``apart`` (data exchange in pairs, but not with all
            nodes of its switch at once).
        cut: pairs of nodes without data exchange in a health check.
        capacity: number of replacements that the platform can launch.
        slow_platform: replacements join only on ``join``, not at once.
    """

    def __init__(
        self,
        nodes: int = 2,
        slots: int = 1,
        *,
        spec: JobSpec | None = None,
        policy: PolicyLoaded | None = None,
        tick_s: float = 0.001,
        abilities: Sequence[str] = (),
        external: Mapping[str, Policy] | None = None,
        launch: str = "",
        decides: int = NEWEST,
    ) -> None:
        self.spec = spec or JobSpec(argv=("train.py",), nodes_min=nodes, nodes_max=nodes)
        self.policy = policy or default_chain()
        self.slots = slots
        self.tick = seconds(tick_s)
        self.now = EPOCH_NS
        self.term = Term(1)
        self.state = JobState()
        self.events: list[Event] = []
        self.groups: list[list[Event]] = []
        self.step = 0
        self._incarnations: dict[str, int] = {}
        self._said: dict[tuple[str, str], int] = {}
        self._silent: set[str] = set()
        self._parked: set[str] = set()
        self.abilities = tuple(map(str, abilities))
        self.external = dict(external or {})
        self.refuses: dict[str, tuple[str, ...]] = {}
        self.health: dict[str, str] = {}
        self.cut: set[frozenset[str]] = set()
        self.capacity = 1000
        self.slow_platform = False
        self._launched = 0
        self._launch = launch
        self._decides = decides

    # -- facts

    def own(self, data: Any) -> list[Event]:
        """Record a fact from the master; returns the group."""
        return self._turn(own_fact(data))

    def say(self, node: str, data: Any) -> list[Event]:
        """Record a fact from a node; returns the group."""
        key = (node, self._incarnation(node))
        self._said[key] = self._said.get(key, 0) + 1
        at = At(wall=self.now, mono=self.now - EPOCH_NS, boot="boot")
        return self._turn(Fact(id=EventId(*key, self._said[key]), data=data, at=at))

    def _turn(self, fact: Fact) -> list[Event]:
        self.now += self.tick
        group = turn(self.state, sequence(self.state, fact, now=Nanoseconds(self.now), term=self.term))
        self.events += group
        self.groups.append(group)
        return group

    def _incarnation(self, node: str) -> str:
        return f"{node}-{self._incarnations[node]}"

    # -- scenario

    def submit(self) -> None:
        """Elect a master and submit the job."""
        self.own(MasterElected(host="host", pid=1, address="unix:master", version=__version__, decides=self._decides))
        self.own(
            JobSubmitted(
                job="job",
                run=self.state.run + 1,
                spec=self.spec,
                digest="digest",
                command=("ftrun",),
                versions={},
                user="user@host",
                launch=self._launch,
            )
        )
        self.own(self.policy)
        if self.abilities:
            self.own(AbilityDeclared(source="driver", abilities=self.abilities))

    def start(self) -> None:
        """Submit the job, let all nodes join, and settle until it runs."""
        self.submit()
        for number in range(self.spec.nodes_max):
            self.join(f"node{number}")
        self.settle()

    def join(
        self,
        node: str,
        *,
        slots: int = 0,
        ordinal: int | None = None,
        labels: dict[str, str] | None = None,
        pid: int = 100,
        warms: bool = False,
        copies_port: int = 0,
        log: str = "",
        shards: tuple[HeldShard, ...] = (),
    ) -> None:
        """A node, or a new incarnation of it, joins; default: common slots, no place, no labels, warm, no copies."""
        self._incarnations[node] = self._incarnations.get(node, 0) + 1
        self._silent.discard(node)
        self._parked.discard(node)
        self.say(
            node,
            NodeJoined(
                node=node,
                incarnation=self._incarnation(node),
                slots=slots or self.slots,
                host="host",
                pid=pid,
                address="127.0.0.1",
                version=__version__,
                ordinal=ordinal,
                labels=labels or {},
                accelerators=self.slots,
                checks=Ability.CHECK in self.abilities,
                warms=warms,
                copies_port=copies_port,
                log=log,
                shards=shards,
            ),
        )

    def warm(self, node: str) -> None:
        """The node reports that it can start workers warm."""
        self.say(node, NodeWarmed(node=node, incarnation=self._incarnation(node)))

    def fail(self, node: str, *, local_rank: int = 0, exitcode: int = 1, message: str = "", tail: str = "") -> None:
        """A worker of the node fails after the last completed step."""
        self._parked.discard(node)
        found = self.state.membership.nodes[node]
        self.say(
            node,
            WorkerFailed(
                node=node,
                incarnation=found.incarnation,
                round=found.round,
                rank=self._base_rank(node) + local_rank,
                local_rank=local_rank,
                pid=1000 + local_rank,
                exitcode=exitcode,
                error=WorkerError(message=message) if message else None,
                tail=tail,
                step=self.step or None,
                absolute=True,
            ),
        )

    def observe(
        self, node: str, kind: str, *, local_rank: int = 0, message: str = "", values: dict[str, float] | None = None
    ) -> None:
        """A worker reports a fault of a kind (see ``FaultObserved``) in a rank, after the last completed step."""
        found = self.state.membership.nodes[node]
        self.say(
            node,
            FaultObserved(
                node=node,
                incarnation=found.incarnation,
                round=found.round,
                source="worker",
                kind=kind,
                rank=self._base_rank(node) + local_rank,
                message=message or kind,
                step=self.step or None,
                absolute=True,
                values=values or {},
            ),
        )

    def _base_rank(self, node: str) -> int:
        assert self.state.rounds.world is not None
        return next(member.base_rank for member in self.state.rounds.world.members if member.node == node)

    def command(self, command: str, node: str = "", who: str = "user@host", why: str = "") -> None:
        """An operator sends a request."""
        self.own(OperatorCommanded(command=command, who=who, why=why, node=node))

    def commit(self, step: int | None = None) -> None:
        """A checkpoint of a step (default: the last completed one) is committed."""
        assert self.state.rounds.world is not None
        self.own(CheckpointCommitted(round=self.state.rounds.world.round, step=self.step if step is None else step))

    def lose(self, node: str, reason: str = "no frame for 2 s") -> None:
        """The master declares a node lost."""
        self._silent.add(node)
        self.own(NodeLost(node=node, incarnation=self._incarnation(node), reason=reason))

    def silence(self, node: str) -> None:
        """The node stops answering orders."""
        self._silent.add(node)

    def stop(self, who: str = "user@host", exit_code: int = 5) -> None:
        """An operator stops the job."""
        self.own(OperatorCommanded(command="stop", who=who, exit_code=exit_code))

    def finish(self) -> None:
        """All workers end with exit code 0."""
        for node in list(self.state.membership.nodes.values()):
            if node.alive:
                self.say(
                    node.node,
                    WorkersFinished(node=node.node, incarnation=node.incarnation, round=node.round, step=self.step),
                )

    def wait(self) -> bool:
        """Advance virtual time to the next deadline; returns False if there is none."""
        coming = next_deadline(self.state)
        if coming is None:
            return False
        key, time = coming
        self.now = max(self.now, time)
        self.own(DeadlineExpired(key=key, due=time))
        return True

    # -- orders

    def settle(self, *, step: bool = True) -> None:
        """Let the nodes answer orders until none are pending; then, if ``step``, complete a step."""
        answers = max(1000, 4 * self.spec.nodes_max)
        for _ in range(answers):
            if not self._obey_once():
                break
        else:
            raise UsageError(f"the job does not settle: orders are still pending after {answers} answers")
        if step and self.state.phase == "running" and self.state.rounds.world is not None:
            self.make_steps(1)

    def make_steps(self, count: int) -> None:
        """All members complete ``count`` steps."""
        self.step += count
        for node in self.state.membership.alive():
            if node.phase == "running" and node.stepped is None:
                self.say(node.node, stepped(node, self.step))

    def _obey_once(self) -> bool:
        for action in list(self.state.orders.open.values()):
            for node in list(action.waiting):
                if node not in self._silent:
                    self.obey(node, order_for(self.state, action, node))
                    return True
        return False

    def obey(self, node: str, order: Order) -> None:
        """Let a node, or the platform, answer an order."""
        command, effect, found = order.command, order.effect, self.state.membership.nodes.get(node)
        if tag_of(command) in self.refuses.get(node, self.refuses.get("*", ())):
            self.say(node, failure(command, effect, found, f"cannot {tag_of(command)}"))
        elif isinstance(command, AskPolicy):
            self.own(self._advised(command, effect))
        elif isinstance(command, ReplaceNodes):
            self._replace(command, effect)
        elif isinstance(command, DeleteNodes):
            self.own(answer(command, effect, found))
        else:
            self._obey(node, order)

    def _obey(self, node: str, order: Order) -> None:
        command, effect, found = order.command, order.effect, self.state.membership.nodes[node]
        if order.slice is not None and order.slice.resume_step is not None:
            self.step = order.slice.resume_step
        if isinstance(command, ReleaseNode):
            self._silent.add(node)
        findings = self._findings(node, command) if isinstance(command, CheckHealth) else HEALTHY
        how = "parked" if node in self._parked else "fork"
        if isinstance(command, ParkWorkers) and WorkerPhase.EXITED not in found.workers:
            self._parked.add(node)
        elif isinstance(command, StartWorkers | StopWorkers):
            self._parked.discard(node)
        self.say(node, answer(command, effect, found, step=self.step or None, how=how, findings=findings))
        action = self.state.orders.open.get(effect)
        if isinstance(command, SaveCheckpoint) and not command.hold and (action is None or not action.waiting):
            self.commit()

    def _findings(self, node: str, command: CheckHealth) -> Findings:
        said = self.health.get(node, "healthy")
        verdict = "healthy" if said in ("slow", "unreachable", "apart") else said
        group = command.groups[0] if command.groups and command.store else ()
        bad = ("unreachable", "apart") if command.label else ("unreachable",)
        broken = any(self.health.get(name) in bad for name in group) or any(two <= set(group) for two in self.cut)
        return Findings(
            verdict=verdict,
            detail=f"matmul is {verdict}",
            exchange="" if not group else "failed" if broken else "passed",
            device_s=9.0 if said == "slow" else 1.0,
        )

    def _replace(self, command: ReplaceNodes, effect: str) -> None:
        if len(command.nodes) > self.capacity:
            self.own(failure(command, effect, None, "no capacity"))
            return
        self.own(answer(command, effect, None))
        for name in command.nodes:
            self.capacity -= 1
            self._launched += 1
            if not self.slow_platform:
                self.join(f"{name}.{self._launched}")

    def _advised(self, command: AskPolicy, effect: str) -> Any:
        policy, known = self.external.get(command.policy), self.state.incident
        if policy is None or known is None:
            why = "the policy is not in JobDriver.external" if policy is None else "the incident is over"
            return failure(command, effect, None, why)
        chain = self.state.policy.chain
        entry = next(entry for entry in chain if entry.policy == command.policy and entry.is_for(known.fault.cls))
        return ask(policy, to_json(self.state), entry.options, effect)

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return has_ended(self.state)
