"""What a master's agents are sent, and in which order."""

import msgspec

from ftcore.engine.master import DurableMark
from ftcore.events.action import ActionOrdered
from ftcore.events.checkpoint import HeldShard, ShardPersisted
from ftcore.runtime.master.agents import Agents
from ftcore.runtime.master.sessions import Session
from ftcore.testing.driver import JobDriver


def effects(session: Session) -> list[str]:
    """The orders in the queued frames."""
    found = []
    while not session.outgoing.empty():
        frame = msgspec.json.decode(session.outgoing.get_nowait() or b"{}")
        found += [order["effect"] for order in frame.get("orders", ())]
    return found


def test_an_agent_that_connects_during_a_commit_gets_its_older_orders_first() -> None:
    """Each once: an agent carries out orders as they come, so one to resume would undo a later one to stop."""
    driver = JobDriver(2)
    driver.start()
    life = driver.state.membership.nodes["node0"].incarnation
    shard = HeldShard(rank=0, round=1, step=1, group=0, groups=1, ranks=2, tensors=True)
    driver.say("node0", ShardPersisted(node="node0", incarnation=life, shard=shard, file="a", bytes=1, seconds=0.1))
    agents = Agents(lambda: driver.state)
    agents.begin(driver.state)
    session = Session("node0", life)
    agents.attach(session, driver.term, lambda: DurableMark("log", 1, ""), ahead=True)
    assert effects(session) == []
    driver.fail("node1")
    agents.committed(driver.groups[-1])
    expected = [each.effect for each in driver.state.orders.open.values() if "node0" in each.waiting]
    new = [event.data.effect for event in driver.groups[-1] if isinstance(event.data, ActionOrdered)]
    assert expected[0] not in new and set(expected[1:]) <= set(new) and len(expected) > 1
    assert effects(session) == expected
