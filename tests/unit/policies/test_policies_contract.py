"""All built-in policies pass the conformance tests for policies, and these tests detect violations."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
import pytest

from ftcore.errors import UsageError
from ftcore.events.policy import Terms
from ftcore.policies.base import Ability, Pass, PlanKind, Policy, Take, Verdict
from ftcore.policies.chain import BUILT_IN
from ftcore.policies.external import declare
from ftcore.policies.options import Options, number, says, span
from ftcore.states.model import IncidentState, JobState
from ftcore.testing.policy import PolicyContract


def _contract(made: Policy) -> type[PolicyContract]:
    return type(f"Test{made.name}", (PolicyContract,), {"policy": made})


for _policy in BUILT_IN.values():
    globals()[f"Test{_policy.name}"] = _contract(_policy)


class GoodOptions(Options):
    rest: Annotated[float, span("How long.", maximum=60)] = 5.0
    on: Annotated[bool, says("Whether.")] = True


class Good:
    """What the offenders below are made from."""

    name: ClassVar[str] = "acme"
    doc: ClassVar[str] = "Restart."
    conditions: ClassVar[tuple[str, ...]] = ("takes everything",)
    kinds: ClassVar[tuple[str, ...]] = ("fault",)
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[type[Options]] = GoodOptions

    def considers(self, incident: IncidentState, job: JobState, options: Any) -> Verdict:
        """Take all."""
        return Take(plan=PlanKind.RESTART, reason="why not", grace_s=1.0, wait_s=options.rest)


class TestGood(PolicyContract):
    policy = Good()


class Raises(Good):
    def considers(self, incident: IncidentState, job: JobState, options: Any) -> Verdict:
        raise KeyError(incident.fault.cls)


class RaisesSometimes(Good):
    def considers(self, incident: IncidentState, job: JobState, options: Any) -> Verdict:
        return Pass(reason=f"{1 / options.rest}")


class Mutates(Good):
    def considers(self, incident: IncidentState, job: JobState, options: Any) -> Verdict:
        job.history.attempts.setdefault("acme", []).append(1)
        return Pass(reason="no")


class Remembers(Good):
    def __init__(self) -> None:
        self.asked = 0

    def considers(self, incident: IncidentState, job: JobState, options: Any) -> Verdict:
        self.asked += 1
        return Pass(reason=f"asked {self.asked} times")


class AnswersNothing(Good):
    def considers(self, incident: IncidentState, job: JobState, options: Any) -> Verdict:
        return None  # type: ignore[return-value]


class NamesStrangers(Good):
    def considers(self, incident: IncidentState, job: JobState, options: Any) -> Verdict:
        return Take(plan=PlanKind.RESTART, reason="out", grace_s=1.0, terms=Terms(exclude=("node99",)))


@pytest.mark.parametrize(
    ("offender", "test", "says"),
    [
        (Raises, "test_every_verdict_is_sound", "raised KeyError"),
        (RaisesSometimes, "test_every_value_of_an_option_is_survived", "{'rest': 0.0}: raised ZeroDivisionError"),
        (Mutates, "test_every_verdict_is_sound", "modified its arguments"),
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


def record(**options: tuple[Any, Any]) -> Any:
    """A record of options: type and default by name."""
    fields = [(name, kind, default) for name, (kind, default) in options.items()]
    return msgspec.defstruct("Record", fields, bases=(Options,))


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("name", "other", "they must agree"),
        ("doc", "", "expected one sentence"),
        ("conditions", (), "expected sentences"),
        ("kinds", ("faults",), "`kinds` are ('faults',)"),
        ("needs", ("wings",), "expected abilities"),
        ("options", record(faults=(Annotated[int, number("x")], 1)), "invalid option name"),
        (
            "options",
            record(n=(Annotated[int, number("x")], 1.5)),
            "option n: invalid default: Expected `int`",
        ),
        ("options", record(n=(Annotated[int, number("x", maximum=4)], 5)), "invalid default: Expected `int` <= 4"),
        ("options", record(n=(Annotated[Literal["b"], says("x")], "a")), "invalid default: Invalid enum value 'a'"),
        ("options", record(n=(int, 1)), "option n: no description"),
        ("options", {"n": 3}, "expected a subclass of ftcore.policies.options.Options"),
        ("considers", None, "no method `considers`"),
    ],
)
def test_an_invalid_declaration_is_refused(field: str, value: object, told: str) -> None:
    """What a policy declares is looked at; the message names the field."""
    offender = type("Offender", (Good,), {field: value})
    with pytest.raises(UsageError) as raised:
        declare(offender, "acme", "acme 1.0")
    assert told in str(raised.value)


def test_a_name_of_ftcore_is_taken() -> None:
    """Nobody can put another policy in the place of ftcore's."""
    with pytest.raises(UsageError, match="a built-in policy"):
        declare(type("Offender", (Good,), {"name": "stop"}), "stop", "acme 1.0")


def test_the_conformance_tests_name_the_invalid_declaration():
    """In the words of ``ftctl policy check``, whichever of its tests is the first to run."""

    class Odd(Good):
        options: ClassVar[Any] = {"x": 5}

    class TestOdd(PolicyContract):
        policy = Odd()

    with pytest.raises(UsageError, match=r"expected a subclass of ftcore\.policies\.options\.Options"):
        TestOdd().test_every_value_of_an_option_is_survived()
