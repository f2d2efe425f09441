"""Every checker of the simulator finds mistakes that are planted in the code it watches, in a bounded number of seeds.

A mutation replaces a function or a constant of production code: master, sequencer, agent, engine, fold, policies; where
real processes do the work, of the simulated ones. A checker that no mutation can trigger proves nothing.
"""

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import attrs
import msgspec
import pytest

from ftcore.commands import PLATFORM, ReplaceNodes
from ftcore.engine import agent as core
from ftcore.engine import departure, dispatch, notice, orders, plans, rounds
from ftcore.engine import standstill as watch
from ftcore.events.checkpoint import StateLoaded
from ftcore.events.incident import IncidentResolved
from ftcore.events.node import OrderObeyed
from ftcore.events.policy import PolicyConsidered
from ftcore.faults import standstill
from ftcore.policies import budget
from ftcore.policies.builtin import process_restart
from ftcore.runtime.agent.checkpoints import NodeCheckpoints
from ftcore.runtime.agent.link import outbox
from ftcore.runtime.master import agents, deadlines, retention, sequencer, term
from ftcore.shm.boundary import BoundaryState
from ftcore.sim.protocol import checkers, node, supervisor
from ftcore.sim.protocol.options import DEPARTURE, MAINTENANCE, SHARDED, SOON, SPIKE, draw
from ftcore.sim.protocol.simulation import collecting_between, run_protocol
from ftcore.states import resume, training
from ftcore.states.fold import base, incidents
from ftcore.states.fold import checkpoints as folded_checkpoints
from ftcore.states.fold import disruptions as folded_disruptions

SEEDS_MAX = 500
"""Number of seeds in which a planted mistake must be found."""

Mutation = Callable[[pytest.MonkeyPatch], None]
Focus = Mapping[str, object]
"""Options of a simulation, instead of those drawn from the seed."""

WRITES: Focus = {"faults": ("stream_break", "store_slow", "master_dies_at_write", "master_kill"), "every_s": 0.3}
AWAY: Focus = {
    "faults": ("master_kill", "store_down"),
    "every_s": 3.0,
    "step_s": 0.5,
    "total": 10_000,
    "ambiguous": 0.0,
}
KEPT_SMALL: Focus = {
    **WRITES,
    "keeps_log": True,
    "total": 10_000,
    "safety_s": 60.0,
    "step_s": 0.1,
    "checkpoint_every": 1,
}
SPIKES: Focus = {"faults": (SPIKE, "worker_kill"), "every_s": 3.0, "total": 10_000, "checkpoint_every": 5}
SPEC = draw(0).spec
PAUSES: Focus = {
    "spec": msgspec.structs.replace(SPEC, timing=msgspec.structs.replace(SPEC.timing, **SOON)),
    "faults": (),
    "step_s": 0.1,
    "total": 10_000,
    "give_up_s": 1e6,
    "pauses": True,
}
DEPARTING = next(options for options in map(draw, count()) if DEPARTURE in options.faults)
DEPARTURES: Focus = {
    "policy": DEPARTING.policy,
    "abilities": DEPARTING.abilities,
    "faults": (DEPARTURE, DEPARTURE, "worker_kill"),
    "every_s": 6.0,
    "safety_s": 60.0,
    "total": 10_000,
}

REQUESTS: Focus = {
    "policy": next(o.policy for o in map(draw, count()) if any(e.policy == "step_pause" for e in o.policy.chain)),
    "capable": True,
    "faults": ("operator",),
    "every_s": 0.5,
    "step_s": 0.5,
    "safety_s": 60.0,
    "total": 10_000,
}

