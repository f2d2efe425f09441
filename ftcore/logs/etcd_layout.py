"""Keys and values of a log in etcd; ``logs.etcd`` explains them.

Nothing here communicates with etcd. Errors about values name their key.
"""

import attrs
import msgspec

from ftcore.errors import LogCorrupt, StoreError
from ftcore.etcd3 import KeyValue, Put, RangeAnswer
from ftcore.events.codec import GENESIS, chain, decode
from ftcore.events.envelope import Event
from ftcore.ids import Seq

LAYOUT = 1
"""Version of keys and values; part of every value and key."""

SEGMENT_EVENTS = 1024
"""Most events in one segment. A reader that starts in the middle searches this many keys for its segment."""


class Head(msgspec.Struct, frozen=True):
    """Value of ``head``: ``next`` seq, digest ``dig`` of the log before it (hex), ID of the ``batch`` that wrote it."""

    v: int
    next: int
    term: int
    batch: str
    dig: str


class Segment(msgspec.Struct, frozen=True):
    """Value of ``log/...``: ``prev`` and ``dig`` are the log's digest before and after its events (hex)."""

    v: int
    term: int
    first: int
    count: int
    prev: str
    dig: str
    events: list[msgspec.Raw]


_encode = msgspec.json.Encoder().encode
_head_decoder = msgspec.json.Decoder(Head)
_segment_decoder = msgspec.json.Decoder(Segment)


@attrs.frozen
class Keys:
    """The keys of one job."""

    base: bytes

    @property
    def head(self) -> bytes:
        """The end of the log. The first of a job's keys, by which jobs are listed."""
        return self.base + b"head"

    @property
    def last(self) -> bytes:
        """The candidate elected last."""
        return self.base + b"last"

    @property
    def leader(self) -> bytes:
        """The leader, on its lease."""
        return self.base + b"leader"

    @property
    def log(self) -> bytes:
        """Prefix of the segments' keys."""
        return self.base + b"log/"

    @property
    def moved(self) -> bytes:
        """The location of the archived events."""
        return self.base + b"moved"

    @property
    def snapshots(self) -> bytes:
        """The manifest of complete snapshots."""
        return self.base + b"snapm"

    @property
    def snapshot_chunks(self) -> bytes:
        """Prefix of the keys of snapshot chunks."""
        return self.base + b"snap/"

    def segment(self, first: int) -> bytes:
        """The key of the segment whose first event is ``first``."""
        return self.log + b"%016x" % first


@attrs.frozen(kw_only=True)
class State:
    """``leader`` and ``head`` at one revision.

    Args:
        now: the store's revision.
        term: the term of the current leader; 0 if no lease is held.
        head_revision: ``mod_revision`` of ``head``.
        head: value of ``head``.
    """

    now: int
    term: int
    head_revision: int
    head: Head

    @property
    def last(self) -> Seq:
        """The seq of the last event."""
        return Seq(self.head.next - 1)


class Cursor:
    """A reader's position in the log: converts segments, in order or repeated, to events without repeats."""

    def __init__(self, keys: Keys, position: int) -> None:
        self._keys = keys
        self.position = position
        self._digest = None if position else GENESIS.hex()

    def take(self, kv: KeyValue) -> list[Event]:
        """The new events of a segment.

        Raises:
            LogCorrupt: earlier events are missing, or the segment is inconsistent with itself or its predecessor.
        """
        position, digest = self.position, self._digest
        try:
            events = [decode(body) for body in self.take_stored(kv)]
            for seq, event in enumerate(events, position + 1):
                if event.seq != seq:
                    raise LogCorrupt(f"{name(kv.key)}: expected event {seq}, found {event.seq}")
        except LogCorrupt:
            self.position, self._digest = position, digest
            raise
        return events

    def take_stored(self, kv: KeyValue) -> list[msgspec.Raw]:
        """The stored bodies of the new events; raises ``LogCorrupt`` like ``take``."""
        segment = parse_segment(kv, self._keys)
        end = segment.first + segment.count - 1
        if end <= self.position:
            return []
        if segment.first > self.position + 1:
            raise LogCorrupt(f"{name(kv.key)}: the segment before it is missing: expected event {self.position + 1}")
        if self._digest is not None and segment.first == self.position + 1 and segment.prev != self._digest:
            raise LogCorrupt(f"{name(kv.key)}: does not continue the previous segment (digest)")
        bodies = segment.events[self.position + 1 - segment.first :]
        self.position = end
        self._digest = segment.dig
        return bodies


