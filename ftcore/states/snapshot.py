"""Snapshots of folded states, which save folding a log from its start: state <-> bytes.

    {"ftsnap":1,"version":"0.1.0","model":"5c0f...","seq":50000,"digest":"9a77..."}
    {"state":{...},"tail":[...]}                                                      deflated
    an overview of the log, for its readers, if the header has its length             (``replay.overview``)

House rules:

- A snapshot is a shortcut and never the truth: one that is torn, or that another version of ftcore or another model of
  the state wrote, is not used, and the log is folded instead.
- A restored state equals the fold of the same events, read back, to the byte of its JSON. (A live master may hold a
  whole number where a fraction is meant; read back it is a fraction.)
- No snapshot is made of a ``poisoned`` state: newer code may be able to fold the event.
- Only ``pack`` needs a state that does not change meanwhile; ``seal`` takes longer and may run in another thread.
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
from ftcore.ports import AppendOnlyLog, Snapshot
from ftcore.states.model import JobState, to_json
from ftcore.version import __version__

FORMAT = 1
"""The format that this ftcore writes, and the only one that it reads."""


class _SnapshotHeader(msgspec.Struct, frozen=True, kw_only=True):
    ftsnap: int
    version: str
    model: str
    seq: int
    digest: str
    overview: int = 0


class _SnapshotBody(msgspec.Struct, frozen=True):
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
    """The JSON of a state, not yet compressed."""

    seq: int
    state: bytes
    tail: tuple[Event, ...]


@cache
def model() -> str:
    """Digest of the schema of the state; a snapshot with another one is not used, whatever its version."""
    return digest_of(msgspec.json.encode(msgspec.json.schema(JobState)))


def pack(state: JobState, tail: Iterable[Event] = ()) -> Packed:
    """Convert a state to JSON.

    Args:
        state: the state; exactly that of the log, not ahead of it.
        tail: earlier events that a reader of the snapshot needs beside the state.
    """
    return Packed(state.seq, to_json(state), tuple(tail))


def seal(packed: Packed, overview: bytes = b"") -> Snapshot:
    """Compress a packed state into a snapshot.

    Args:
        packed: the state.
        overview: an overview of the same events, as stored; empty: none.
    """
    header = _SnapshotHeader(
        ftsnap=FORMAT,
        version=__version__,
        model=model(),
        seq=packed.seq,
        digest=digest_of(packed.state),
        overview=len(overview),
    )
    body = _SnapshotBody(msgspec.Raw(packed.state), [msgspec.Raw(encode(event)) for event in packed.tail])
    deflated = zlib.compress(msgspec.json.encode(body), 1)
    return Snapshot(seq=Seq(packed.seq), body=msgspec.json.encode(header) + b"\n" + deflated + overview)


def overview_in(snapshot: Snapshot) -> bytes:
    """The overview in a snapshot, not verified; empty if there is none."""
    try:
        length = msgspec.json.decode(snapshot.body.partition(b"\n")[0], type=_SnapshotHeader).overview
    except msgspec.MsgspecError:
        return b""
    return snapshot.body[-length:] if length > 0 else b""


def restore(snapshot: Snapshot) -> Restored | None:
    """The state in a snapshot; None if it is torn or was written by another version."""
    head, _, deflated = snapshot.body.partition(b"\n")
    try:
        header = msgspec.json.decode(head, type=_SnapshotHeader)
        known = (header.ftsnap, header.version, header.model, header.seq)
        if known != (FORMAT, __version__, model(), snapshot.seq):
            return None
        deflated = deflated[: len(deflated) - header.overview]
        body = msgspec.json.decode(zlib.decompress(deflated), type=_SnapshotBody)
        state = msgspec.json.decode(body.state, type=JobState)
        tail = tuple(decode(event) for event in body.tail)
    except (msgspec.MsgspecError, zlib.error, LogCorrupt):
        return None
    if state.seq != snapshot.seq or digest_of(bytes(body.state)) != header.digest:
        return None
    return Restored(state, tail)


async def recall(log: AppendOnlyLog, until: Seq | None = None) -> Restored:
    """The newest usable snapshot of a log; an empty state if there is none.

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
