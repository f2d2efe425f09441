"""The table of conditions of phases."""

import re
from pathlib import Path

import attrs
import pytest

import ftcore
from ftcore.engine.decide import ADVANCES
from ftcore.states import phases
from ftcore.states.drawing import MANY, job_flow, named
from ftcore.states.job import ENDED, JOB, LIVING, JobPhase
from ftcore.states.model import JobState
from ftcore.states.phases import INCIDENT_CONDITIONS, JOB_CONDITIONS, IncidentCondition, JobCondition
from ftcore.states.timers import TIMERS

COMPARISON = re.compile(
    r"\b(?:state|known|incident)\.phase (?:is|is not|in|not in|==|!=) (?!OUTGOING)"
    r"|\bphase (?:in|not in) ENDED|\b(?:JobPhase|IncidentPhase)\.[A-Z]"
)


def test_the_tables_hold_every_condition_under_its_name():
    """A condition is in its table once, and its name is that of the predicate."""
    kinds = (JobCondition, IncidentCondition)
    declared = {name: value for name, value in vars(phases).items() if isinstance(value, kinds)}
    assert [*declared.values()] == [*JOB_CONDITIONS, *INCIDENT_CONDITIONS]
    assert [*declared] == [condition.name for condition in declared.values()]


@pytest.mark.parametrize("condition", [*JOB_CONDITIONS, *INCIDENT_CONDITIONS], ids=lambda condition: condition.name)
def test_a_condition_holds_somewhere_once(condition: JobCondition | IncidentCondition):
    """A condition names each of its phases once, and says what it means."""
    assert condition.phases
    assert len({*condition.phases}) == len(condition.phases)
    assert condition.doc.endswith(".")


@pytest.mark.parametrize("phase", JobPhase)
def test_a_phase_is_stuck_ended_or_under_way(phase: JobPhase):
    """Of these three exactly one holds; nothing is decided in a stuck job alone."""
    state = attrs.evolve(JobState(), phase=phase)
    assert [phases.is_stuck(state), phases.has_ended(state), phases.is_under_way(state)].count(True) == 1
    assert phases.decides(state) == (phase in (*LIVING, *ENDED)) == (not phases.is_stuck(state))


def test_each_step_of_a_decision_has_a_condition_of_the_table():
    """What the wheel moves on where is said by the table too."""
    assert {condition.name for _, condition in ADVANCES} <= {condition.name for condition in JOB_CONDITIONS}


def test_engine_and_master_compare_no_phase_themselves():
    """Phases of jobs and incidents are asked about by the names of conditions; what parks a job sets its phase."""
    package = Path(ftcore.__file__).parent
    paths = (*package.glob("engine/*.py"), *package.glob("runtime/master/*.py"))
    found = {path.name: COMPARISON.findall(path.read_text()) for path in paths}
    assert {name: each for name, each in found.items() if each} == {"sequencer.py": ["JobPhase.S"]}


def test_the_flow_of_a_job_is_drawn_whole():
    """Every phase, every trigger that changes the phase, and every timer of few phases are in the drawing."""
    drawn = job_flow()
    assert all(f"    {phase}[" in drawn or f"    {phase}([" in drawn for phase in JobPhase)
    assert all(row.trigger in drawn for row in JOB.rows if row.source is not row.target)
    assert all(timer.kind in drawn for timer in TIMERS if len(timer.phases) < MANY)


@pytest.mark.parametrize(
    ("named_phases", "words"),
    [
        (ENDED, "succeeded, failed, stopped"),
        (LIVING, "any phase under way"),
        (LIVING[1:], "any phase under way but assembling"),
        ((*LIVING, JobPhase.STUCK), "any phase under way, stuck"),
        ((*LIVING, *ENDED), "any phase but stuck"),
        (tuple(JobPhase), "any phase"),
    ],
)
def test_phases_are_named_briefly(named_phases: tuple[JobPhase, ...], words: str):
    """Many phases are named by what they have in common."""
    assert named(named_phases) == words
