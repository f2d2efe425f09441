"""The table of conditions of phases."""

import re
from pathlib import Path

import attrs
import pytest

import ftcore
from ftcore.engine.decide import ADVANCES
from ftcore.states import phases
from ftcore.states.job import ENDED, LIVING, JobPhase
from ftcore.states.model import JobState
from ftcore.states.phases import IncidentCondition, JobCondition

COMPARISON = re.compile(
    r"\b(?:state|known|incident)\.phase (?:is|is not|in|not in|==|!=) (?!OUTGOING)"
    r"|\bphase (?:in|not in) ENDED|\b(?:JobPhase|IncidentPhase)\.[A-Z]"
)

CONDITIONS = {
    name: value for name, value in vars(phases).items() if isinstance(value, JobCondition | IncidentCondition)
}


def test_a_condition_has_the_name_of_its_predicate():
    """The reference names a condition as the code does."""
    assert [*CONDITIONS] == [condition.name for condition in CONDITIONS.values()]


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
def test_a_condition_holds_somewhere_once(condition: JobCondition | IncidentCondition):
    """A condition lists each of its phases once and has a description."""
    assert condition.phases
    assert len({*condition.phases}) == len(condition.phases)
    assert condition.doc.endswith(".")


@pytest.mark.parametrize("phase", JobPhase)
def test_a_phase_is_stuck_ended_or_under_way(phase: JobPhase):
    """Exactly one of the three holds; only in a stuck job nothing is decided."""
    state = attrs.evolve(JobState(), phase=phase)
    assert [phases.is_stuck(state), phases.has_ended(state), phases.is_under_way(state)].count(True) == 1
    assert phases.decides(state) == (phase in (*LIVING, *ENDED)) == (not phases.is_stuck(state))


def test_each_step_of_a_decision_has_a_condition_of_the_table():
    """The phases of each step of the engine are in the table as well."""
    assert {condition.name for _, condition in ADVANCES} <= {
        name for name, value in CONDITIONS.items() if isinstance(value, JobCondition)
    }


def test_engine_and_master_compare_no_phase_themselves():
    """Engine and master call conditions; only the code that parks a job sets its phase."""
    package = Path(ftcore.__file__).parent
    paths = (*package.glob("engine/*.py"), *package.glob("runtime/master/*.py"))
    found = {path.name: COMPARISON.findall(path.read_text()) for path in paths}
    assert {name: each for name, each in found.items() if each} == {"sequencer.py": ["JobPhase.S"]}
