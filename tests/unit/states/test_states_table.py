"""Inconsistent declarations do not import."""

from enum import StrEnum

import pytest

from ftcore.states.table import DefinitionError, Ignored, Machine, Row


class S(StrEnum):
    A = "a"
    B = "b"
    C = "c"


GOOD = (Row("go", S.A, S.B), Row("end", S.B, S.C))


def define(table=GOOD, ignored=(), guards=None, finals=(S.C,), states=S):
    return Machine("toy", "A toy.", states, S.A, finals, table, ignored, guards)


def test_a_sound_table_is_accepted():
    """A valid table makes a machine that steps, ignores and rejects."""
    machine = define(ignored=(Ignored("go", (S.B,), "gone already"),))
    assert machine.step(S.A, "go") is S.B
    assert machine.step(S.B, "go") is S.B
    assert machine.step(S.C, "go") is None
    assert machine.triggers == ("end", "go")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": (*GOOD, Row("go", S.A, S.C))}, "machine toy: go in a is declared twice"),
        (
            {"table": (*GOOD, Row("go", S.A, S.C, "ready")), "guards": {"ready": bool}},
            "machine toy: go in a: a row without a guard hides the rows after it",
        ),
        (
            {"table": (*GOOD, Row("x", S.A, S.C, "ready"))},
            "machine toy: guards of rows and of the machine differ: ['ready']",
        ),
        ({"guards": {"ready": bool}}, "machine toy: guards of rows and of the machine differ: ['ready']"),
        ({"table": (*GOOD, Row("back", S.C, S.B))}, "machine toy: c is final, but back leaves it"),
        ({"ignored": (Ignored("go", (S.B,), ""),)}, "machine toy: go is ignored without a reason"),
        ({"ignored": (Ignored("go", (S.B, S.B), "why"),)}, "machine toy: go in b is ignored twice"),
        ({"ignored": (Ignored("go", (S.A,), "why"),)}, "machine toy: go in a is both a row and ignored"),
        ({"table": (Row("go", S.A, S.C),)}, "machine toy: unreachable states: b"),
        ({"table": (Row("go", S.A, S.B), Row("end", S.A, S.C))}, "machine toy: no path to a final state from: b"),
    ],
)
def test_a_contradiction_is_named(arguments, message):
    """A definition error names machine, state and trigger, exactly."""
    with pytest.raises(DefinitionError) as caught:
        define(**arguments)
    assert str(caught.value) == message


def test_a_final_state_may_reopen_to_the_initial_one():
    """A transition from a final state to the initial one is a new run."""
    assert define(table=(*GOOD, Row("again", S.C, S.A))).step(S.C, "again") is S.A


def test_guards_are_asked_in_the_order_of_the_rows():
    """The first row whose guard holds is taken; a row without a guard may be the last one."""
    machine = define(
        table=(Row("go", S.A, S.C, "done"), Row("go", S.A, S.B), Row("end", S.B, S.C)), guards={"done": bool}
    )
    assert machine.step(S.A, "go", True) is S.C
    assert machine.step(S.A, "go", False) is S.B
    assert [row.target for row in machine.candidates(S.A, "go")] == [S.C, S.B]
