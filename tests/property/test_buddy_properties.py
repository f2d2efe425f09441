"""Copies are spread evenly, never on their own node, and in another failure domain wherever that is possible."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ftcore.states.buddies import spread_copies

domains = st.lists(st.sampled_from(["a", "b", "c", "d", None]), max_size=24)


@given(domains, st.integers(0, 4))
def test_copies_are_spread_evenly(found: list[str | None], copies: int) -> None:
    """Each member that can has as many different holders as possible, and holds as much for others."""
    buddies = spread_copies(found, copies)
    able = [member for member, domain in enumerate(found) if domain is not None]
    count = min(copies, max(len(able) - 1, 0))
    assert len(buddies) == len(found)
    for member, holders in enumerate(buddies):
        assert member not in holders
        assert len(set(holders)) == len(holders) == (count if member in able else 0)
    held = Counter(holder for holders in buddies for holder in holders)
    assert held == (dict.fromkeys(able, count) if count else {})


@given(domains, st.integers(1, 4))
def test_the_first_copy_is_in_another_domain(found: list[str | None], copies: int) -> None:
    """For all members if no domain has more than half of them; else for as many as an even spread allows."""
    buddies = spread_copies(found, copies)
    sizes = Counter(domain for domain in found if domain is not None)
    crossing = sum(found[holders[0]] != found[member] for member, holders in enumerate(buddies) if holders)
    total, largest = sizes.total(), max(sizes.values(), default=0)
    assert crossing >= (total if 2 * largest <= total else 2 * (total - largest))


@given(domains)
def test_a_choice_depends_on_the_members_alone(found: list[str | None]) -> None:
    """More copies add holders, and do not move those of fewer."""
    one, two = spread_copies(found, 1), spread_copies(found, 2)
    assert all(more[:1] == less for less, more in zip(one, two, strict=True))
