"""Whom an alert goes to, and what of it people may see."""

import pytest

from ftcore.events.policy import ChainEntry
from ftcore.policies.targets import hidden, is_reference, shown, targets


@pytest.mark.parametrize(
    ("target", "reference", "seen"),
    [
        ("env:CHAT", True, "env:CHAT"),
        ("file:/etc/ftcore/urls", True, "file:/etc/ftcore/urls"),
        ("slack://T0/B0/secret", False, "slack://…"),
        ("secret", False, "…"),
        ("file://secret", False, "file://…"),
    ],
)
def test_only_references_are_shown_whole(target, reference, seen):
    """Of a URL only the scheme is told."""
    assert (is_reference(target), shown(target)) == (reference, seen)


def test_urls_are_hidden_wherever_they_stand():
    """In the text of a policy file and in the options of an entry; the rest stays."""
    text = "chain:\n- alert: {to: ['slack://T0/B0/secret', env:CHAT]}\n- stop\n"
    made = hidden({"text": text, "chain": [{"options": {"to": ["mailto://me:pw@x.org"], "n": 3}}]})
    assert made["text"] == "chain:\n- alert: {to: ['slack://…', env:CHAT]}\n- stop\n"
    assert made["chain"] == [{"options": {"to": ["mailto://…"], "n": 3}}]


def test_targets_of_a_chain_come_once():
    """A chain without the policy names nobody."""
    entry = ChainEntry(policy="alert", options={"to": ("env:CHAT", "json://h/x")})
    assert targets((entry, ChainEntry(policy="stop", options={}), entry)) == ("env:CHAT", "json://h/x")
    assert targets(()) == ()
