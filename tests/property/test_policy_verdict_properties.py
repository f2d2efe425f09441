"""Every policy, asked about anything in any job that can come about: it answers, and leaves all as it was.

The jobs are those of the machine in ``test_job_properties.py``. Besides the incident that is open, each policy is asked
about one of every kind and class, with every option at an end of what it may be.
"""

from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from test_job_properties import Job

from ftcore.commands import PauseWorkers, ResumeWorkers, SaveCheckpoint
from ftcore.events.incident import Fault
from ftcore.events.worker import ADVISORY
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.base import Pass, PlanKind, Take
from ftcore.policies.chain import BUILT_IN
from ftcore.policies.options import Option, described, filled
from ftcore.states.incident import IncidentPhase
from ftcore.states.model import IncidentState, JobState, to_json

DETAILS = (
    "uce",
    "collective",
    "hang",
    *ADVISORY,
    "stop",
    "pause",
    "resume",
    "drain",
    "evict",
    "checkpoint",
    "grow",
    "",
)
KINDS = ("fault", "warning", "request", "opportunity")


def values_of(option: Option) -> Iterator[Any]:
    """The ends of what an option may be, and its default."""
    yield option.default
    if option.kind == "bool":
        yield not option.default
    elif option.kind == "choice":
        yield from option.choices
    elif option.kind == "texts":
        yield from ((), list(option.choices), ["gpu-hw", "numeric", "norm"])
    elif option.kind in ("int", "number", "duration"):
        yield option.minimum
        yield option.maximum if option.maximum is not None else 10**6


def check(name: str, about: IncidentState, job: JobState, given: dict[str, Any]) -> None:
    before, options = (to_json(job), repr(about)), filled(BUILT_IN[name].options, given)
    verdict = BUILT_IN[name].considers(about, job, options)
    assert verdict == BUILT_IN[name].considers(about, job, options)
    assert (to_json(job), repr(about)) == before
    assert verdict.reason
    if isinstance(verdict, Pass):
        assert verdict.again_s >= 0
        return
    assert min(verdict.wait_s, verdict.deadline_s, verdict.grace_s) >= 0
    check_plan(name, about, job, verdict)


def check_plan(name: str, about: IncidentState, job: JobState, taken: Take) -> None:
    terms = taken.terms
    if taken.plan is PlanKind.IN_PLACE:
        assert isinstance(terms.command, PauseWorkers | ResumeWorkers | SaveCheckpoint)
        assert job.rounds.world is not None
        assert terms.command.round == job.rounds.world.round
        assert taken.deadline_s > 0, "an order in place without a deadline would wait for ever"
    elif taken.plan is PlanKind.END:
        assert name == "stop"
        assert taken.outcome
    elif taken.plan is PlanKind.TELL:
        assert terms.alert
    else:
        assert terms.command is None
        out = {node for node in terms.exclude if node in job.membership.nodes and job.membership.nodes[node].alive}
        assert len(out) <= max(1, len(job.membership.places))
        assert terms.patience_s is None or terms.patience_s > 0
        assert job.spec is None or terms.want <= job.spec.nodes_max
        assert terms.rollback_to is None or terms.rollback_to in job.training.checkpoints


class Asked(Job):
    """A job to which things happen, and policies that are asked about it at any time."""

    @rule(
        data=st.data(),
        name=st.sampled_from(sorted(BUILT_IN)),
        cls=st.sampled_from([*map(str, FaultClass), "a-class-of-tomorrow"]),
        detail=st.sampled_from(DETAILS),
        kind=st.sampled_from(KINDS),
        node=st.sampled_from(["node0", "node1", "spare", "nobody", ""]),
        step=st.sampled_from([None, 0, 1, 10]),
        tried=st.lists(st.sampled_from(sorted(BUILT_IN)), max_size=2),
    )
    def a_policy_is_asked(
        self,
        data: st.DataObject,
        name: str,
        cls: str,
        detail: str,
        kind: str,
        node: str,
        step: int | None,
        tried: list[str],
    ) -> None:
        job = self.driver.state
        described_ = described(BUILT_IN[name].options)
        options = {key: data.draw(st.sampled_from(list(values_of(o)))) for key, o in described_.items()}
        root = data.draw(st.sampled_from([1, *(report.seq for report in job.evidence.reports)]))
        fault = Fault(
            cls=cls,
            detail=detail,
            nodes=(node,) if node else (),
            ranks=(0,),
            root=root,
            summary="it broke",
            step=step,
            absolute=data.draw(st.booleans()),
        )
        about = IncidentState(
            id="i99",
            kind=kind,
            phase=IncidentPhase.OPEN,
            fault=fault,
            revision=1,
            opened=job.time,
            round=job.rounds.world.round if job.rounds.world is not None else 0,
            progress=job.training.step,
            absolute=True,
            tried=tried,
            asked=list(tried),
        )
        check(name, about, job, options)
        if job.incident is not None:
            check(name, job.incident, job, options)


TestAsked = Asked.TestCase
TestAsked.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_every_kind_of_option_has_its_ends():
    """A new kind of option is asked about as well."""
    kinds = {option.kind for policy in BUILT_IN.values() for option in described(policy.options).values()}
    assert kinds <= {"int", "number", "duration", "bool", "choice", "texts"}
