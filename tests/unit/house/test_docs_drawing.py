"""The drawings of the reference pages."""

import sys
from pathlib import Path

import pytest

import ftcore
from ftcore.states.job import ENDED, JOB, LIVING, JobPhase
from ftcore.states.timers import TIMERS

sys.path.append(str(Path(ftcore.__file__).parents[1] / "docs"))
from drawing import MANY, job_flow, named


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