def empty_head() -> bytes:
    """The head of a log without events."""
    return _encode(Head(v=LAYOUT, next=1, term=0, batch="", dig=GENESIS.hex()))


def next_segments(keys: Keys, head: Head, batch: str, bodies: list[bytes], term: int) -> tuple[Head, list[Put]]:
    """The head after appending events to ``head``, and the values to write."""
    puts: list[Put] = []
    digest, first = bytes.fromhex(head.dig), head.next
    for start in range(0, len(bodies), SEGMENT_EVENTS):
        part = bodies[start : start + SEGMENT_EVENTS]
        prev = digest
        for body in part:
            digest = chain(digest, body)
        segment = Segment(
            v=LAYOUT,
            term=term,
            first=first,
            count=len(part),
            prev=prev.hex(),
            dig=digest.hex(),
            events=[msgspec.Raw(body) for body in part],
        )
        puts.append(Put(keys.segment(first), _encode(segment)))
        first += len(part)
    after = Head(v=LAYOUT, next=first, term=term, batch=batch, dig=digest.hex())
    return after, [*puts, Put(keys.head, _encode(after))]


def parse_state(keys: Keys, now: int, leader: RangeAnswer, head: RangeAnswer) -> State:
    """The state from ``leader`` and ``head`` as read at revision ``now``.

    Raises:
        StoreError: ``head`` is missing or invalid.
    """
    if head.first is None:
        raise StoreError(f"{name(keys.head)} is missing in etcd: the log was deleted")
    term = leader.first.create_revision if leader.first is not None else 0
    return State(now=now, term=term, head_revision=head.first.mod_revision, head=parse_head(head.first))


def parse_head(kv: KeyValue) -> Head:
    """The value of ``head``.

    Raises:
        StoreError: the value was not written by ftcore, or has a newer layout.
    """
    try:
        head = _head_decoder.decode(kv.value)
    except msgspec.MsgspecError as error:
        raise StoreError(f"{name(kv.key)} is not the head of an ftcore log: {error}") from error
    _check_layout(kv, head.v)
    return head


def parse_segment(kv: KeyValue, keys: Keys) -> Segment:
    """The value of a segment's key, with digests verified.

    Raises:
        LogCorrupt: the value is not a segment, or is inconsistent.
        StoreError: it has a newer layout.
    """
    try:
        segment = _segment_decoder.decode(kv.value)
        digest = bytes.fromhex(segment.prev)
    except (msgspec.MsgspecError, ValueError) as error:
        raise LogCorrupt(f"{name(kv.key)} is not a segment: {error}") from error
    _check_layout(kv, segment.v)
    for body in segment.events:
        digest = chain(digest, bytes(body))
    if kv.key != keys.segment(segment.first) or segment.count != len(segment.events) or digest.hex() != segment.dig:
        raise LogCorrupt(f"{name(kv.key)}: the segment is inconsistent (key, count or digest)")
    return segment


def digest_in(kv: KeyValue, keys: Keys, seq: int) -> str:
    """The hex digest of the log up to an event of a segment; raises as ``parse_segment`` does."""
    segment = parse_segment(kv, keys)
    digest = bytes.fromhex(segment.prev)
    for body in segment.events[: seq + 1 - segment.first]:
        digest = chain(digest, bytes(body))
    return digest.hex()


def _check_layout(kv: KeyValue, version: int) -> None:
    if version != LAYOUT:
        raise StoreError(f"{name(kv.key)} has layout {version}, this ftcore reads {LAYOUT}: use a newer ftcore")


def name(key: bytes) -> str:
    """A key as text, for messages."""
    return key.decode(errors="replace")
