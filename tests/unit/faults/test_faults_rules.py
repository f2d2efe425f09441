"""Tests of the table of rules, and of custom rules."""

from pathlib import Path

import pytest

from ftcore.errors import UsageError
from ftcore.faults.codes import IB_STATUS, XIDS, XidKind
from ftcore.faults.extra import extra_rules
from ftcore.faults.pattern import PATTERN_CHARS_MAX, check
from ftcore.faults.rule import ROLES, WEIGHT_MAX
from ftcore.faults.rules import RULES
from ftcore.faults.table import table
from ftcore.faults.taxonomy import CLASSES, FaultClass, Remedy
from ftcore.faults.text import classify_text

WHERE = "p.yaml: faults.rules"
ORDINARY = (Path(__file__).parent / "cases" / "ordinary.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_matches_its_own_example(rule):
    """No rule is hidden by an earlier one, each has a reason, and none matches every line."""
    check(rule.pattern, rule.name)
    read = table().read_text(rule.example)

    assert read is not None
    assert read.name == rule.name
    assert rule.reason
    assert rule.role in ROLES
    assert 0 <= rule.weight <= WEIGHT_MAX


@pytest.mark.parametrize("rule", [r for r in RULES if r.cls is not FaultClass.UNKNOWN], ids=lambda rule: rule.name)
def test_an_example_alone_is_diagnosed_by_its_rule(rule):
    """A text of this one line has the rule's class, detail and action, and shows the line."""
    diagnosis = classify_text(f"step 1\n{rule.example}\nstep 2\n")

    assert (diagnosis.cls, diagnosis.detail) == (rule.cls, rule.detail)
    assert diagnosis.action == (rule.action or CLASSES[rule.cls].action)
    assert rule.example.strip()[:60] in diagnosis.evidence[0]


@pytest.mark.parametrize("line", ORDINARY)
def test_an_ordinary_line_is_no_evidence(line):
    """Set-up, settings, zero counters and passed checks have words like ``error`` and mean nothing."""
    rule = table().read_text(line)
    assert rule is None or rule.weight == 0, rule.name


def test_names_are_unique():
    """A rule is identified by its name."""
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_only_definite_evidence_costs_a_node():
    """Rules that replace a node have a great weight: hardware, a link, or the platform's report."""
    costly = [r for r in RULES if (r.action or CLASSES[r.cls].action) is Remedy.REPLACE_NODE]
    assert all(rule.weight >= 57 for rule in costly), [rule.name for rule in costly if rule.weight < 57]


@pytest.mark.parametrize("xid", [(code, xid) for xid in XIDS for code in xid.codes], ids=lambda pair: str(pair[0]))
@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:38:00): {}, pid='<unknown>', name=<unknown>, Ch 00000008",
        "[ 3606.832215] NVRM: Xid (PCI:00000000:04:00.0): {}, some words",
        "kern :warn : 2025-01-21T04:41:44 NVRM: Xid (PCI:0002:00:00): {}",
        "GPU 3 reported Xid {}",
    ],
)
def test_every_xid_is_read_in_every_form(xid, line):
    """Address, process and name are optional; the number decides."""
    code, row = xid
    rule = table().read_text(line.format(code))
    assert rule is not None
    assert rule.detail == f"xid-{row.name}"
    assert (rule.cls is FaultClass.GPU_HW) == (row.kind in (XidKind.DEVICE, XidKind.CONTAINED, XidKind.EARLY))


@pytest.mark.parametrize("status", IB_STATUS)
def test_every_completion_status_is_read(status):
    """Both forms of NCCL's message for a failed completion; 5 is a consequence, never the cause."""
    for word in (f"with error {status}, opcode 0", f"with status={status} opcode=0"):
        diagnosis = classify_text(f"NCCL WARN NET/IB : Got completion from peer 10.0.0.1<32049> {word} len 0")
        assert (diagnosis.role == "collateral") == (status == 5)


def test_a_minimal_custom_rule():
    """Only pattern and class are required."""
    [rule] = extra_rules([{"pattern": "licence .* gone", "class": "config-env"}], WHERE)
    assert (rule.name, rule.detail, rule.role, rule.action) == ("rule-1", "rule-1", "root", None)
    diagnosis = classify_text("ECC error: uncorrectable ECC\nlicence server gone", (rule,))
    assert (diagnosis.cls, diagnosis.rule) == ("config-env", "rule-1")


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (None, "found nothing, expected a list"),
        ({"pattern": "x"}, "found a mapping, expected a list"),
        ("x", "expected a list"),
        ([5], r"\[0\]: found 5 \(int\), expected a rule"),
        ([{"class": "hang"}], r"\[0\]: the key 'pattern' is missing"),
        ([{"pattern": "x"}], "the key 'class' is missing"),
        ([{"pattern": "x", "class": "hng"}], r"\[0\].class: unknown 'hng', did you mean 'hang'\?"),
        ([{"pattern": "x", "class": "request"}], "unknown 'request'"),
        ([{"pattern": "x", "class": "hang", "rol": "root"}], r"unknown key 'rol', did you mean 'role'\?"),
        ([{"pattern": "x", "class": "hang", "role": "boss"}], "role: unknown 'boss'"),
        ([{"pattern": "x", "class": "hang", "action": "reboot"}], "action: unknown 'reboot'"),
        ([{"pattern": "(", "class": "hang"}], "is not valid in RE2"),
        ([{"pattern": "(?=x)y", "class": "hang"}], "no look-around"),
        ([{"pattern": r"(a)\1", "class": "hang"}], "no look-around and no back-references"),
        ([{"pattern": "x*", "class": "hang"}], "matches every line"),
        ([{"pattern": "", "class": "hang"}], "the pattern is empty"),
        ([{"pattern": "x" * (PATTERN_CHARS_MAX + 1), "class": "hang"}], "at most 1000"),
        ([{"pattern": "(?:x{999}y)" * 50, "class": "hang"}], "repeats too much"),
        ([{"pattern": 5, "class": "hang"}], "found 5 .int., expected text; put it into quotes"),
        ([{"pattern": "x", "class": "hang", "example": "y"}], "does not match 'y'"),
        ([{"pattern": "x", "class": "hang", "name": "a b"}], "is not a valid name"),
        ([{"pattern": "x", "class": "hang", "reason": "a\nb"}], "one printable line"),
        ([{"pattern": "x", "class": "hang", "name": "a"}] * 2, r"\[1\]: the name 'a' is already used"),
        ([{"pattern": "x", "class": "hang"}] * 201, "at most 200"),
    ],
)
def test_invalid_rules_are_refused(items, message):
    """One message: the place, what was found, what was expected."""
    with pytest.raises(UsageError, match=message) as caught:
        extra_rules(items, WHERE)
    assert str(caught.value).startswith(WHERE)
