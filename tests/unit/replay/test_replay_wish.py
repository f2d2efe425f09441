"""What became of a wish, read from the log of the production engine."""

from ftcore.replay.wish import Wish
from ftcore.testing.driver import JobDriver


def running(*, nodes: int = 2, abilities: tuple[str, ...] = ()) -> JobDriver:
    driver = JobDriver(nodes=nodes, abilities=abilities)
    driver.start()
    driver.make_steps(5)
    return driver


def followed(driver: JobDriver, command: str, number: int = -1) -> tuple[Wish, list[str]]:
    asked = [event for event in driver.events if event.type == "operator.commanded"][number]
    wish = Wish(seq=asked.seq, command=command, node=asked.data.node)
    return wish, [line for event in driver.events if (line := wish.feed(event))]


def test_a_pause_that_is_carried_out():
    """It is done when every worker waits."""
    driver = running(abilities=("pause",))
    driver.command("pause")
    assert followed(driver, "pause")[0].outcome == ""
    driver.settle()
    wish, lines = followed(driver, "pause")
    assert wish.outcome == "done" and "step boundary" in wish.reason
    assert lines == ["step_pause: takes it: user@host asked for it"]


def test_a_pause_that_nobody_can_carry_out():
    """It is dropped, and the policy's reason is told."""
    driver = running()
    driver.command("pause")
    wish, [line] = followed(driver, "pause")
    assert wish.outcome == "dropped"
    assert line.startswith("step_pause: passed over: ") and "`pause`" in line


def test_a_wish_that_a_fault_comes_in_front_of():
    """It waits for the end of the fault and is taken up then."""
    driver = running(abilities=("pause",))
    driver.command("pause")
    driver.fail("node0")
    wish, lines = followed(driver, "pause")
    assert wish.outcome == "" and "a fault came first" in lines[-1]
    driver.settle()
    driver.settle()
    wish, lines = followed(driver, "pause")
    assert wish.outcome == "done" and lines[-1].startswith("step_pause: takes it")


def test_a_drain_that_the_job_cannot_afford():
    """Every entry that was asked is told with its reason."""
    driver = running()
    driver.command("drain", node="node1")
    wish, lines = followed(driver, "drain")
    assert wish.outcome == "dropped" and any("at least 2" in line for line in lines)
    assert [asked.verdict for asked in wish.policies] == ["pass"] * len(lines)


def test_a_wish_that_a_newer_one_overtakes():
    """While a fault is dealt with, the newest wish takes the place of the one that waited."""
    driver = running(nodes=3)
    driver.fail("node0")
    driver.command("drain", node="node1")
    driver.command("checkpoint")
    wish, _ = followed(driver, "drain", number=0)
    assert wish.outcome == "overtaken" and "checkpoint" in wish.reason


def test_a_stop_is_done_with_the_end_of_the_job():
    """Before that its verdict is no end; a wish that waits meanwhile ends with the job."""
    driver = running()
    driver.fail("node0")
    driver.command("checkpoint")
    driver.stop()
    assert followed(driver, "stop")[0].outcome == ""
    driver.settle()
    assert followed(driver, "stop")[0].outcome == "done"
    assert followed(driver, "checkpoint", number=0)[0].outcome == "ended"


def test_an_eviction_that_waits_for_a_replacement():
    """What it waits for is told, and that it is over once another node is ready."""
    driver = running(abilities=("replace",))
    driver.slow_platform = True
    driver.command("evict", node="node1")
    driver.settle(step=False)
    wish, lines = followed(driver, "evict")
    assert wish.outcome == "" and wish.waits == lines[-1]
    assert wish.waits == "node1 leaves once its replacement is ready; training goes on"
    driver.join("node1.1")
    driver.settle()
    wish, lines = followed(driver, "evict")
    assert wish.outcome == "done" and wish.waits == "" and "ready: node1.1" in lines[-1]


def test_an_eviction_that_the_end_of_the_job_overtakes():
    """The job ended before another node was ready: nobody was released for the wish."""
    driver = running(abilities=("replace",))
    driver.slow_platform = True
    driver.command("evict", node="node1")
    driver.settle(step=False)
    driver.finish()
    wish, _ = followed(driver, "evict")
    assert wish.outcome == "ended" and "succeeded" in wish.reason
