"""Campaign: months of a job of thousands of nodes, decided by the production engine, on virtual time.

Between two faults nothing is simulated: training is booked in closed steps (``training.py``). A fault reaches the
engine as the fact by which production would learn of it (``sim/evidence.py``), after the time that noticing it takes;
every order that the engine gives is obeyed by every node it addresses (``nodes.py``), each by a fact and a turn of its
own, after the time that obeying takes (``sim/cost.py``). What follows is the engine's and the policies' business.

What the campaign adds to them is the world outside: machines that stay bad, a platform that replaces nodes, a launcher
that brings a lost node back, somebody who starts an ended job again.

House rules:
- the engine sees nothing but facts; the campaign reads the state only to know what it was ordered;
- chance is in the trace of faults alone, so two policies meet the same faults at the same times;
- the clock of the campaign starts when training first does; a first start is no loss.

Left out, and therefore free of cost: agents' heartbeats, the master's own failures, progress samples (one is told with
each fault and before each checkpoint, so that the engine knows the step). Of checkpoints, at most one a minute is told.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ftcore import __version__
from ftcore.commands import (
    AskPolicy,
    DeleteNodes,
    ParkWorkers,
    PauseWorkers,
    ReleaseNode,
    ReplaceNodes,
    RetryStep,
    SaveCheckpoint,
    StartWorkers,
    StopWorkers,
)
from ftcore.events.action import ActionOrdered
from ftcore.events.deadline import DeadlineExpired
from ftcore.events.envelope import Event
from ftcore.events.job import CheckpointCommitted, JobFinished, JobProgressed, JobRolledBack, JobSubmitted
from ftcore.events.master import MasterElected
from ftcore.events.policy import AbilityDeclared, PlanApplied
from ftcore.events.world import RoundStarted
from ftcore.ids import SECOND, seconds
from ftcore.sim.campaign.machines import Machines, Setting
from ftcore.sim.campaign.nodes import SimNode
from ftcore.sim.campaign.training import Training
from ftcore.sim.campaign.wheel import Sink
from ftcore.sim.cost import DETECTIONS
from ftcore.sim.evidence import JOIN, KINDS, Kind, fact_of
from ftcore.sim.responder import answer, failure, stepped
from ftcore.sim.trace import TraceFault
from ftcore.states.fold import next_deadline
from ftcore.states.job import ENDED, JobPhase
from ftcore.states.node import ACTIVE
from ftcore.states.revisions import NEWEST
from ftcore.states.worker import WorkerPhase

DAY_S = 86400.0
TOLD_EVERY_S = 60.0
"""Checkpoints that follow each other faster are not told one by one."""

TURNS_AT_ONCE_MAX = 10_000_000
"""More turns at one moment of virtual time than this are taken for a wheel that does not come to rest."""


class Campaign(Machines):
    """A campaign under way; ``run`` drives it to its end.

    Args:
        setting: what is simulated.
        faults: what goes wrong, in order of time.
        sinks: called with every group, as it would be appended.
    """

    def __init__(self, setting: Setting, faults: Iterable[TraceFault], *sinks: Sink) -> None:
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
        self._resume_from: int | str = "checkpoint"
        self._untold: int | None = None

    # -- time

    @property
    def elapsed_s(self) -> float:
        """Seconds of the campaign's clock."""
        return 0.0 if self.origin is None else (self.now - self.origin) / SECOND

    def run(self, on_day: Callable[[float], None] | None = None) -> None:
        """Run to the end of the campaign.

        Args:
            on_day: called now and then, with the days simulated so far.
        """
        self._submit()
        if self.setting.fleet:
            self._begin()
        told, at_once, moment = 0.0, 0, self.now
        while True:
            coming = next_deadline(self.state)
            head = self._queue[0] if self._queue else None
            time = min(coming[1] if coming else math.inf, head[0] if head else math.inf)
            if self.origin is not None and time > self.origin + self.setting.days * DAY_S * SECOND:
                break
            assert time < math.inf, f"nothing will ever happen to a job that is {self.state.phase}"
            at_once = at_once + 1 if time <= moment else 0
            assert at_once < TURNS_AT_ONCE_MAX, "time does not pass"
            moment = max(moment, int(time))
            self._pass_to(int(time))
            if head is not None and head[0] <= (coming[1] if coming else math.inf):
                heapq.heappop(self._queue)[2]()
            elif coming is not None:
                self._own(DeadlineExpired(key=coming[0], due=coming[1]))
            if on_day is not None and self.elapsed_s >= told:
                on_day(self.elapsed_s / DAY_S)
                told = self.elapsed_s + self.setting.days * DAY_S / 100
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
            self.training.book(self._cause(), passed)

    def _cause(self) -> str:
        """What the nodes spend time on while they do not train."""
        state = self.state
        phase = str(state.phase)
        if state.phase in ENDED or phase in ("assembling", "stuck"):
            return "idle"
        if phase == "paused":
            return "paused"
        if phase == "forming":
            missing = state.plan is not None and len(state.places) < state.plan.want
            return "idle" if missing else "restart"
        if state.incident is None:
            return "detect" if self.hit is not None else "restart"
        if not state.incident.taken:
            return "decide"
        return "load" if self._loading else "restart"

    def _decided(self, event: Event) -> None:
        data = event.data
        if type(data) is ActionOrdered:
            self._ordered(data)
        elif type(data) is RoundStarted:
            self._round_started()
        elif type(data) is PlanApplied:
            self._plan_applied()
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
        """Training begins for the first time, and with it the clock and the faults."""
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
        known = self.state.current(node.name, node.incarnation)
        if not kind.node and (known is None or known.phase not in ACTIVE):
            return  # what is not in use does not fail
        self.faults += 1
        if kind.node:
            node.alive = False
            if not self.setting.fleet:
                self._expect(node.place, self.setting.costs["replace"])
        elif fault.stays:
            node.bad = kind
            self._after(self.setting.costs["repair"], lambda: self._repaired(node))
        self._show(node, kind)

    def _show(self, node: SimNode, kind: Kind) -> None:
        """A fault takes effect now, and is noticed when it can be."""
        known = self.state.current(node.name, node.incarnation)
        if known is None:
            return
        works = known.phase in ACTIVE and self.state.world is not None
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

    def _noticed(self, node: SimNode, kind: Kind, happened: int, incarnation: str, round_: int) -> None:
        found = self.state.current(node.name, incarnation)
        if found is None:
            return
        if not kind.node and (found.round != round_ or found.phase not in ACTIVE):
            return  # the workers that it is about are gone
        step = self.training.step
        self._tell_progress()
        world = self.state.world
        rank, local_rank = -1, 0
        if world is not None and not kind.node:
            living = [place for place, phase in enumerate(found.workers) if phase is not WorkerPhase.EXITED]
            if not living:
                return  # another fault was quicker
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

    def _tell_progress(self) -> None:
        """The newest step and checkpoint, as the master would know them by now."""
        if self._counts():
            if self._untold is not None:
                self._commit_told(self._untold)
            self._tell_step()

    def _tell_step(self) -> None:
        world = self.state.world
        if self._counts() and world is not None and self.training.step > (self.state.step or 0):
            self._own(JobProgressed(round=world.round, step=self.training.step))

    def _counts(self) -> bool:
        """Whether steps are being counted."""
        world = self.state.world
        return world is not None and self.state.phase is JobPhase.RUNNING and bool(world.stepped)

    # -- training

    def _halt(self) -> None:
        """No step is completed from now on, until workers are started, resumed or told to try again."""
        self.training.under_way = False
        self._loading = False
        self._epoch += 1

    def _slowest(self) -> None:
        world = self.state.world
        if world is not None:
            bad = [node.bad for node in self._at.values() if node.bad is not None and node.alive]
            self.training.speed = min((kind.speed for kind in bad), default=1.0)

    def _round_started(self) -> None:
        """Every worker runs: they load, warm up, and go on."""
        costs, world = self.setting.costs, self.state.world
        assert world is not None
        self._halt()
        self.hit = None
        self._loading = True
        known = self.state.incident
        in_memory = known is not None and known.terms.survivors == "park"
        self.training.members = len(world.members)
        if self._resume_from == "here" or (in_memory and self._resume_from == "checkpoint"):
            pass
        elif isinstance(self._resume_from, int):
            self.training.go_back(self._resume_from)
        else:
            self.training.go_back()
        self._resume_from = "checkpoint"
        epoch = self._epoch
        load = costs["load_memory" if in_memory else "load"]
        self._after(load, lambda: self._loaded(epoch))
        self._after(load + costs["warm_up"], lambda: self._resume(epoch))
        for member in world.members:
            node = self._nodes[member.node]
            if node.bad is not None:
                self._show_again(node, node.bad, epoch)

    def _show_again(self, node: SimNode, kind: Kind, epoch: int) -> None:
        """A bad machine does it again, as soon as its workers run, or the job does."""
        costs = self.setting.costs
        early = kind.shows not in ("spike", "slow")
        delay = costs["detect_crash"] if early else costs["load"] + costs["warm_up"] + costs["step"]

        def again() -> None:
            if self._epoch == epoch and node.bad is kind:
                self._show(node, kind)

        self._after(delay, again)

    def _loaded(self, epoch: int) -> None:
        if self._epoch == epoch:
            self._loading = False

    def _resume(self, epoch: int) -> None:
        """Training goes on."""
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
        world = self.state.world
        if self._epoch != epoch or world is None:
            return
        step = max(1, self.training.step)
        for member in world.members:
            node = self._nodes[member.node]
            if node.alive and node.incarnation == member.incarnation:
                self._say(node, stepped(self.state.nodes[member.node], step))
                if self._epoch != epoch:
                    return

    def _await_commit(self, epoch: int) -> None:
        until = self.training.until_saved()
        if until is not None:
            self._after(max(until, TOLD_EVERY_S), lambda: self._tell_commit(epoch))

    def _tell_commit(self, epoch: int) -> None:
        if self._epoch != epoch:
            return
        if self._untold is not None:
            self._commit_told(self._untold)
        if self._epoch == epoch:
            self._await_commit(epoch)

    def _saved(self, step: int) -> None:
        self._untold = step

    def _commit_told(self, step: int) -> None:
        self._untold = None
        self._tell_step()
        cost = self.setting.costs["ckpt_cost"]
        self._own(CheckpointCommitted(round=self.state.round, step=step, where="campaign", seconds=cost))

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
            faulted = failure(command, effect, None, "in a simulation nobody asks it")
            self._after(0.0, lambda: self._own(faulted))
            return
        self._after(self._takes(command, data), lambda: self._answer(effect))

    def _takes(self, command: Any, data: ActionOrdered) -> float:
        costs = self.setting.costs
        name = {
            "stop_workers": "stop",
            "park_workers": "park",
            "open_store": "store",
            "start_workers": "start",
            "check_health": "check",
            "save_checkpoint": "save",
            "release_node": "stop",
        }.get(type(command).__struct_config__.tag, "in_place")
        if isinstance(command, StartWorkers):
            world = self.state.world
            if world is not None and all(self._nodes[member.node].parked for member in world.members):
                name = "start_parked"
        if isinstance(command, ReleaseNode):
            return 0.0
        return costs[name]

    def _answer(self, effect: str) -> None:
        """Every node that the order still waits for has obeyed."""
        ordered = self.state.actions.get(effect)
        if ordered is None:
            return
        command = ordered.command
        if isinstance(command, PauseWorkers):
            self._halt()
        step = self.training.step
        if isinstance(command, SaveCheckpoint):
            self._save()
        for name, incarnation in list(ordered.waiting.items()):
            node = self._nodes[name]
            if not node.alive or node.incarnation != incarnation or effect not in self.state.actions:
                continue
            self._say(node, node.obey(command, effect, self.state.nodes[name], step))
            if isinstance(command, ReleaseNode) and self.state.phase not in ENDED:
                self._gave_up(node)

    def _save(self) -> None:
        """The workers that live save what they have."""
        self.training.save()
        self._commit_told(self.training.step)
        self._resume_from = "checkpoint"

    def _plan_applied(self) -> None:
        """What left the processes in place was obeyed by all: they go on, from where they stand."""
        known = self.state.incident
        if known is None or self.training.under_way or str(self.state.phase) == "paused":
            return
        command = known.terms.command
        if known.terms.then == "verify" and isinstance(command, RetryStep):
            self.hit = None
            self._epoch += 1
            self._resume(self._epoch)
