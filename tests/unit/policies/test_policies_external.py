"""Policies that are not ftcore's own, in the engine: asked by an order, answered by a fact, replayed from the log."""

from typing import Annotated, Any

import pytest

from ftcore.commands import ADVISER, AskPolicy
from ftcore.events.job import JobSpec
from ftcore.events.policy import PolicyConsidered, Terms
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.external import External, declare, with_rules
from ftcore.policies.file.config import check, parse
from ftcore.policies.options import Options, span
from ftcore.replay import fold_log, read, verify
from ftcore.sim.whatif.compare import WhatIf
from ftcore.states.model import IncidentState, JobState, digest
from ftcore.testing.driver import JobDriver

CHAIN = "version: 1\nchain:\n  - acme: {rest: 7s}\n  - process_restart\n  - stop\n"


class AcmeOptions(Options):
    rest: Annotated[float, span("How long.")] = 5.0


class Acme:
    """Takes what fails with code 7."""

    name = "acme"
    doc = "Rest."
    conditions = ("takes exit code 7",)
    kinds: tuple[str, ...] = ("fault",)
    needs: tuple[Ability, ...] = ()
    options = AcmeOptions

    def considers(self, incident: IncidentState, job: JobState, options: Any) -> Verdict:
        """Take exit code 7."""
        if job.evidence.reports[0].exitcode != 7:
            return Pass(reason="no 7")
        return Take(plan=PlanKind.RESTART, reason="a 7", grace_s=1.0, wait_s=options.rest)


def driver(policy: type[Acme] = Acme, text: str = CHAIN, **given: Any) -> JobDriver:
    known = {"acme": declare(policy, "acme", "acme 1.0")}
    made = JobDriver(policy=parse(text, "chain.yaml", external=known), external={"acme": policy()}, **given)
    made.start()
    return made


def verdicts(made: JobDriver) -> list[tuple[str, str, str]]:
    return [(e.data.policy, e.data.verdict, e.data.reason) for e in made.events if isinstance(e.data, PolicyConsidered)]


def asked(made: JobDriver) -> int:
    return sum(e.type == "action.ordered" and isinstance(e.data.command, AskPolicy) for e in made.events)


def test_it_takes_what_it_is_for_and_passes_the_rest() -> None:
    """Its verdicts are recorded like all others; its options are those of the chain."""
    made = driver()
    made.fail("node1", exitcode=7)
    made.settle()
    assert verdicts(made) == [("acme", "take", "a 7")]
    assert made.state.deadlines
    before = made.now
    made.wait()
    made.settle()
    assert 6.9e9 < made.now - before < 7.1e9
    assert made.state.phase == "running"
    made.fail("node1", exitcode=-9)
    made.settle()
    assert [verdict[:2] for verdict in verdicts(made)[1:]] == [("acme", "pass"), ("process_restart", "take")]


def test_a_replay_takes_its_verdicts_from_the_log() -> None:
    """Fold and verification of a log need neither the package nor the process."""
    made = driver()
    for code in (7, -9):
        made.fail("node1", exitcode=code)
        made.settle()
        made.wait()
        made.settle()
    report = verify(made.events)
    assert report.ok and report.groups > 10, "\n".join(map(str, report.mismatches))
    assert digest(fold_log(made.events)) == digest(made.state)


def test_what_it_does_not_deal_with_it_is_not_asked_about() -> None:
    """No process is started for a request that it does not handle, or for a class that the file excludes."""
    made = driver(text=CHAIN.replace("rest: 7s", "faults: [storage]"))
    made.fail("node1", exitcode=7)
    made.settle()
    made.stop()
    made.settle()
    assert asked(made) == 0
    assert verdicts(made)[0] == ("acme", "pass", "limited by `faults` to: storage")
    assert made.state.ending.outcome == "stopped"


def test_what_it_needs_must_be_there() -> None:
    """Without the ability it passes with the reason, unasked."""

    class Needy(Acme):
        needs = (Ability.PARK,)

    made = driver(Needy, CHAIN.replace("rest: 7s", "optional: true"))
    made.fail("node1", exitcode=7)
    made.settle()
    assert asked(made) == 0
    assert "needs `park`" in verdicts(made)[0][2]


