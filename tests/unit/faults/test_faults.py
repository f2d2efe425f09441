"""Classification of single reports, and which of several is the root."""

import itertools

import attrs
import pytest

from ftcore.faults.classify import RULES, classify, signal_name
from ftcore.faults.correlate import correlate
from ftcore.faults.taxonomy import CLASSES, FaultClass
from ftcore.states.model import Report

PEER_GONE = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:52710"


def report(seq: int = 1, type_: str = "worker.failed", **fields) -> Report:
    known = {
        "node": "node0",
        "rank": 0,
        "round": 1,
        "time": seq * 10**6,
        "mono": 0,
        "boot": "",
        "exitcode": 1,
        "message": "",
        "tail": "",
        "step": 7,
        "absolute": True,
    }
    return Report(seq=seq, type=type_, **{**known, **fields})


def test_every_class_has_its_facts():
    """Each class says what it means, who is at fault and what to look at."""
    assert set(CLASSES) == set(FaultClass)
    for facts in CLASSES.values():
        assert facts.at_fault in ("process", "node", "data", "user", "nobody")
        assert facts.meaning.endswith(".")
        assert facts.advice


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.cls}-{rule.detail}")
@pytest.mark.parametrize("where", ["message", "tail"])
def test_every_rule_finds_its_own_example(rule, where):
    """The example is classified by its own rule, in the error file's message and in the last output alike."""
    reading = classify(report(**{where: f"{rule.example}\n"}))
    assert (reading.cls, reading.detail, reading.role) == (rule.cls, rule.detail, rule.role)
    assert rule.example[:40] in reading.summary


@pytest.mark.parametrize(
    ("fields", "cls", "detail", "role"),
    [
        ({"exitcode": -9}, "signal-preemption", "sigkill", "root"),
        ({"exitcode": -15}, "signal-preemption", "sigterm", "root"),
        ({"exitcode": -11}, "user-code", "sigsegv", "root"),
        ({"exitcode": -6}, "user-code", "sigabrt", "root"),
        ({"exitcode": -6, "message": PEER_GONE}, "collateral", "peer-gone", "collateral"),
        ({"message": "ValueError: x"}, "user-code", "exception", "root"),
        ({"exitcode": 3}, "user-code", "exit", "unknown"),
        ({"type_": "node.lost", "exitcode": None, "rank": -1, "message": "silent"}, "node-lost", "silent", "root"),
        ({"type_": "store.failed", "exitcode": None, "message": "gone"}, "network-rendezvous", "store-lost", "root"),
        ({"type_": "workers.unstartable", "exitcode": None, "message": "no file"}, "config-env", "unstartable", "root"),
    ],
)
def test_readings_of_single_reports(fields, cls, detail, role):
    """Class, detail and role follow from exit code, message and kind of report."""
    reading = classify(report(**fields))
    assert (reading.cls, reading.detail, reading.role) == (cls, detail, role)


def test_signals_without_a_name():
    """A number that is no signal here is still told."""
    assert (signal_name(9), signal_name(99)) == ("SIGKILL", "signal 99")


CULPRITS = {
    "killed": {"exitcode": -9},
    "crashed": {"exitcode": -11},
    "raised": {"message": "ValueError: x"},
    "lost": {"type_": "node.lost", "exitcode": None, "rank": -1, "message": "silent"},
}
VICTIMS = {"peer gone": {"message": PEER_GONE}, "says nothing": {"exitcode": 1}}


@pytest.mark.parametrize("culprit", CULPRITS)
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("culprit_first", [True, False])
@pytest.mark.parametrize("same_node", [True, False])
def test_the_culprit_is_the_root_whoever_reports_first(culprit, victim, culprit_first, same_node):
    """What a report is comes before when it came, on one node and on two."""
    first, second = (1, 2) if culprit_first else (2, 1)
    guilty = report(first, node="node0", **CULPRITS[culprit])
    hurt = report(second, **{"node": "node0" if same_node else "node1", "rank": 3, **VICTIMS[victim]})
    for reports in itertools.permutations([guilty, hurt]):
        fault = correlate(reports)
        assert fault.root == guilty.seq
        assert fault.collateral == (hurt.seq,)
        assert fault.nodes[0] == "node0"


def test_among_equals_the_earliest_by_the_boots_clock_is_the_root():
    """Two of a kind from one boot: the monotonic clock decides, not the order of arrival."""
    late = report(1, node="a", mono=200, boot="b", exitcode=-9)
    early = report(2, node="b", mono=100, boot="b", exitcode=-9)
    assert correlate([late, early]).root == 2
    other_boot = attrs.evolve(early, boot="c")
    assert correlate([late, other_boot]).root == 1


def test_only_the_newest_round_counts():
    """Reports of a round that is over do not colour the reading of the next."""
    old, new = report(1, round=1, exitcode=-9), report(2, round=2, message="ValueError: x")
    fault = correlate([old, new])
    assert (fault.root, fault.collateral) == (2, ())


def test_a_fault_names_boundedly_many():
    """A thousand victims do not make an event of a thousand names."""
    reports = [report(seq, node=f"n{seq}", rank=seq, message=PEER_GONE) for seq in range(1, 1000)]
    fault = correlate(reports)
    assert max(len(fault.nodes), len(fault.ranks), len(fault.collateral)) <= 16
