"""Worlds from round to round, through the production engine: members, their ranks, and the cost in steps."""

import msgspec
import pytest

from ftcore.batch import BatchRule
from ftcore.commands import OpenStore, ParkWorkers, StopWorkers
from ftcore.engine.master import refusal
from ftcore.engine.orders import slice_of
from ftcore.events.job import BatchSpec, JobSpec
from ftcore.events.world import WorldMembers
from ftcore.policies.file.config import parse
from ftcore.states.revisions import NEWEST, WARM_FIRST
from ftcore.testing.driver import JobDriver


def job(least: int, most: int, unit: int = 1, sizes: tuple[int, ...] = (), order_by: str = "") -> JobDriver:
    driver = JobDriver(
        slots=2,
        spec=JobSpec(argv=("t.py",), nodes_min=least, nodes_max=most, node_unit=unit, sizes=sizes, order_by=order_by),
    )
    driver.submit()
    return driver


def world(driver: JobDriver) -> list[str]:
    assert driver.state.rounds.world is not None
    return [member.node for member in driver.state.rounds.world.members]


def on(driver: JobDriver) -> None:
    for _ in range(50):
        driver.settle()
        if driver.state.phase == "running" and driver.state.incident is None:
            return
        assert driver.wait(), driver.state


def joined(driver: JobDriver, *names: str) -> None:
    for name in names:
        driver.join(name)


def test_a_spare_takes_the_place_of_a_lost_node():
    """Ranks of the others stay; the spare gets the lost node's ordinal; a returning node becomes standby."""
    driver = job(3, 3)
    joined(driver, "n0", "n1", "n2", "n3")
    on(driver)
    assert world(driver) == ["n0", "n1", "n2"] and driver.state.membership.nodes["n3"].phase == "standby"
    driver.lose("n1")
    on(driver)
    assert world(driver) == ["n0", "n3", "n2"]
    assert (driver.state.membership.nodes["n3"].ordinal, driver.state.membership.nodes["n2"].ordinal) == (1, 2)
    driver.join("n1")
    on(driver)
    assert driver.state.membership.nodes["n1"].ordinal == 3 and world(driver) == ["n0", "n3", "n2"]
    driver.fail("n0", exitcode=-9)
    on(driver)
    assert world(driver) == ["n0", "n3", "n2"], "a restart moves nobody"


def test_the_global_batch_of_each_world():
    """It is recorded, and part of the nodes' orders; only the permitted sizes of worlds are formed."""
    spec = JobSpec(argv=("t.py",), nodes_min=1, nodes_max=4, batch=BatchSpec(size=48, micro=4, rule=BatchRule.SQRT_LR))
    for changed, expected in (
        (spec, [(48, 1.0, 4, 8), (36, 0.75**0.5, 4, 8)]),
        (msgspec.structs.replace(spec, batch=BatchSpec(size=48, micro=4)), [(48, 1.0, 4, 8), (48, 1.0, 8, 8)]),
        (msgspec.structs.replace(spec, sizes=(1, 2, 4)), [(48, 1.0, 4, 8), (24, 0.5**0.5, 4, 8)]),
    ):
        driver = JobDriver(slots=2, spec=changed)
        driver.submit()
        joined(driver, "n0", "n1", "n2", "n3")
        on(driver)
        driver.lose("n3")
        on(driver)
        formed = [event.data for event in driver.events if event.type == "world.formed"]
        found = [(data.batch.size, data.batch.lr_scale, data.batch.least, data.batch.most) for data in formed]
        assert found == expected
        assert [data.size_before for data in formed] == [0, 8]
        assert slice_of(driver.state, "n0").batch == formed[-1].batch


def test_names_decide_where_nodes_begin():
    """The first world stands in order of names whoever called first, the numbers in them as numbers; and stays so."""
    driver = job(3, 3)
    joined(driver, "w-10", "w-2", "w-1")
    on(driver)
    assert world(driver) == ["w-1", "w-2", "w-10"]
    assert [driver.state.membership.nodes[name].ordinal for name in world(driver)] == [0, 1, 2]
    driver.lose("w-2")
    driver.join("w-2")
    on(driver)
    assert world(driver) == ["w-1", "w-2", "w-10"]


def test_five_nodes_in_pairs():
    """{0..4} with unit 2 is {0..3}, and 4 waits for the next node; then {0..5}."""
    driver = job(2, 6, unit=2)
    joined(driver, *(f"n{number}" for number in range(5)))
    on(driver)
    assert world(driver) == ["n0", "n1", "n2", "n3"]
    driver.join("n5")
    on(driver)
    assert world(driver) == ["n0", "n1", "n2", "n3", "n4", "n5"]


def test_only_the_sizes_that_are_allowed():
    """Three nodes make a world of two, where two and four are allowed; the fourth makes it four."""
    driver = job(2, 4, sizes=(2, 4))
    joined(driver, "n0", "n1", "n2")
    on(driver)
    assert world(driver) == ["n0", "n1"]
    driver.lose("n1")
    on(driver)
    assert world(driver) == ["n0", "n2"]


def test_labels_lay_out_the_ranks():
    """Nodes of one switch are neighbours, and the store is where the first ranks are."""
    driver = job(4, 4, order_by="switch")
    for number, switch in enumerate(("s10", "s2", "s10", "s2")):
        driver.join(f"n{number}", labels={"switch": switch, "rack": "r"})
    on(driver)
    assert world(driver) == ["n1", "n3", "n0", "n2"]
    stores = [e.data.nodes for e in driver.events if isinstance(getattr(e.data, "command", None), OpenStore)]
    assert stores == [("n1",)]


