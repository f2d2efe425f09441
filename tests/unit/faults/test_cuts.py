"""Tests of cuts between nodes, and of the standstills that they explain."""

from typing import Any

import msgspec
import pytest

from ftcore.events.worker import Cut, RankState
from ftcore.faults.cuts import Net, Unanswered, cuts_of, describe, nodes_apart
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


def test_both_sides_are_merged_in_the_order_of_the_world() -> None:
    """Several addresses of one peer make one cut."""
    one = Net(addresses=("10.0.0.1",), unanswered=(unanswered("10.0.0.2", ranks=(1,)), unanswered("10.9.0.2")))
    other = Net(addresses=("10.0.0.2", "10.9.0.2"), unanswered=(unanswered("10.0.0.1", silent_s=9.0, ranks=(2,)),))
    assert found({"h2": other, "h1": one}) == (
        cut("h1", "h2", connections=2, ranks=(0, 1)),
        cut("h2", "h1", silent_s=9.0, ranks=(2,)),
    )


def test_only_addresses_of_one_other_node_count() -> None:
    """A data store's address, a shared address and the node's own are ignored; the address it joined with counts."""
    data = Net(addresses=("10.0.0.1",), unanswered=(unanswered("52.1.2.3"), unanswered("10.0.0.1")))
    assert found({"h1": data, "h2": Net(addresses=("10.0.0.2",))}) == ()
    shared = Net(addresses=("10.0.0.2",))
    asks = Net(addresses=("10.0.0.1",), unanswered=(unanswered("10.0.0.2"),))
    assert found({"h1": asks, "h2": shared, "h3": shared}) == ()
    assert found({"h1": asks}, {"h1": "10.0.0.1", "h2": "10.0.0.2"}) == (cut("h1", "h2", ranks=(0,)),)


def test_the_node_with_most_unreachable_peers_comes_first_else_the_later_one() -> None:
    """The result does not depend on the reporting side."""
    seat = SEATS.__getitem__
    assert nodes_apart((cut("h1", "h2"),), seat) == nodes_apart((cut("h2", "h1"),), seat) == ("h2", "h1")
    assert nodes_apart((cut("h1", "h2"), cut("h3", "h1"), cut("h1", "h3")), seat) == ("h1", "h3", "h2")
    assert nodes_apart((), seat) == ()


def test_a_pair_has_one_description_from_either_side() -> None:
    """The text names both nodes first; pairs beyond the limit are counted."""
    sides = "3 connections of h1 to h2 and 2 connections of h2 to h1"
    both = (cut("h1", "h2", connections=3, silent_s=16.0), cut("h2", "h1", connections=2))
    assert describe(both) == f"h1 and h2 cannot reach each other: no answer for 16 s on {sides}"
    assert describe((cut("h2", "h1"),)).startswith("h1 and h2 cannot reach each other: ")
    many = [cut("h1", f"n{number}") for number in range(5)]
    assert describe(many).endswith("; and 2 more pairs") and describe(many[:4]).endswith("; and one more pair")


WAITS = RankState(ranks=(0, 1), count=2, op="all_reduce", waits="lock", silent_s=20.0, still_s=18.0, held_s=18.0)
PAIR = (cut("h1", "h2"), cut("h2", "h1", silent_s=9.0))


def test_ranks_that_wait_over_a_cut_link_hang() -> None:
    """A hang after the kernel has had no answer for long enough, reported by either side."""
    judged = judge((WAITS,), 2, DEFAULT, 1800.0, PAIR)
    assert (judged.verdict, judged.cause, judged.cuts, judged.ranks) == ("hang", "link-cut", PAIR[:1], ())
    assert judged.message.startswith("h1 and h2 cannot reach each other: no answer for 15 s")
    assert judged.message.endswith("(no step for 20 s)")
    short = tuple(msgspec.structs.replace(each, silent_s=14.9) for each in PAIR)
    assert judge((WAITS,), 2, DEFAULT, 1800.0, short).verdict == ""
    assert judge((WAITS,), 2, DEFAULT, 1800.0).verdict == ""


@pytest.mark.parametrize(
    ("stands", "silent_s", "verdict"),
    [
        ((WAITS,), 15.0, "alert"),  # of rank 2 nothing is known, or it makes steps
        ((WAITS, RankState(ranks=(2,), state="runs", place="e.py:9 (evaluate)", silent_s=20.0)), 59.0, "alert"),
        ((WAITS, RankState(ranks=(2,), state="runs", place="e.py:9 (evaluate)", silent_s=60.0)), 60.0, "hang"),
        ((WAITS, RankState(ranks=(2,), state="runs", op="all_reduce", silent_s=20.0)), 15.0, "hang"),
        ((WAITS, RankState(ranks=(2,), state="waits", silent_s=20.0)), 15.0, "hang"),
    ],
)
def test_ranks_that_may_not_need_the_link_yet_are_not_stopped(
    stands: tuple[RankState, ...], silent_s: float, verdict: str
) -> None:
    """While other ranks complete steps, or a rank is active outside of the collectives."""
    judged = judge(stands, 3, DEFAULT, 1800.0, (cut("h1", "h2", silent_s=silent_s),))
    assert (judged.verdict, judged.cause) == (verdict, "link-cut")


def test_a_stopped_rank_takes_precedence_over_a_cut() -> None:
    """A rank stopped by a signal is the cause, whatever else is wrong."""
    stopped = RankState(ranks=(1,), state="stopped", still_s=6.0)
    assert judge((WAITS, stopped), 3, DEFAULT, 1800.0, PAIR).cause == "stopped"
