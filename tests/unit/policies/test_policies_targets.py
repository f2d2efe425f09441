"""Targets of alerts, and what outputs show of them."""

import pytest

from ftcore.events.policy import ChainEntry
from ftcore.policies.targets import hidden, is_reference, shown, targets, wrong_target


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
    """Only the scheme of a URL is shown."""
    assert (is_reference(target), shown(target)) == (reference, seen)


@pytest.mark.parametrize("target", ["env:CHAT", "file:/etc/urls", "json://h/x", "mailto://me:pw@x.org", "a+b-c.d://h"])
def test_what_may_be_a_target(target):
    """References, and whatever looks like a URL."""
    assert wrong_target(target) == ""


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("", "found ''; expected env:NAME, file:/PATH or a URL, as json://host"),
        ("nonsense", "found 'nonsense'; expected env:NAME"),
        ("env:", "found 'env:'; expected env:NAME"),
        ("env:A B", "with the name of an environment variable"),
        ("evn:CHAT", "did you mean 'env:'?"),
        ("ENV:CHAT", "did you mean 'env:'?"),
        ("file:urls", "expected file:/ABSOLUTE/PATH"),
        ("file:///etc/urls", "; expected env:NAME"),
        ("https:/hooks.example.org/T0KEN", "found 'http…'; expected env:NAME"),
        ("json://", "; expected env:NAME"),
    ],
)
def test_an_invalid_target_is_reported(target, told):
    """With what would be right, and not more of it than its beginning: it may be a secret."""
    assert told in wrong_target(target) and "T0KEN" not in wrong_target(target)


def test_urls_are_hidden_everywhere():
    """In the text of a policy file and in the options of an entry; the rest stays."""
    text = "chain:\n- alert: {to: ['slack://T0/B0/secret', env:CHAT]}\n- stop\n"
    made = hidden({"text": text, "chain": [{"options": {"to": ["mailto://me:pw@x.org"], "n": 3}}]})
    assert made["text"] == "chain:\n- alert: {to: ['slack://…', env:CHAT]}\n- stop\n"
    assert made["chain"] == [{"options": {"to": ["mailto://…"], "n": 3}}]


def test_targets_of_a_chain_are_unique():
    """A chain without the policy has no targets."""
    entry = ChainEntry(policy="alert", options={"to": ("env:CHAT", "json://h/x")})
    assert targets((entry, ChainEntry(policy="stop", options={}), entry)) == ("env:CHAT", "json://h/x")
    assert targets(()) == ()
