"""Tests: the contract of every policy, and the behaviour of this one."""

from acme_policies.cool_down import CoolDown
from acme_policies.rules import RULES

from ftcore.policies.external import declare, with_rules
from ftcore.policies.file.config import parse
from ftcore.testing.driver import JobDriver
from ftcore.testing.policy import PolicyContract

CHAIN = """
version: 1
chain:
  - acme_cool_down: {rest: 5m, max_rests: 1}
  - process_restart
  - stop
"""


class TestCoolDown(PolicyContract):
    policy = CoolDown()


def job() -> JobDriver:
    known = declare(CoolDown, "acme_cool_down", "acme-policies 1.0")
    policy = parse(CHAIN, "chain.yaml", external={"acme_cool_down": known})
    policy = with_rules(policy, RULES, "acme-policies 1.0")
    return JobDriver(nodes=2, policy=policy, external={"acme_cool_down": CoolDown()})


def verdicts(driver: JobDriver) -> list[tuple[str, str]]:
    return [(e.data.policy, e.data.verdict) for e in driver.events if e.type == "policy.considered"]


def test_overheating_delays_the_restart() -> None:
    """The workers start again after five minutes, not before."""
    driver = job()
    driver.start()
    driver.fail("node1", exitcode=1, tail="acme-bmc: inlet at 43 C\n")
    driver.settle()
    assert verdicts(driver) == [("acme_cool_down", "take")]
    before = driver.now
    driver.wait()
    driver.settle()
    assert driver.now - before > 299e9
    assert driver.state.phase == "running"


def test_a_spent_budget_passes() -> None:
    """When the budget is spent, the next policy is asked."""
    driver = job()
    driver.start()
    for _ in range(2):
        driver.fail("node1", exitcode=1, tail="acme-bmc: inlet at 43 C\n")
        driver.settle()
        driver.wait()
        driver.settle()
    assert ("acme_cool_down", "pass") in verdicts(driver)
    assert driver.state.phase == "running"


def test_other_faults_pass() -> None:
    """A killed worker is restarted at once."""
    driver = job()
    driver.start()
    driver.fail("node1", exitcode=-9)
    driver.settle()
    assert verdicts(driver) == [("acme_cool_down", "pass"), ("process_restart", "take")]