@pytest.mark.parametrize("wide", [0, 1, 2])
def test_nodes_of_unequal_width(wide):
    """Base ranks follow what each node holds."""
    driver = job(3, 3)
    for number in range(3):
        driver.join(f"n{number}", slots=8 if number == wide else 2)
    on(driver)
    members = [m for e in driver.events if isinstance(e.data, WorldMembers) for m in e.data.members]
    expected = [0, 8 if wide == 0 else 2, 4 if wide == 2 else 10]
    assert [m.base_rank for m in members] == expected
    assert driver.state.rounds.world is not None and driver.state.rounds.world.size == 12


@pytest.mark.parametrize("seen", ["lost", "back at once"])
def test_an_unstable_node_is_quarantined(seen):
    """After repeated faults on one node, the job continues without it until an operator admits it."""
    driver = job(1, 2)
    joined(driver, "n0", "n1")
    on(driver)
    rounds = 0
    while "n1" not in driver.state.membership.quarantined:
        rounds += 1
        assert rounds < 8, "restarted for ever"
        driver.make_steps(50)
        if seen == "lost":
            driver.lose("n1")
        driver.join("n1")
        on(driver)
    assert rounds == 5 and world(driver) == ["n0"]
    found = refusal(driver.state, "n1", "n1-99", 0, occupied=False)
    assert found.release is not None and found.release.exit_code == 5 and "ftctl admit n1" in found.reason
    driver.command("admit", "n1", why="its memory was replaced")
    assert refusal(driver.state, "n1", "n1-99", 0, occupied=False) is None
    driver.join("n1")
    on(driver)
    assert world(driver) == ["n0", "n1"], "at once: no timer is waited for"


def test_parked_workers_without_a_place_in_the_new_world_are_stopped():
    """Nodes count in pairs: of three with waiting workers, two go on, and the third becomes a standby node."""
    spec = JobSpec(argv=("t.py",), nodes_min=2, nodes_max=4, node_unit=2)
    driver = JobDriver(spec=spec, abilities=("retry", "park", "resize"))
    driver.submit()
    joined(driver, "n0", "n1", "n2", "n3")
    on(driver)
    driver.lose("n1")
    on(driver)
    assert world(driver) == ["n0", "n2"] and driver.state.membership.nodes["n3"].phase == "standby"
    ordered = [event.data for event in driver.events if event.type == "action.ordered"]
    assert [data.nodes for data in ordered if isinstance(data.command, ParkWorkers)] == [("n0", "n2", "n3")]
    assert [data.nodes for data in ordered if isinstance(data.command, StopWorkers)] == [("n3",)]


def test_growth_follows_a_checkpoint():
    """A spare that joins between two checkpoints is added after the next one; a declined offer is repeated then."""
    driver = job(2, 3)
    joined(driver, "n0", "n1")
    while driver.state.phase != "running":
        driver.settle()
        assert driver.state.phase == "running" or driver.wait()
    driver.make_steps(100)
    driver.commit()
    driver.make_steps(100)
    driver.tick = 10**10
    driver.join("n2")
    on(driver)
    assert world(driver) == ["n0", "n1"]
    driver.commit()
    on(driver)
    assert world(driver) == ["n0", "n1", "n2"]
    assert not driver.state.history.at_commit


@pytest.mark.parametrize(("decides", "waits"), [(NEWEST, True), (WARM_FIRST - 1, False)])
def test_growth_begins_when_a_new_node_is_warm(decides: int, waits: bool):
    """Until then the job trains: the others would wait for the start of its interpreter. Not so by earlier rules."""
    driver = JobDriver(
        spec=JobSpec(argv=("t.py",), nodes_min=2, nodes_max=4),
        policy=parse("version: 1\nchain:\n  - grow: {every: 0}\n  - stop\n", "test"),
        decides=decides,
    )
    driver.submit()
    joined(driver, "n0", "n1")
    on(driver)
    driver.join("n2", warms=True)
    driver.join("n3", warms=True)
    on(driver)
    assert (world(driver) == ["n0", "n1"]) is waits
    driver.warm("n3")
    on(driver)
    assert world(driver) == ["n0", "n1", "n2", "n3"]
    formed = [event for event in driver.events if event.type == "world.formed"]
    assert len(formed) == 2, "the node that is nearly warm is not left behind"


def test_growth_does_not_add_unsteady_nodes():
    """Nodes with recent faults stay standby while others are added, whatever their ordinal."""
    driver = JobDriver(
        spec=JobSpec(argv=("t.py",), nodes_min=3, nodes_max=5),
        policy=parse("version: 1\nchain:\n  - grow: {every: 0}\n  - process_restart\n  - stop\n", "test"),
    )
    driver.submit()
    joined(driver, "n0", "n1", "n2")
    on(driver)
    driver.state.evidence.node_faults["n3"] = [driver.state.time] * 3
    driver.state.evidence.node_faults["n9"] = [driver.state.time]  # gone for good: waited for by nobody
    joined(driver, "n3", "n4")
    on(driver)
    assert world(driver) == ["n0", "n1", "n2", "n4"] and driver.state.membership.nodes["n3"].phase == "standby"
    taken = [event.data for event in driver.events if event.type == "policy.considered"]
    assert taken[-1].terms.avoid == ("n3",) and "4 nodes instead of 3" in taken[-1].reason
    formed = [event.data for event in driver.events if event.type == "world.formed"]
    assert [data.nodes for data in formed] == [3, 4]
