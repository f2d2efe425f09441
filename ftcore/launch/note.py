"""Records a person's note in the log of a job.

The master of a running job records it, as it records every event. The log of a job that has ended has no master, and a
postmortem is written then: the note is appended here, by the rules of every append. This process wins the next term in
the log's own leader election, makes the group with the production ``turn``, appends it, and resigns.

House rules:
- Without a master, only the log of a job that has *ended* is appended to: in any other, the next master must win the
  election at once, and no tool may stand in its way.
- Nothing but the note is appended. If a decision followed from it, a master would have to carry it out: nothing is
  appended then.
"""

import asyncio
import contextlib
import os
import socket
import time

from ftcore.engine.decide import turn
from ftcore.engine.operator_requests import NOTE, judge_note
from ftcore.engine.turn import own_fact, sequence
from ftcore.errors import Refused, Unreachable, UsageError
from ftcore.events.operator import OperatorNoted
from ftcore.ids import Nanoseconds, Seq
from ftcore.launch.security import credentials
from ftcore.ports import Candidate, EventLog, Leadership
from ftcore.replay.reading import Folder, read_async
from ftcore.states.model import JobState
from ftcore.states.phases import has_ended
from ftcore.states.snapshot import recall

ELECTION_S = 10.0
"""Seconds to wait for the leadership of an ended job's log, longer than any lease."""


async def add_note(log: EventLog, store: str | None, text: str, who: str) -> Seq:
    """Record a note, through the master, or in the log of an ended job directly.

    Args:
        log: the job's log.
        store: URL of the log store; None for the default store.
        text: the note.
        who: who wrote it, as ``user@host``.

    Returns:
        The seq of the note.

    Raises:
        UsageError: the note is empty or too long, or the log is an archive.
        Unreachable: the job has not ended, and no master answers.
        Refused: the master, or the log's state, does not permit it.
    """
    if problem := judge_note(text):
        raise UsageError(problem)
    leader = await log.leader()
    if leader is not None and leader.alive and leader.candidate.address:
        try:
            return await _send(log, store, leader.candidate.address, text, who)
        except Unreachable:
            if not has_ended(await _state(log)):
                raise
    elif not has_ended(await _state(log)):
        raise Unreachable(f"cannot record the note: no master leads {log.job}; is the job still running?")
    return await _append(log, text, who)


async def _send(log: EventLog, store: str | None, address: str, text: str, who: str) -> Seq:
    from ftcore.runtime.wire import client
    from ftcore.runtime.wire.transport import GrpcTransport

    security = credentials(store, log.job)
    transport = GrpcTransport(security)
    reply = await client.command(transport, address, log.job, NOTE, security=security, why=text, who=who)
    return Seq(reply.seq)


async def _append(log: EventLog, text: str, who: str) -> Seq:
    """Append the note to the log of an ended job, in a term of its own."""
    candidate = Candidate(host=socket.gethostname(), pid=os.getpid(), address="")
    try:
        async with asyncio.timeout(ELECTION_S):
            leadership = await log.campaign(candidate)
    except TimeoutError:
        raise Unreachable(f"cannot record the note: another process leads {log.job}; try again") from None
    try:
        return await _append_in(log, leadership, OperatorNoted(who=who, text=text))
    finally:
        with contextlib.suppress(Unreachable):
            await leadership.resign()


async def _append_in(log: EventLog, leadership: Leadership, note: OperatorNoted) -> Seq:
    state = await _state(log)  # again: a new run may have begun and ended before the election was won
    if not has_ended(state):
        raise Unreachable(f"cannot record the note: {log.job} was started again, and its master does not answer yet")
    if state.log.poisoned:
        raise Refused(f"cannot record the note: the log of {log.job} has events that only a newer ftcore understands")
    last = Seq(state.seq)
    group = turn(state, sequence(state, own_fact(note), now=Nanoseconds(time.time_ns()), term=leadership.term))
    if len(group) != 1:
        raise Refused(f"cannot record the note: {log.job} has decisions pending; start it again first")
    await log.append(group, term=leadership.term, expected_seq=last)
    return group[0].seq


async def _state(log: EventLog) -> JobState:
    restored = await recall(log)
    folder = Folder(restored.state)
    await read_async(log.read(Seq(restored.state.seq)), folder)
    return folder.state
