"""Folded states kept in a log, so that nobody need fold it from its start: state <-> bytes.

    {"ftsnap":1,"version":"0.1.0","model":"5c0f...","seq":50000,"digest":"9a77..."}
    {"state":{...},"tail":[...]}                                                      deflated

House rules:

- A snapshot is a shortcut and never the truth: one that is torn, or that another version of ftcore or another model of
  the state wrote, is not used, and the log is folded instead.
- What is restored is equal to what folding the same events, as they are read back, gives, to the byte of its JSON. (A
  live master may have a whole number where a fraction is meant; read back it is a fraction.)
- A state that this code could not fold (``poisoned``) is not kept: newer code may do better.
- ``pack`` is the one part that must see the state at rest; ``seal`` takes the time, and may run in another thread.
"""

import zlib
from collections.abc import Iterable
from functools import cache

import attrs
import msgspec

from ftcore.errors import LogCorrupt
from ftcore.events.codec import decode, digest_of, encode
from ftcore.events.envelope import Event
from ftcore.ids import Seq
from ftcore.ports import EventLog, Snapshot
from ftcore.states.model import JobState, to_json
from ftcore.version import __version__

FORMAT = 1
"""The format that this ftcore writes, and the only one that it reads."""


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    ftsnap: int
    version: str
    model: str
    seq: int
    digest: str


class _Body(msgspec.Struct, frozen=True):
    state: msgspec.Raw
    tail: list[msgspec.Raw]


@attrs.frozen
class Restored:
    """What a snapshot holds.

    Args:
        state: the state at its seq.
        tail: earlier events that its reader wants beside the state.
    """

    state: JobState
    tail: tuple[Event, ...]


@attrs.frozen
class Packed:
    """A state as it was, to be sealed."""

    seq: int
    state: bytes
    tail: tuple[Event, ...]


@cache
def model() -> str:
    """A digest of what a state is made of: another one means another ftcore, whatever its version says."""
    return digest_of(msgspec.json.encode(msgspec.json.schema(JobState)))


def pack(state: JobState, tail: Iterable[Event] = ()) -> Packed:
    """Take a state down, as quickly as can be.

    Args:
        state: the state; exactly that of the log, not ahead of it.
        tail: earlier events that whoever goes on from here wants beside the state.
    """
    return Packed(state.seq, to_json(state), tuple(tail))


def seal(packed: Packed) -> Snapshot:
    """The snapshot of a state that was taken down."""
    header = _Header(ftsnap=FORMAT, version=__version__, model=model(), seq=packed.seq, digest=digest_of(packed.state))
    body = _Body(msgspec.Raw(packed.state), [msgspec.Raw(encode(event)) for event in packed.tail])
    deflated = zlib.compress(msgspec.json.encode(body), 1)
    return Snapshot(seq=Seq(packed.seq), body=msgspec.json.encode(header) + b"\n" + deflated)


def restore(snapshot: Snapshot) -> Restored | None:
    """The state in a snapshot; None if it is of no use here: torn, or of another ftcore."""
    head, _, deflated = snapshot.body.partition(b"\n")
    try:
        header = msgspec.json.decode(head, type=_Header)
        known = (header.ftsnap, header.version, header.model, header.seq)
        if known != (FORMAT, __version__, model(), snapshot.seq):
            return None
        body = msgspec.json.decode(zlib.decompress(deflated), type=_Body)
        state = msgspec.json.decode(body.state, type=JobState)
        tail = tuple(decode(event) for event in body.tail)
    except (msgspec.MsgspecError, zlib.error, LogCorrupt):
        return None
    if state.seq != snapshot.seq or digest_of(bytes(body.state)) != header.digest:
        return None
    return Restored(state, tail)


async def recall(log: EventLog, until: Seq | None = None) -> Restored:
    """What the newest snapshot of a log holds that is of use here; an empty state if there is none.

    Args:
        log: the log.
        until: no newer one than of this seq.
    """
    while True:
        found = await log.snapshot(until)
        if found is None:
            return Restored(JobState(), ())
        restored = restore(found)
        if restored is not None:
            return restored
        until = Seq(found.seq - 1)
