"""Which nodes cannot reach each other, and which standstills that explains."""

from typing import Any

import attrs
import pytest

from ftcore.events.worker import Cut, Stand
from ftcore.faults.cuts import Net, Unanswered, at_odds, cuts_of, told
from ftcore.faults.standstill import judge
from ftcore.timing import DEFAULT

SEATS = {name: seat for seat, name in enumerate(("h1", "h2", "h3", "h4"))}


def unanswered(address: str, **more: Any) -> Unanswered:
    given: dict[str, Any] = {"connections": 1, "silent_s": 15.0, "retries": 6, "ranks": (0,)}
    return Unanswered(address=address, **(given | more))


def cut(node: str, peer: str, **more: Any) -> Cut:
    given: dict[str, Any] = {"connections": 1, "silent_s": 15.0, "retries": 6}
    return Cut(node=node, peer=peer, **(given | more))


def found(nets: dict[str, Net], joined: dict[str, str] | None = None) -> tuple[Cut, ...]:
    return cuts_of(nets, joined or {}, SEATS.__getitem__)


def test_both_sides_are_put_together_in_the_order_of_the_world() -> None:
    """Addresses of several interfaces of one peer make one cut."""
    one = Net(addresses=("10.0.0.1",), unanswered=(unanswered("10.0.0.2", ranks=(1,)), unanswered("10.9.0.2")))
    other = Net(addresses=("10.0.0.2", "10.9.0.2"), unanswered=(unanswered("10.0.0.1", silent_s=9.0, ranks=(2,)),))
    assert found({"h2": other, "h1": one}) == (
        cut("h1", "h2", connections=2, ranks=(0, 1)),
        cut("h2", "h1", silent_s=9.0, ranks=(2,)),
    )


def test_only_addresses_of_one_other_node_count() -> None:
    """Not a store of data, not an address of two nodes, not the node itself; one that it joined with does."""
    data = Net(addresses=("10.0.0.1",), unanswered=(unanswered("52.1.2.3"), unanswered("10.0.0.1")))
    assert found({"h1": data, "h2": Net(addresses=("10.0.0.2",))}) == ()
    shared = Net(addresses=("10.0.0.2",))
    asks = Net(addresses=("10.0.0.1",), unanswered=(unanswered("10.0.0.2"),))
    assert found({"h1": asks, "h2": shared, "h3": shared}) == ()
    assert found({"h1": asks}, {"h1": "10.0.0.1", "h2": "10.0.0.2"}) == (cut("h1", "h2", ranks=(0,)),)


def test_the_node_that_most_cannot_reach_goes_else_the_later_one() -> None:
    """Whichever side tells of it."""
    seat = SEATS.__getitem__
    assert at_odds((cut("h1", "h2"),), seat) == at_odds((cut("h2", "h1"),), seat) == ("h2", "h1")
    assert at_odds((cut("h1", "h2"), cut("h3", "h1"), cut("h1", "h3")), seat) == ("h1", "h3", "h2")
    assert at_odds((), seat) == ()


def test_a_pair_is_told_the_same_way_whoever_tells_of_it() -> None:
    """The words in front of the colon name it; more pairs than are named are counted."""
    sides = "3 connections of h1 to h2 and 2 connections of h2 to h1"
    both = (cut("h1", "h2", connections=3, silent_s=16.0), cut("h2", "h1", connections=2))
    assert told(both) == f"h1 and h2 cannot reach each other: no answer for 16 s on {sides}"
    assert told((cut("h2", "h1"),)).startswith("h1 and h2 cannot reach each other: ")
    many = [cut("h1", f"n{number}") for number in range(5)]
    assert told(many).endswith("; and 2 more pairs") and told(many[:4]).endswith("; and one more pair")


WAITS = Stand(ranks=(0, 1), count=2, op="all_reduce", waits="lock", silent_s=20.0, still_s=18.0, held_s=18.0)
PAIR = (cut("h1", "h2"), cut("h2", "h1", silent_s=9.0))


def test_ranks_that_wait_over_a_link_that_is_cut() -> None:
    """A hang once the kernel has heard nothing for long enough, from either side."""
    judged = judge((WAITS,), 2, DEFAULT, 1800.0, PAIR)
    assert (judged.verdict, judged.cause, judged.cuts, judged.ranks) == ("hang", "link-cut", PAIR[:1], ())
    assert judged.message.startswith("h1 and h2 cannot reach each other: no answer for 15 s")
    assert judged.message.endswith("(no step for 20 s)")
    short = tuple(attrs.evolve(each, silent_s=14.9) for each in PAIR)
    assert judge((WAITS,), 2, DEFAULT, 1800.0, short).verdict == ""
    assert judge((WAITS,), 2, DEFAULT, 1800.0).verdict == ""


@pytest.mark.parametrize(
    ("stands", "silent_s", "verdict"),
    [
        ((WAITS,), 15.0, "alert"),  # of rank 2 nothing is known, or it makes steps
        ((WAITS, Stand(ranks=(2,), state="runs", place="e.py:9 (evaluate)", silent_s=20.0)), 59.0, "alert"),
        ((WAITS, Stand(ranks=(2,), state="runs", place="e.py:9 (evaluate)", silent_s=60.0)), 60.0, "hang"),
        ((WAITS, Stand(ranks=(2,), state="runs", op="all_reduce", silent_s=20.0)), 15.0, "hang"),
        ((WAITS, Stand(ranks=(2,), state="waits", silent_s=20.0)), 15.0, "hang"),
    ],
)
def test_who_may_not_need_the_link_yet_is_left_alone(stands: tuple[Stand, ...], silent_s: float, verdict: str) -> None:
    """As long as other ranks make steps, or one is active outside of the collectives."""
    judged = judge(stands, 3, DEFAULT, 1800.0, (cut("h1", "h2", silent_s=silent_s),))
    assert (judged.verdict, judged.cause) == (verdict, "link-cut")


def test_a_rank_that_the_kernel_holds_comes_first() -> None:
    """A rank that was stopped by a signal is what keeps the others waiting, whatever else is wrong."""
    stopped = Stand(ranks=(1,), state="stopped", still_s=6.0)
    assert judge((WAITS, stopped), 3, DEFAULT, 1800.0, PAIR).cause == "stopped"
