"""Equality, hash and representation of payloads, which have them in common (``events/payload.py``)."""

import attrs

from ftcore.events.payload import Payload


@attrs.frozen(kw_only=True, repr=False, eq=False)
class _Named(Payload):
    node: str
    rank: int = 0


@attrs.frozen(kw_only=True, repr=False, eq=False)
class _Other(Payload):
    node: str
    rank: int = 0


@attrs.frozen(kw_only=True, repr=False, eq=False)
class _Single(Payload):
    node: str


@attrs.frozen(kw_only=True, repr=False, eq=False)
class _Empty(Payload):
    pass


def test_payloads_of_one_class_are_equal_by_value() -> None:
    assert _Named(node="a", rank=1) == _Named(node="a", rank=1)
    assert _Named(node="a", rank=1) != _Named(node="a", rank=2)
    assert _Single(node="a") == _Single(node="a") != _Single(node="b")
    assert _Empty() == _Empty()


def test_payloads_of_two_classes_differ() -> None:
    assert _Named(node="a") != _Other(node="a")
    assert _Named(node="a") != ("a", 0)


def test_equal_payloads_count_once_in_a_set() -> None:
    assert len({_Named(node="a"), _Named(node="a"), _Named(node="b"), _Other(node="a"), _Empty(), _Empty()}) == 4


def test_all_fields_are_shown() -> None:
    assert repr(_Named(node="a", rank=1)) == "_Named(node='a', rank=1)"
    assert repr(_Empty()) == "_Empty()"