REGISTERED: Focus = {
    "spec": msgspec.structs.replace(SPEC, checkpoints="simulated"),
    "layout": SHARDED,
    "slots": 2,
    "faults": ("worker_kill",),
    "every_s": 5.0,
    "safety_s": 60.0,
    "step_s": 0.5,
    "total": 10_000,
    "checkpoint_every": 5,
}
LOSSES: Focus = {**REGISTERED, "faults": ("host_crash", "keeper_kill")}
DAMAGE: Focus = {**REGISTERED, "faults": ("worker_kill", "shard_damaged"), "every_s": 3.0, "step_s": 2.0}
SPIKING = next(o for o in map(draw, count()) if any(e.policy == "rollback_and_skip" for e in o.policy.chain[:1]))
REGISTERED_SPIKES: Focus = {
    **REGISTERED,
    "policy": SPIKING.policy,
    "abilities": SPIKING.abilities,
    "faults": (SPIKE, SPIKE, "worker_kill"),
}
MAINTAINED = next(options for options in map(draw, count()) if MAINTENANCE in options.faults)
PAUSED: Focus = {
    "policy": MAINTAINED.policy,
    "abilities": MAINTAINED.abilities,
    "watched": "processes",
    "capable": True,
    "faults": (MAINTENANCE, MAINTENANCE, "worker_kill", "master_kill"),
    "every_s": 8.0,
    "safety_s": 60.0,
    "step_s": 0.5,
    "total": 10_000,
}
planted: list[Any] = []


def plant(checker: str, focus: Focus | None = None, *, long: bool = False) -> Callable[[Mutation], Mutation]:
    """Declare a mutation and the checker that has to find it; ``long``: it takes many schedules."""

    def register(mutation: Mutation) -> Mutation:
        marks = pytest.mark.long if long else ()
        name = f"{checker}-{mutation.__name__}"
        planted.append(pytest.param(mutation, checker, focus or {}, id=name, marks=marks))
        return mutation

    return register


def fold_differently(monkeypatch: pytest.MonkeyPatch, payload: type, change: Callable[[Any], None]) -> None:
    """Let the fold do something more to the state, before the payload is folded."""
    handler = base.handlers[payload]

    def mutated(state: Any, *rest: Any) -> None:
        after = change(state)
        handler(state, *rest)
        if callable(after):
            after()

    monkeypatch.setitem(base.handlers, payload, mutated)


@plant("AcknowledgedFactsStand", WRITES)
def facts_are_acknowledged_before_they_are_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    take_fact = term.Term.take_fact

    def early(self: Any, session: Any, fact: Any) -> None:
        session.acked = fact.id.n
        self.agents._durable[fact.id.source] = (fact.id.incarnation, fact.id.n)
        take_fact(self, session, fact)

    monkeypatch.setattr(term.Term, "take_fact", early)


@plant("AcknowledgedFactsStand", WRITES)
def duplicates_are_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequencer, "is_duplicate", lambda state, source, incarnation, n: False)


@plant("AcknowledgedFactsStand", KEPT_SMALL)
def a_file_of_the_archive_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    on_disk, files = retention.LogRetention._on_disk, count(1)

    async def careless(self: Any, work: Any, *args: Any) -> Any:
        skipped = work.__name__ == "add" and not next(files) % 5
        return None if skipped else await on_disk(self, work, *args)

    monkeypatch.setattr(retention.LogRetention, "_on_disk", careless)


@plant("ReplayAgrees", KEPT_SMALL)
def a_snapshot_forgets_whose_facts_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    pack = retention.pack
    monkeypatch.setattr(
        retention, "pack", lambda state, tail: pack(attrs.evolve(state, log=attrs.evolve(state.log, sources={})), tail)
    )


@plant("EffectsFollowTheLog")
def orders_are_sent_before_they_are_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    append = sequencer.Sequencer._append

    async def early(self: Any, part: Any, expected: Any) -> None:
        leader = self._committed.__self__
        events = [event for group in part for event in group.events]
        for (name, _), given in agents.answers_to(self.state, events).orders.items():
            if name in leader.agents.sessions:
                leader.agents.sessions[name].order(given)
        await append(self, part, expected)

    monkeypatch.setattr(sequencer.Sequencer, "_append", early)


@plant("EffectsFollowTheLog")
def agents_obey_old_rounds_and_orders_seen_before(monkeypatch: pytest.MonkeyPatch) -> None:
    obey = core.AgentCore.obey

    def gullible(self: Any, order: Any) -> Any:
        self._effects.clear()
        if hasattr(order.command, "round"):
            self.round = min(self.round, order.command.round - 1)
        return obey(self, order)

    monkeypatch.setattr(core.AgentCore, "obey", gullible)


@plant("OneRoundTrains")
def workers_survive_their_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave_running(self: Any) -> tuple[()]:
        self.ranks = None
        return ()

    monkeypatch.setattr(supervisor.SimSupervisor, "_end", leave_running)


