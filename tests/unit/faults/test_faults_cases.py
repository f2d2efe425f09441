"""Labelled texts: open ones, which must all be diagnosed correctly, and blind ones, of which most must be.

The texts imitate the messages of programs, libraries, kernels and schedulers; values and selection are this project's
own. ``cases/*.yaml`` are open: they are used to write rules. ``cases/blind`` was written before its rules and is only
counted: when rules change, look at the count, not at the texts.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftcore.faults.rule import ROLES
from ftcore.faults.taxonomy import FaultClass, Remedy
from ftcore.faults.text import Diagnosis, classify_text

HERE = Path(__file__).parent / "cases"
BLIND_CLASS_MIN = 0.85
BLIND_ACTION_MIN = 0.95


def cases(folder: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(folder.glob("*.yaml")):
        yield from yaml.safe_load(file.read_text())


OPEN = list(cases(HERE))
BLIND = list(cases(HERE / "blind"))


def labels_of(found: Diagnosis) -> tuple[str, str, str]:
    return str(found.cls), found.role, str(found.action)


def label(case: dict[str, Any]) -> tuple[str, str, str]:
    return case["class"], case["role"], case["action"]


@pytest.mark.parametrize("case", OPEN, ids=lambda case: case["id"])
def test_an_open_case_is_diagnosed_as_labelled(case):
    """Class, role and action of a text that is used to write rules."""
    assert labels_of(classify_text(case["text"])) == label(case)


def test_most_blind_cases_are_diagnosed_as_labelled():
    """Texts that are not used to write rules are diagnosed correctly at least as often as recorded."""
    right = [labels_of(classify_text(case["text"])) for case in BLIND]
    assert sum(a[0] == b["class"] for a, b in zip(right, BLIND, strict=True)) >= BLIND_CLASS_MIN * len(BLIND)
    assert sum(a[2] == b["action"] for a, b in zip(right, BLIND, strict=True)) >= BLIND_ACTION_MIN * len(BLIND)


def test_no_blind_case_costs_a_healthy_node():
    """No text with another label is diagnosed as a fault that replaces a node."""
    costly = [
        case["id"]
        for case in BLIND
        if classify_text(case["text"]).action is Remedy.REPLACE_NODE and case["action"] != "replace-node"
    ]
    assert costly == []


def test_labels_are_of_the_taxonomy():
    """Every case has a unique name, known labels and a reason."""
    everything = [*OPEN, *BLIND]
    assert len({case["id"] for case in everything}) == len(everything)
    for case in everything:
        assert case["class"] in set(FaultClass), case["id"]
        assert case["action"] in set(Remedy), case["id"]
        assert case["role"] in {*ROLES, "multi"}, case["id"]
        assert case["why"], case["id"]