def test_without_an_answer_the_chain_continues_at_the_deadline() -> None:
    """An adviser that is gone costs ten seconds, no more."""
    made = driver()
    made.silence(ADVISER)
    made.fail("node1", exitcode=7)
    made.settle()
    assert made.state.phase == "recovering" and not verdicts(made)
    before = made.now
    made.wait()
    made.settle()
    assert made.now - before < 10.1e9
    assert [verdict[:2] for verdict in verdicts(made)] == [("acme", "pass"), ("process_restart", "take")]


def test_the_driver_records_a_policy_that_faults() -> None:
    """As the master would: policy.faulted, then the next entry."""

    class Broken(Acme):
        def considers(self, incident: IncidentState, job: JobState, options: Any) -> Verdict:
            raise OSError("no")

    made = driver(Broken)
    made.fail("node1", exitcode=7)
    made.settle()
    assert "was asked and failed: raised OSError: no" in verdicts(made)[0][2]
    assert verdicts(made)[1][:2] == ("process_restart", "take")


@pytest.mark.parametrize(
    ("terms", "plan"),
    [
        (Terms(exclude=("node1",), quarantine=("node1",), want=1, patience_s=0.0), PlanKind.RESTART),
        (Terms(alert="look at it", severity="critical"), PlanKind.TELL),
    ],
    ids=["exclude", "tell"],
)
def test_it_may_do_what_anybody_may(terms: Terms, plan: PlanKind) -> None:
    """Its terms come through the fact whole."""

    class Able(Acme):
        def considers(self, incident: IncidentState, job: JobState, options: Any) -> Verdict:
            return Take(plan=plan, reason="able", grace_s=1.0, terms=terms)

    made = driver(Able, spec=JobSpec(argv=("train.py",), nodes_min=1, nodes_max=2))
    made.fail("node1", exitcode=7)
    made.settle()
    (considered,) = [e.data for e in made.events if isinstance(e.data, PolicyConsidered) and e.data.policy == "acme"]
    assert considered.terms == terms
    assert verify(made.events).ok


def test_a_package_that_cannot_be_used_is_a_problem_of_its_line() -> None:
    """With the distribution and the reason."""
    broken = External(name="acme", origin="acme 1.0", error="it cannot be loaded: ImportError: libx")
    (problem,) = check(CHAIN, "chain.yaml", external={"acme": broken}).problems
    assert (problem.line, problem.text) == (
        3,
        "chain: acme, from acme 1.0, cannot be used: it cannot be loaded: ImportError: libx",
    )


def test_rules_of_a_package_are_recorded_and_read() -> None:
    """They are recorded in policy.loaded after the file's own rules, and a replay uses them."""
    rule = {"name": "acme-1", "pattern": "acme: fire", "class": "gpu-hw", "detail": "fire"}
    loaded = with_rules(parse(CHAIN.replace("  - acme: {rest: 7s}\n", ""), "chain.yaml"), [rule], "acme 1.0")
    assert (loaded.rules, loaded.source) == ((rule,), "chain.yaml with rules of acme 1.0")
    made = JobDriver(policy=loaded)
    made.start()
    made.fail("node1", exitcode=1, tail="acme: fire\n")
    made.settle()
    (opened,) = [e.data for e in made.events if e.type == "incident.opened"]
    assert (opened.fault.cls, opened.fault.detail) == ("gpu-hw", "fire")
    assert verify(made.events).ok


def test_what_if_takes_it_to_pass() -> None:
    """A chain with such a policy is priced without it, and the policy is named."""
    made = JobDriver()
    made.start()
    made.fail("node1", exitcode=7)
    made.settle()
    other = parse(CHAIN, "chain.yaml", external={"acme": declare(Acme, "acme", "acme 1.0")})
    reader = WhatIf(other)
    read(made.events, reader)
    (compared,) = reader.compared()
    assert reader.not_asked == ("acme",)
    assert compared.other.policies[0][0] == "process_restart"
