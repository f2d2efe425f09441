"""Explain a log.

Readers process a log event by event; one pass can feed several. `verify` takes each decision again and compares.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator

import msgspec

import ftcore
from ftcore import replay
from ftcore.testing.driver import JobDriver

job = JobDriver(nodes=2)
job.start()
job.fail("node1", exitcode=-9)
job.settle()
events = job.events


class CountTypes:
    """A reader of your own."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def feed(self, event: ftcore.Event) -> None:
        self.counts[event.type] += 1


def one_line(incident: replay.Incident) -> str:
    """An incident with its first failure and the seconds of its phases."""
    failure: replay.Failure = incident.failures[0]
    phases: replay.Phases = incident.phases
    text = f"{incident.cls} on {failure.node}, rank {failure.rank}: {failure.message}; by {incident.resolved_by}"
    return f"{text} in {phases.total:.3f} s"


def problems(report: replay.VerifyReport) -> list[str]:
    """One line for each decision that ftcore would take otherwise now."""
    found: tuple[replay.Mismatch, ...] = report.mismatches
    return [str(mismatch) for mismatch in found]


types, explainer, folder, verifier = CountTypes(), replay.Explainer(), replay.Folder(), replay.Verifier()
readers: list[replay.Reader] = [types, explainer, folder, verifier]
replay.read(events, *readers)
print(types.counts.most_common(2))
print([one_line(incident) for incident in explainer.incidents()])
print(json.dumps(explainer.incidents()[0].to_json())[:60])
assert folder.state.phase == "running"
assert verifier.report().ok

# The same with one call each: the state after an event, and the decisions of a whole log.
opened = next(event for event in events if event.type == "incident.opened")
assert replay.fold_log(events, until=opened.seq).incident is not None
assert problems(replay.verify(events)) == []

# A log that was altered afterwards does not verify.
taken = next(event for event in events if event.type == "policy.considered" and event.data.verdict == "take")
altered = list(events)
other = msgspec.structs.replace(taken.data, reason="because I say so")
altered[taken.seq - 1] = msgspec.structs.replace(taken, data=other)
print(problems(replay.verify(altered))[0])


async def stream() -> AsyncIterator[ftcore.Event]:
    """Events as a log returns them: `log.read()`."""
    for event in events:
        yield event


async def main() -> None:
    again = replay.Explainer()
    await replay.read_async(stream(), again)
    assert again.incidents() == explainer.incidents()
    assert (await replay.fold_log_async(stream())).phase == "running"
    assert (await replay.verify_async(stream())).ok


asyncio.run(main())