@plant("OneRoundTrains", {"faults": ("agent_kill",), "every_s": 1.0, "total": 10_000})
def workers_outlive_their_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    def died(self: Any) -> None:
        self.sim.net.cut(self)
        self._ended(self)

    monkeypatch.setattr(node.Node, "died", died)


@plant("IncidentsEnd")
def policies_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fold_differently(monkeypatch, PolicyConsidered, lambda state: state.incident.asked.clear)


@plant("IncidentsEnd", long=True)
def the_budget_of_restarts_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_restart, "spent", lambda *args: "")


@plant("ResumesFromWhatWasSaved", SPIKES)
def a_rollback_names_a_step_that_was_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    rolled_back = rounds.JobRolledBack
    monkeypatch.setattr(rounds, "JobRolledBack", lambda step, **rest: rolled_back(step=step + 1, **rest))


@plant("ResumesFromWhatWasSaved")
def a_round_resumes_from_the_last_step_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    slice_of_member = orders._slice
    monkeypatch.setattr(
        orders,
        "_slice",
        lambda state, *rest: attrs.evolve(slice_of_member(state, *rest), resume_step=state.training.step),
    )


@plant("NothingIsReadTwiceUnsaid", SPIKES, long=True)
def a_rollback_is_repeated_by_every_later_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(state: Any) -> Callable[[], None]:
        kept = state.training.resume_step
        return lambda: setattr(state.training, "resume_step", kept)

    fold_differently(monkeypatch, IncidentResolved, keep)
    monkeypatch.setattr(folded_checkpoints, "_resume_later", lambda *about: None)


@plant("NothingIsReadTwiceUnsaid")
def a_round_resumes_from_the_oldest_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    slice_of_member = orders._slice

    def older(state: Any, *rest: Any) -> Any:
        return attrs.evolve(slice_of_member(state, *rest), resume_step=min(state.training.checkpoints, default=None))

    monkeypatch.setattr(orders, "_slice", older)


@plant("ReplayAgrees")
def the_fold_forgets_some_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, calls = base.answered, count(1)

    def now_and_then(*args: Any, **options: Any) -> None:
        if next(calls) % 7:
            answered(*args, **options)

    monkeypatch.setattr("ftcore.states.fold.nodes.answered", now_and_then)


@plant("ReplayAgrees")
def a_decision_depends_on_more_than_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    backoff_s, calls = budget.backoff_s, count(1)
    monkeypatch.setattr(budget, "backoff_s", lambda *args: backoff_s(*args) + next(calls) / 1000)


@plant("OwnFaultsStopNothing", {**AWAY, "faults": ("store_down",)}, long=True)
def a_new_master_grants_no_time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "due", lambda deadline, led_since, lease_s: deadline)


@plant("OwnFaultsStopNothing", AWAY)
def an_agent_without_a_master_stops_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = core.AgentCore.waited
    monkeypatch.setattr(core.AgentCore, "looked_up", lambda self, now, led: setattr(self, "_led_since", now - 60))
    monkeypatch.setattr(core.AgentCore, "waited", lambda self, now, pages: waited(self, now, ()))


@plant("HealthyStandstillsAreLeftAlone", PAUSES)
def every_rank_is_given_the_least_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standstill, "_patience_s", lambda stand, timing, ceiling: timing.hang_look_s)


@plant("HealthyStandstillsAreLeftAlone", PAUSES)
def no_step_is_a_hang_long_before_the_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "ceiling_s", lambda timing, longest_gap_s, earlier: timing.hang_busy_s)


@plant("HealthyStandstillsAreLeftAlone", PAUSES)
def ranks_that_do_the_same_count_as_still_as_long_as_they_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    combine = standstill._combine
    monkeypatch.setattr(
        standstill,
        "_combine",
        lambda one, other: msgspec.structs.replace(combine(one, other), still_s=min(one.held_s, other.held_s)),
    )


@plant("DeparturesWait", DEPARTURES)
def whoever_has_joined_counts_as_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departure, "_ready", departure._joined)


@plant("DeparturesWait", DEPARTURES)
def a_launch_under_way_is_forgotten_when_the_chain_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incidents, "_launch_under_way", lambda state, terms: None)
    monkeypatch.setattr(departure, "order_replacements", _order_all_anew)


