"""Every policy of ftcore keeps the contract that is asked of everybody else's; and the contract notices offenders."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from ftcore.errors import UsageError
from ftcore.events.policy import Terms
from ftcore.policies.base import Ability, Option, Pass, PlanKind, Policy, Take, Verdict
from ftcore.policies.chain import BUILT_IN
from ftcore.policies.external import declare
from ftcore.states.model import IncidentState, JobState
from ftcore.testing.policy import PolicyContract


def _contract(made: Policy) -> type[PolicyContract]:
    return type(f"Test{made.name}", (PolicyContract,), {"policy": made})


for _policy in BUILT_IN.values():
    globals()[f"Test{_policy.name}"] = _contract(_policy)


class Good:
    """What the offenders below are made from."""

    name: ClassVar[str] = "acme"
    doc: ClassVar[str] = "Restart."
    conditions: ClassVar[tuple[str, ...]] = ("takes everything",)
    kinds: ClassVar[tuple[str, ...]] = ("fault",)
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[Mapping[str, Option]] = {
        "rest": Option(default=5, kind="duration", maximum=60, doc="How long."),
        "on": Option(default=True, kind="bool", doc="Whether."),
    }

    def considers(self, incident: IncidentState, job: JobState, options: Mapping[str, Any]) -> Verdict:
        """Take all."""
        return Take(plan=PlanKind.RESTART, reason="why not", grace_s=1.0, wait_s=options["rest"])


class TestGood(PolicyContract):
    policy = Good()


class Raises(Good):
    def considers(self, incident: IncidentState, job: JobState, options: Mapping[str, Any]) -> Verdict:
        raise KeyError(incident.fault.cls)


class RaisesSometimes(Good):
    def considers(self, incident: IncidentState, job: JobState, options: Mapping[str, Any]) -> Verdict:
        return Pass(reason=f"{1 / options['rest']}")


class Mutates(Good):
    def considers(self, incident: IncidentState, job: JobState, options: Mapping[str, Any]) -> Verdict:
        job.attempts.setdefault("acme", []).append(1)
        return Pass(reason="no")


class Remembers(Good):
    def __init__(self) -> None:
        self.asked = 0

    def considers(self, incident: IncidentState, job: JobState, options: Mapping[str, Any]) -> Verdict:
        self.asked += 1
        return Pass(reason=f"asked {self.asked} times")


class AnswersNothing(Good):
    def considers(self, incident: IncidentState, job: JobState, options: Mapping[str, Any]) -> Verdict:
        return None  # type: ignore[return-value]


class NamesStrangers(Good):
    def considers(self, incident: IncidentState, job: JobState, options: Mapping[str, Any]) -> Verdict:
        return Take(plan=PlanKind.RESTART, reason="out", grace_s=1.0, terms=Terms(exclude=("node99",)))


@pytest.mark.parametrize(
    ("offender", "test", "says"),
    [
        (Raises, "test_every_verdict_is_sound", "raised KeyError"),
        (RaisesSometimes, "test_every_value_of_an_option_is_survived", "{'rest': 0.0}: raised ZeroDivisionError"),
        (Mutates, "test_every_verdict_is_sound", "changed what it was given"),
        (Remembers, "test_the_same_question_has_the_same_answer", "asked 1 times"),
        (AnswersNothing, "test_every_verdict_is_sound", "expected a Take or a Pass"),
        (NamesStrangers, "test_every_verdict_is_sound", "the job has no node 'node99'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_contract_notices_offenders(offender: type[Good], test: str, says: str) -> None:
    """Each way to break the contract fails a test, whose message says what was wrong."""
    contract = _contract(offender())()
    with pytest.raises(AssertionError) as raised:
        getattr(contract, test)()
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("name", "other", "they must agree"),
        ("doc", "", "expected one sentence"),
        ("conditions", (), "expected sentences"),
        ("kinds", ("faults",), "its `kinds` are ('faults',)"),
        ("needs", ("wings",), "expected abilities"),
        ("options", {"faults": Option(default=1, kind="int", doc="x")}, "needs another name"),
        ("options", {"n": Option(default=1.5, kind="int", doc="x")}, "is no int"),
        ("options", {"n": Option(default=5, kind="int", doc="x", maximum=4)}, "outside its own limits"),
        ("options", {"n": Option(default="a", kind="choice", doc="x", choices=("b",))}, "none of its choices"),
        ("options", {"n": Option(default=1, kind="whole", doc="x")}, "of kind 'whole'"),
        ("options", {"n": 3}, "expected an Option"),
        ("considers", None, "no method `considers`"),
    ],
)
def test_a_declaration_that_cannot_be_right_is_refused(field: str, value: object, says: str) -> None:
    """What a policy declares is looked at; the message names the field."""
    offender = type("Offender", (Good,), {field: value})
    with pytest.raises(UsageError) as raised:
        declare(offender, "acme", "acme 1.0")
    assert says in str(raised.value)


def test_a_name_of_ftcore_is_taken() -> None:
    """Nobody can put another policy in the place of ftcore's."""
    with pytest.raises(UsageError, match="a policy of ftcore"):
        declare(type("Offender", (Good,), {"name": "stop"}), "stop", "acme 1.0")


def test_the_contract_tells_what_is_declared_wrongly():
    """In the words of ``ftctl policy check``, whichever of its tests is the first to run."""

    class Odd(Good):
        options: ClassVar[Any] = {"x": 5}

    class TestOdd(PolicyContract):
        policy = Odd()

    with pytest.raises(UsageError, match="the option x is 5, expected an Option"):
        TestOdd().test_every_value_of_an_option_is_survived()
