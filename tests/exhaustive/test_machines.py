"""Every trigger is fed to every state of every machine: through the rows, and through the ``transitions`` view."""

import pytest

from ftcore.states.drawing import MACHINES
from ftcore.states.job import LIVING, JobPhase
from ftcore.states.table import Machine
from ftcore.states.views import Model, build

CONTEXTS = (None, *LIVING)
"""What guards may look at: the phase in which a job got stuck."""

PAIRS = [
    pytest.param(machine, state, trigger, id=f"{machine.name}-{state}-{trigger}")
    for machine in MACHINES
    for state in machine.states
    for trigger in machine.triggers
]


@pytest.mark.parametrize(("machine", "state", "trigger"), PAIRS)
def test_each_pair_is_a_row_or_ignored_or_an_anomaly(machine: Machine, state, trigger):
    """A pair of state and trigger is exactly one of three, and leads where its declaration says."""
    declared = [row for row in machine.rows if row.source is state and row.trigger == trigger]
    ignored = [entry for entry in machine.ignored if entry.trigger == trigger and state in entry.sources]
    assert not (declared and ignored)
    for context in CONTEXTS:
        holding = [row for row in declared if not row.guard or machine.guards[row.guard](context)]
        if holding:
            assert machine.step(state, trigger, context) is holding[0].target
        elif ignored:
            assert machine.step(state, trigger, context) is state
        else:
            assert machine.step(state, trigger, context) is None


@pytest.mark.parametrize(("machine", "state", "trigger"), PAIRS)
def test_the_view_never_differs_from_the_rows(machine: Machine, state, trigger):
    """The ``transitions`` machine goes where the rows go, and stays where they reject or ignore."""
    model = Model("one")
    view = build(machine, model)
    for context in CONTEXTS:
        view.set_state(str(state), model)
        target = machine.step(state, trigger, context)
        moved = trigger in view.events and view.events[trigger].trigger(model, context=context)
        assert model.state == str(state if target is None else target)
        assert bool(moved) == bool(_row_taken(machine, state, trigger, context))


def _row_taken(machine: Machine, state, trigger, context) -> bool:
    return any(not row.guard or machine.guards[row.guard](context) for row in machine.candidates(state, trigger))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_final_states_are_left_only_for_a_new_beginning(machine: Machine):
    """A machine that has ended moves again only if it begins anew."""
    for state in machine.finals:
        assert {row.target for row in machine.rows if row.source is state} <= {machine.initial}


@pytest.mark.parametrize("machine", [each for each in MACHINES if each.finals], ids=lambda machine: machine.name)
def test_every_state_leads_to_an_end(machine: Machine):
    """From each state some sequence of triggers ends the machine; that of an agent's workers begins again and again."""
    for start in machine.states:
        seen, frontier = {start}, [start]
        while frontier:
            here = frontier.pop()
            following = {row.target for row in machine.rows if row.source is here} - seen
            seen |= following
            frontier += following
        assert seen & machine.finals


def test_a_stuck_job_goes_on_where_it_was():
    """``job.unparked`` leads back to the phase in which the job got stuck, and nowhere without one."""
    job = next(machine for machine in MACHINES if machine.name == "job")
    for phase in LIVING:
        assert job.step(JobPhase.STUCK, "job.unparked", phase) is phase
    assert job.step(JobPhase.STUCK, "job.unparked", None) is None
