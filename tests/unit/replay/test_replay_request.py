"""What became of a request, read from the log of the production engine."""

from ftcore.replay.request import RequestReader
from ftcore.testing.driver import JobDriver


def running(*, nodes: int = 2, abilities: tuple[str, ...] = ()) -> JobDriver:
    driver = JobDriver(nodes=nodes, abilities=abilities)
    driver.start()
    driver.make_steps(5)
    return driver


def followed(driver: JobDriver, command: str, number: int = -1) -> tuple[RequestReader, list[str]]:
    asked = [event for event in driver.events if event.type == "operator.commanded"][number]
    request = RequestReader(seq=asked.seq, command=command, node=asked.data.node)
    return request, [line for event in driver.events if (line := request.feed(event))]


def test_a_pause_that_is_carried_out():
    """It is done when every worker waits."""
    driver = running(abilities=("pause",))
    driver.command("pause")
    assert followed(driver, "pause")[0].outcome == ""
    driver.settle()
    request, lines = followed(driver, "pause")
    assert request.outcome == "done" and "step boundary" in request.reason
    assert lines == ["step_pause takes it: user@host asked for it"]


def test_a_request_that_is_dropped_during_a_pause():
    """The job stays paused."""
    driver = running(abilities=("pause",))
    driver.command("pause")
    driver.settle()
    driver.command("checkpoint")
    driver.settle()
    asked = [event for event in driver.events if event.type == "operator.commanded"][-1]
    request = RequestReader(seq=asked.seq, command="checkpoint", paused=True)
    for event in driver.events:
        request.feed(event)
    assert request.outcome == "dropped" and "could carry it out; the job stays paused; the script" in request.reason


def test_a_pause_that_nobody_can_carry_out():
    """It is dropped, and the policy's reason is told."""
    driver = running()
    driver.command("pause")
    request, [line] = followed(driver, "pause")
    assert request.outcome == "dropped"
    assert line.startswith("step_pause passes: ") and "`pause`" in line
    assert request.reason.endswith("with the first completed step: see `abilities` in ftctl status")


def test_a_request_during_a_fault_waits():
    """It waits for the end of the fault and is taken up then."""
    driver = running(abilities=("pause",))
    driver.command("pause")
    driver.fail("node0")
    request, lines = followed(driver, "pause")
    assert request.outcome == "" and "a fault comes first" in lines[-1]
    driver.settle()
    driver.settle()
    request, lines = followed(driver, "pause")
    assert request.outcome == "done" and lines[-1].startswith("step_pause takes it")


def test_a_drain_that_the_job_cannot_afford():
    """Every entry that was asked is told with its reason."""
    driver = running()
    driver.command("drain", node="node1")
    request, lines = followed(driver, "drain")
    assert request.outcome == "dropped" and any("at least 2" in line for line in lines)
    assert [asked.verdict for asked in request.policies] == ["pass"] * len(lines)


def test_a_newer_request_replaces_a_waiting_one():
    """While a fault is dealt with, the newest request takes the place of the one that waited."""
    driver = running(nodes=3)
    driver.fail("node0")
    driver.command("drain", node="node1")
    driver.command("checkpoint")
    request, _ = followed(driver, "drain", number=0)
    assert request.outcome == "overtaken" and "checkpoint" in request.reason


def test_a_stop_is_done_with_the_end_of_the_job():
    """Before that its verdict is no end; a request that waits meanwhile ends with the job."""
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
    request, lines = followed(driver, "evict")
    assert request.outcome == "" and request.waits == lines[-1]
    assert request.waits == "node1 leaves once its replacement is ready; training goes on"
    driver.join("node1.1")
    driver.settle()
    request, lines = followed(driver, "evict")
    assert request.outcome == "done" and request.waits == "" and "ready: node1.1" in lines[-1]


def test_an_eviction_that_the_end_of_the_job_overtakes():
    """The job ended before another node was ready: nobody was released for the request."""
    driver = running(abilities=("replace",))
    driver.slow_platform = True
    driver.command("evict", node="node1")
    driver.settle(step=False)
    driver.finish()
    request, _ = followed(driver, "evict")
    assert request.outcome == "ended" and "succeeded" in request.reason
