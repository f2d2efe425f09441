"""Labelled texts: those that rules are written with, each held to; and blind ones, of which most must be right.

The texts are made up from how programs, libraries, kernels and schedulers word their failures; values and selection
are this project's own. ``cases/*.yaml`` are open: a rule is written with them in view. ``cases/blind`` was written
before the rules that serve it and is only counted: whoever changes rules looks at the count, not at the texts.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftcore.faults.rule import ROLES
from ftcore.faults.taxonomy import Action, FaultClass
from ftcore.faults.text import Diagnosis, classify_text

HERE = Path(__file__).parent / "cases"
BLIND_CLASS_MIN = 0.85
BLIND_ACTION_MIN = 0.95


def cases(folder: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(folder.glob("*.yaml")):
        yield from yaml.safe_load(file.read_text())


OPEN = list(cases(HERE))
BLIND = list(cases(HERE / "blind"))


def told(found: Diagnosis) -> tuple[str, str, str]:
    return str(found.cls), found.role, str(found.action)


def label(case: dict[str, Any]) -> tuple[str, str, str]:
    return case["class"], case["role"], case["action"]


@pytest.mark.parametrize("case", OPEN, ids=lambda case: case["id"])
def test_an_open_case_is_told_as_labelled(case):
    """Class, role and action of a text that rules are written with."""
    assert told(classify_text(case["text"])) == label(case)


def test_most_blind_cases_are_told_as_labelled():
    """What rules were not written for is told rightly as often as recorded, or more often."""
    right = [told(classify_text(case["text"])) for case in BLIND]
    assert sum(a[0] == b["class"] for a, b in zip(right, BLIND, strict=True)) >= BLIND_CLASS_MIN * len(BLIND)
    assert sum(a[2] == b["action"] for a, b in zip(right, BLIND, strict=True)) >= BLIND_ACTION_MIN * len(BLIND)


def test_no_blind_case_costs_a_node_that_is_well():
    """No text that speaks for something else is told as one that replaces a node."""
    costly = [
        case["id"]
        for case in BLIND
        if classify_text(case["text"]).action is Action.REPLACE_NODE and case["action"] != "replace-node"
    ]
    assert costly == []


def test_labels_are_of_the_taxonomy():
    """Every case has its own name, known labels and a reason."""
    everything = [*OPEN, *BLIND]
    assert len({case["id"] for case in everything}) == len(everything)
    for case in everything:
        assert case["class"] in set(FaultClass), case["id"]
        assert case["action"] in set(Action), case["id"]
        assert case["role"] in {*ROLES, "multi"}, case["id"]
        assert case["why"], case["id"]
