"""Campaign: months of a job of thousands of nodes in virtual time, decided by the production engine.

Between two faults, training is accounted in closed form (``training.py``). A fault reaches the engine as the fact by
which production would report it (``sim/evidence.py``), after its detection time. Every addressed node answers an order
(``nodes.py``) with a fact and a turn of its own, after the time that the order takes (``sim/cost.py``). The engine and
the policies decide everything else.

The campaign models the environment: machines that stay faulty, a platform that replaces nodes, a launcher that
restarts lost nodes, an operator who resubmits an ended job.

- The engine sees only facts; the campaign reads the state only to know its orders.
- Only the trace of faults is random, so all policies meet the same faults at the same times.
- The clock of the campaign starts with the first training step; the first start costs nothing.

Not modeled, and therefore free: heartbeats, failures of the master, progress samples (one is reported with each fault
and before each checkpoint, so that the engine knows the step). At most one checkpoint per minute is reported.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ftcore import __version__
from ftcore.commands import (
    AskPolicy,
    CheckHealth,
    Command,
    DeleteNodes,
    OpenStore,
    ParkWorkers,
    PauseWorkers,
    ReleaseNode,
    ReplaceNodes,
    SaveCheckpoint,
    StartWorkers,
    StopWorkers,
)
from ftcore.events.action import ActionOrdered
from ftcore.events.checkpoint import CheckpointCommitted, StateLoaded
from ftcore.events.deadline import DeadlineExpired
from ftcore.events.envelope import Event
from ftcore.events.job import JobFinished, JobProgressed, JobRolledBack, JobSubmitted
from ftcore.events.master import MasterElected
from ftcore.events.policy import AbilityDeclared
from ftcore.events.world import RoundStarted
from ftcore.ids import SECOND, seconds
from ftcore.sim.campaign.machines import CampaignConfig, MachineWheel
from ftcore.sim.campaign.nodes import SimNode
from ftcore.sim.campaign.training import Training
from ftcore.sim.campaign.uses import lost_use
from ftcore.sim.campaign.wheel import Sink
from ftcore.sim.cost import DETECTIONS
from ftcore.sim.evidence import JOIN, KINDS, FaultKind, fact_of
from ftcore.sim.responder import answer, failure, stepped
from ftcore.sim.trace import TraceFault
from ftcore.states.fold import next_deadline
from ftcore.states.job import ENDED, JobPhase
from ftcore.states.node import ACTIVE
from ftcore.states.revisions import NEWEST
from ftcore.states.worker import WorkerPhase

DAY_S = 86400.0
REPORT_INTERVAL_S = 60.0
"""Shortest interval between reported checkpoints."""

_COSTS: dict[type[Any], str] = {
    StopWorkers: "stop",
    ParkWorkers: "park",
    OpenStore: "store",
    StartWorkers: "start",
    CheckHealth: "check",
    SaveCheckpoint: "save",
}
"""The duration of an order; any other is ``in_place``."""

TURNS_AT_ONCE_MAX = 10_000_000
"""Most turns at one moment of virtual time; more count as an endless loop."""


class Campaign(MachineWheel):
    """A campaign; ``run`` executes it.

    Args:
        setting: parameters.
        faults: the faults, in order of time.
        sinks: called with every group of events.
    """

    def __init__(self, setting: CampaignConfig, faults: Iterable[TraceFault], *sinks: Sink) -> None:
        super().__init__(setting, *sinks)
        costs = setting.costs
        self.origin: int | None = None
        self.hit: int | None = None
        self.training = Training(
            setting.spec.nodes_max,
            interval_s=costs["ckpt_interval"],
            cost_s=costs["ckpt_cost"],
            step_s=costs["step"],
            on_saved=self._saved,
        )
        self.faults = 0
        self.resubmissions = 0
        self._trace: Iterator[TraceFault] = iter(faults)
        self._epoch = 0
        self._loading = False
        self._same_processes = False
        self._resume_from: int | str = "checkpoint"
        self._unreported: int | None = None

    # -- time

    @property
    def elapsed_s(self) -> float:
        """Seconds of the campaign's clock."""
        return 0.0 if self.origin is None else (self.now - self.origin) / SECOND

    def run(self, on_day: Callable[[float], None] | None = None) -> None:
        """Run to the end of the campaign.

        Args:
            on_day: called periodically with the days simulated so far.
        """
        self._submit()
        if self.setting.fleet:
            self._begin()
        report_at, at_once, moment = 0.0, 0, self.now
        while True:
            coming = next_deadline(self.state)
            head = self._queue[0] if self._queue else None
            time = min(coming[1] if coming else math.inf, head[0] if head else math.inf)
            if self.origin is not None and time > self.origin + self.setting.days * DAY_S * SECOND:
                break
            assert time < math.inf, f"no event is due, and the job is {self.state.phase}"
            at_once = at_once + 1 if time <= moment else 0
            assert at_once < TURNS_AT_ONCE_MAX, "virtual time does not advance"
            moment = max(moment, int(time))
            self._pass_to(int(time))
            if head is not None and head[0] <= (coming[1] if coming else math.inf):
                heapq.heappop(self._queue)[2]()
            elif coming is not None:
                self._own(DeadlineExpired(key=coming[0], due=coming[1]))
            if on_day is not None and self.elapsed_s >= report_at:
                on_day(self.elapsed_s / DAY_S)
                report_at = self.elapsed_s + self.setting.days * DAY_S / 100
        assert self.origin is not None
        self._pass_to(self.origin + seconds(self.setting.days * DAY_S))

    def _pass_to(self, time: int) -> None:
        passed = (time - self.now) / SECOND
        self.now = max(self.now, time)
        if self.origin is None or passed <= 0:
            return
        if self.training.under_way:
            self.training.train(passed)
        else:
            self.training.book(lost_use(self.state, hit=self.hit is not None, loading=self._loading), passed)

    def _decided(self, event: Event) -> None:
        data = event.data
        if type(data) is ActionOrdered:
            self._ordered(data)
        elif type(data) is RoundStarted:
            self._round_started()
        elif type(data) is JobRolledBack:
            self._resume_from = data.step
        elif type(data) is JobFinished:
            self._job_finished()

    # -- the job

    def _submit(self) -> None:
        setting = self.setting
        assumed = setting.abilities.get("assumed", ())
        if self.state.run == 0:
            self._own(
                MasterElected(host="campaign", pid=1, address="unix:campaign", version=__version__, decides=NEWEST)
            )
        self._own(
            JobSubmitted(
                job="campaign",
                run=self.state.run + 1,
                spec=setting.spec,
                digest="campaign",
                command=("ftctl", "simulate", *(("--assume", ",".join(assumed)) if assumed else ())),
                versions={"ftcore": __version__},
                user="campaign",
            )
        )
        self._own(setting.policy)
        for source, abilities in setting.abilities.items():
            self._own(AbilityDeclared(source=source, abilities=abilities))
        self._resume_from = "checkpoint"
        if not setting.fleet:
            for place in range(setting.spec.nodes_max):
                self._join(place, fresh=True)
        else:
            for node in list(self._at.values()):
                self._say(node, node.begin())

    def _begin(self) -> None:
        """Start the clock and the faults at the first training step."""
        self.origin = self.now
        self._next_fault()

    def _job_finished(self) -> None:
        self._halt()
        self.hit = None
        costs = self.setting.costs
        poll = costs["poll"]
        noticed = poll - self.elapsed_s % poll if poll > 0 else 0.0
        self._after(max(1.0, noticed + costs["resubmit"]), self._resubmit)

    def _resubmit(self) -> None:
        self.resubmissions += 1
        self._coming.clear()
        self._submit()

    # -- faults

    def _next_fault(self) -> None:
        fault = next(self._trace, None)
        if fault is not None:
            assert self.origin is not None
            due = self.origin + seconds(fault.time_s)
            self._at_time(max(due, self.now), lambda: self._strike(fault))

    def _strike(self, fault: TraceFault) -> None:
        self._next_fault()
        if fault.kind == JOIN:
            self._join(fault.node)
            return
        node = self._at.get(fault.node)
        if node is None or not node.alive:
            return
        kind = KINDS[fault.kind]
        known = self.state.membership.current(node.name, node.incarnation)
        if not kind.node and (known is None or known.phase not in ACTIVE):
            return  # idle devices do not fail
        self.faults += 1
        if kind.node:
            node.alive = False
            if not self.setting.fleet:
                self._expect(node.place, self.setting.costs["replace"])
        elif fault.stays:
            node.bad = kind
            self._after(self.setting.costs["repair"], lambda: self._repaired(node))
        self._apply_fault(node, kind)

    def _apply_fault(self, node: SimNode, kind: FaultKind) -> None:
        """Let a fault take effect now, and schedule its detection."""
        known = self.state.membership.current(node.name, node.incarnation)
        if known is None:
            return
        works = known.phase in ACTIVE and self.state.rounds.world is not None
        if not works and not kind.node:
            return
        if works and kind.shows not in ("spike", "slow"):
            self._halt()
            if self.hit is None:
                self.hit = self.now
        self._slowest()
        happened, incarnation, round_ = self.now, node.incarnation, known.round
        delay = self.setting.costs[DETECTIONS[kind.shows]]
        self._after(delay, lambda: self._noticed(node, kind, happened, incarnation, round_))

    def _noticed(self, node: SimNode, kind: FaultKind, happened: int, incarnation: str, round_: int) -> None:
        found = self.state.membership.current(node.name, incarnation)
        if found is None:
            return
        if not kind.node and (found.round != round_ or found.phase not in ACTIVE):
            return  # its workers have ended
        step = self.training.step
        self._report_progress()
        world = self.state.rounds.world
        rank, local_rank = -1, 0
        if world is not None and not kind.node:
            living = [place for place, phase in enumerate(found.workers) if phase is not WorkerPhase.EXITED]
            if not living:
                return  # all workers were ended by another fault
            local_rank = living[0]
            base = next((member.base_rank for member in world.members if member.node == node.name), None)
            rank = base + local_rank if base is not None else -1
        fact = fact_of(
            kind,
            node=node.name,
            incarnation=incarnation,
            round_=round_,
            rank=rank,
            local_rank=local_rank,
            step=step if step and world is not None and world.stepped else None,
        )
        if kind.shows == "lost":
            self._own(fact)
        else:
            self._say(node, fact, happened)

    def _report_progress(self) -> None:
        """Report the newest step and checkpoint, as the master would know them."""
        if self._reports_steps():
            if self._unreported is not None:
                self._report_commit(self._unreported)
            self._report_step()

    def _report_step(self) -> None:
        world = self.state.rounds.world
        if self._reports_steps() and world is not None and self.training.step > (self.state.training.step or 0):
            self._own(JobProgressed(round=world.round, step=self.training.step))

    def _reports_steps(self) -> bool:
        """Whether workers report steps."""
        world = self.state.rounds.world
        return world is not None and self.state.phase is JobPhase.RUNNING and bool(world.stepped)

    # -- training

    def _halt(self) -> None:
        """Stop training until workers are started or resumed."""
        self.training.under_way = False
        self._loading = False
        self._epoch += 1

    def _slowest(self) -> None:
        world = self.state.rounds.world
        if world is not None:
            bad = [node.bad for node in self._at.values() if node.bad is not None and node.alive]
            self.training.speed = min((kind.speed for kind in bad), default=1.0)

    def _round_started(self) -> None:
        """All workers run: they load their checkpoint, warm up, and train."""
        costs, world = self.setting.costs, self.state.rounds.world
        assert world is not None
        self._halt()
        self.hit = None
        self._loading = True
        known = self.state.incident
        plan = known.plan if known is not None else None
        in_memory = plan is not None and plan.terms.survivors == "park"
        self.training.members = len(world.members)
        if self._resume_from == "here" or (in_memory and self._resume_from == "checkpoint"):
            pass
        elif isinstance(self._resume_from, int):
            self.training.roll_back(self._resume_from)
        else:
            self.training.roll_back()
        self._resume_from = "checkpoint"
        epoch = self._epoch
        load = costs["load_memory" if in_memory else "load"]
        source = "memory" if in_memory else "storage"
        self._after(load, lambda: self._loaded(epoch, load, source))
        warm_up = 0.0 if self._same_processes else costs["warm_up"]
        self._after(load + warm_up, lambda: self._resume(epoch))
        for member in world.members:
            node = self._nodes[member.node]
            if node.bad is not None:
                self._recur(node, node.bad, epoch)

    def _recur(self, node: SimNode, kind: FaultKind, epoch: int) -> None:
        """Let the fault of a faulty machine recur once its workers, or the job, run."""
        costs = self.setting.costs
        early = kind.shows not in ("spike", "slow")
        delay = costs["detect_crash"] if early else costs["load"] + costs["warm_up"] + costs["step"]

        def recur() -> None:
            if self._epoch == epoch and node.bad is kind:
                self._apply_fault(node, kind)

        self._after(delay, recur)

    def _loaded(self, epoch: int, seconds_: float, source: str) -> None:
        """The state is loaded; one member reports it, for all."""
        world = self.state.rounds.world
        if self._epoch != epoch or world is None:
            return
        self._loading = False
        node = self._nodes[world.members[0].node]
        if seconds_ > 0 and node.alive:
            self._say(
                node,
                StateLoaded(
                    node=node.name,
                    incarnation=node.incarnation,
                    round=world.round,
                    step=self.training.step,
                    source=source,
                    seconds=seconds_,
                ),
            )

    def _resume(self, epoch: int) -> None:
        """Resume training."""
        if self._epoch != epoch:
            return
        if self.origin is None:
            self._begin()
        self.hit = None
        self._slowest()
        self.training.under_way = True
        self._after(self.setting.costs["step"], lambda: self._first_steps(epoch))
        self._await_commit(epoch)

    def _first_steps(self, epoch: int) -> None:
        world = self.state.rounds.world
        if self._epoch != epoch or world is None:
            return
        step = max(1, self.training.step)
        for member in world.members:
            node = self._nodes[member.node]
            if node.alive and node.incarnation == member.incarnation:
                self._say(node, stepped(self.state.membership.nodes[member.node], step))
                if self._epoch != epoch:
                    return

    def _await_commit(self, epoch: int) -> None:
        until = self.training.until_saved()
        if until is not None:
            self._after(max(until, REPORT_INTERVAL_S), lambda: self._report_due_commit(epoch))

    def _report_due_commit(self, epoch: int) -> None:
        if self._epoch != epoch:
            return
        if self._unreported is not None:
            self._report_commit(self._unreported)
        if self._epoch == epoch:
            self._await_commit(epoch)

    def _saved(self, step: int) -> None:
        self._unreported = step

    def _report_commit(self, step: int) -> None:
        self._unreported = None
        self._report_step()
        cost = self.setting.costs["ckpt_cost"]
        self._own(CheckpointCommitted(round=self.state.rounds.newest, step=step, where="campaign", seconds=cost))

    # -- orders

    def _ordered(self, data: ActionOrdered) -> None:
        costs, command, effect = self.setting.costs, data.command, data.effect
        if isinstance(command, StopWorkers | ParkWorkers):
            self._halt()
        if isinstance(command, ReplaceNodes):
            self._after(costs["platform"], lambda: self._replace(command, effect))
            return
        if isinstance(command, DeleteNodes):
            self._after(costs["platform"], lambda: self._own(answer(command, effect, None)))
            return
        if isinstance(command, AskPolicy):
            faulted = failure(command, effect, None, "external policies are not run in a simulation")
            self._after(0.0, lambda: self._own(faulted))
            return
        self._after(self._duration_s(command), lambda: self._answer(effect))

    def _duration_s(self, command: Command) -> float:
        if isinstance(command, ReleaseNode):
            return 0.0
        world = self.state.rounds.world
        if isinstance(command, StartWorkers) and world is not None:
            self._same_processes = all(self._nodes[member.node].parked for member in world.members)
            if self._same_processes:
                return self.setting.costs["start_parked"]
        return self.setting.costs[_COSTS.get(type(command), "in_place")]

    def _answer(self, effect: str) -> None:
        """Let every node answer for which the order still waits."""
        ordered = self.state.orders.open.get(effect)
        if ordered is None:
            return
        command = ordered.command
        if isinstance(command, PauseWorkers):
            self._halt()
        step = self.training.step
        if isinstance(command, SaveCheckpoint):
            self._save(in_memory=command.hold)
        for name, incarnation in list(ordered.waiting.items()):
            node = self._nodes[name]
            if not node.alive or node.incarnation != incarnation or effect not in self.state.orders.open:
                continue
            self._say(node, node.obey(command, effect, self.state.membership.nodes[name], step))
            if isinstance(command, ReleaseNode) and self.state.phase not in ENDED:
                self._released(node)

    def _save(self, in_memory: bool = False) -> None:
        """Save the state of the running workers; a checkpoint on storage is reported."""
        self.training.save()
        if not in_memory:
            self._report_commit(self.training.step)
        self._resume_from = "checkpoint"
