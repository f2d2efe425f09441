"""Time constants: the defaults hold the inequalities, and each that is broken is named."""

import msgspec
import pytest

from ftcore.timing import DEFAULT


def test_the_defaults_hold() -> None:
    """They are safe, and a node without power is noticed in five seconds at most."""
    DEFAULT.check()
    assert DEFAULT.node_lease_s <= 5.0


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"heartbeat_s": 0.7}, "heartbeat_s"),
        ({"master_renew_s": 1.5}, "master_lease_s"),
        ({"reconnect_s": 2.0}, "reconnect_s"),
        ({"orphan_grace_s": 5.0}, "orphan_grace_s"),
        ({"master_idle_s": 3.0}, "master_idle_s"),
        ({"stop_grace_s": 600.0}, "return_window_s"),
        ({"hang_look_s": 61.0}, "hang_look_s"),
        ({"hang_idle_s": 601.0}, "hang_busy_s"),
        ({"hang_busy_s": 1801.0}, "hang_ceiling_s"),
    ],
)
def test_a_broken_inequality_is_named(changed: dict[str, float], named: str) -> None:
    """Each inequality of the table is checked by itself."""
    with pytest.raises(ValueError, match=named):
        msgspec.structs.replace(DEFAULT, **changed).check()