def _order_all_anew(turn: Any, known: Any, *, keep: bool = False) -> bool:
    command = ReplaceNodes(nodes=known.plan_in_force().terms.replace, isolate=False, keep=keep)
    dispatch.order(turn, command, (PLATFORM,), dispatch.PLATFORM_ANSWER_S, incident=known.id)
    return True


@plant("RanksStopTogether", REQUESTS)
def the_second_order_names_the_boundary_before(monkeypatch: pytest.MonkeyPatch) -> None:
    at_boundary = plans.at_boundary
    monkeypatch.setattr(plans, "at_boundary", lambda command, boundary: at_boundary(command, boundary - 1))


@plant("RanksStopTogether", REQUESTS)
def an_agent_answers_the_boundary_that_its_workers_have_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundaryState, "stops_at", property(lambda self: max(self.reached, 1)))


@plant("RanksStopTogether", REQUESTS)
def the_first_answer_is_the_boundary_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(state: Any) -> Callable[[], None] | None:
        plan = state.incident.plan if state.incident is not None else None
        ordered = plan.order if plan is not None else None
        known = ordered.boundary if ordered is not None else 0
        return (lambda: setattr(ordered, "boundary", known)) if known else None

    fold_differently(monkeypatch, OrderObeyed, keep)


@plant("ResumesFromWhatIsHeld", LOSSES)
def a_state_without_a_replica_group_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume.HeldState, "is_complete", lambda self: True)


@plant("ResumesFromWhatIsHeld", REGISTERED_SPIKES)
def a_rollback_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training.SavedState, "is_abandoned", lambda self, step, round_: False)


@plant("ResumesFromWhatIsHeld", DAMAGE, long=True)
def what_ranks_could_not_load_is_offered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(base.handlers, StateLoaded, lambda *args: None)


@plant("ResumesFromWhatIsHeld", LOSSES)
def the_oldest_checkpoint_on_storage_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    on_storage = resume._on_storage
    monkeypatch.setattr(resume, "_on_storage", lambda state: list(on_storage(state))[:1])


@plant("AKilledWorkerCostsAStep", REGISTERED)
def memory_is_not_reported_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def say_nothing(self: Any) -> None:
        return

    monkeypatch.setattr(NodeCheckpoints, "report_held", say_nothing)


@plant("AKilledWorkerCostsAStep", REGISTERED)
def only_every_third_step_is_resumed_from(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = resume.HeldState.is_complete
    monkeypatch.setattr(resume.HeldState, "is_complete", lambda self: self.step % 3 == 0 and whole(self))


@plant("Liveness")
def agents_report_neither_ends_nor_failed_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core.AgentCore, "unstartable", lambda self, start, error: [])
    monkeypatch.setattr(core.AgentCore, "exited", lambda self, ended, pages: [])


@plant("Liveness")
def an_agent_forgets_what_it_has_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    unacknowledged = outbox.Outbox.unacknowledged

    def careless(self: Any, after: int) -> Any:
        found = unacknowledged(self, after)
        self._facts = []
        return found

    monkeypatch.setattr(outbox.Outbox, "unacknowledged", careless)


@plant("Liveness", long=True)
def orders_are_not_repeated_to_agents_that_call_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "unanswered", lambda state, node, incarnation: [])


@plant("Liveness", PAUSED)
def the_end_of_a_disruption_resumes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folded_disruptions, "_release", lambda *about: None)


@plant("Liveness", PAUSED)
def a_job_that_a_policy_paused_is_never_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = notice.next_incident

    def mutated(state: Any) -> Any:
        coming = found(state)
        return None if coming is not None and coming[1].detail == "resume" else coming

    monkeypatch.setattr(notice, "next_incident", mutated)


@pytest.mark.parametrize(("mutation", "checker", "focus"), planted)
def test_a_planted_mistake_is_found(
    mutation: Mutation, checker: str, focus: Focus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each checker finds its planted mistakes within a few hundred schedules."""
    mutation(monkeypatch)
    found = (run_protocol(seed, options=attrs.evolve(draw(seed), **focus)).violation for seed in range(SEEDS_MAX))
    with collecting_between():
        assert any(violation.startswith(checker) for violation in found)


def test_every_checker_has_two_planted_mistakes() -> None:
    """Every checker has mutations."""
    watched = [param.values[1] for param in planted]
    for name in (*(checker.__name__ for checker in checkers.ALL), "Liveness"):
        assert watched.count(name) >= 2, name
