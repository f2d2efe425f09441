"""Keys and values of a log in etcd: ``logs.etcd`` says what they are for.

House rules: nothing here talks to etcd. A value that is not what it must be is named with its key.
"""

import attrs
import msgspec

from ftcore.errors import LogCorrupt, StoreError
from ftcore.etcd3 import KeyValue, Put, RangeAnswer
from ftcore.events.codec import GENESIS, chain, decode
from ftcore.events.envelope import Event
from ftcore.ids import Seq

LAYOUT = 1
"""Version of keys and values; in every value, and in the keys' path."""

SEGMENT_EVENTS = 1024
"""Events in one segment at most. A reader that starts in the middle finds its segment among so many keys."""


class Head(msgspec.Struct, frozen=True):
    """Value of ``head``: ``next`` seq, digest ``dig`` of the log up to there (hex), and which ``batch`` wrote it."""

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
        """Where the log ends. The first of a job's keys: it is what jobs are found by."""
        return self.base + b"head"

    @property
    def last(self) -> bytes:
        """Who was elected last."""
        return self.base + b"last"

    @property
    def leader(self) -> bytes:
        """Who leads, on its lease."""
        return self.base + b"leader"

    @property
    def log(self) -> bytes:
        """What all segments' keys begin with."""
        return self.base + b"log/"

    @property
    def moved(self) -> bytes:
        """Where the events that are gone were archived."""
        return self.base + b"moved"

    @property
    def snapshots(self) -> bytes:
        """Which snapshots are whole."""
        return self.base + b"snapm"

    @property
    def snapshot_chunks(self) -> bytes:
        """What the keys of all snapshots' parts begin with."""
        return self.base + b"snap/"

    def segment(self, first: int) -> bytes:
        """The key of the segment whose first event is ``first``."""
        return self.log + b"%016x" % first


@attrs.frozen(kw_only=True)
class State:
    """``leader`` and ``head`` at one revision.

    Args:
        now: the store's revision.
        term: the term of the leader that holds its lease; 0 if none does.
        head_revision: ``mod_revision`` of ``head``.
        head: its value.
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
    """A reader's place in the log; takes segments, in order or again, and gives events, each once."""

    def __init__(self, keys: Keys, position: int) -> None:
        self._keys = keys
        self.position = self._start = position
        self._digest = None if position else GENESIS.hex()

    @property
    def moved(self) -> bool:
        """Whether it has taken anything."""
        return self.position > self._start

    def take(self, kv: KeyValue) -> list[Event]:
        """The events of a segment that are new.

        Raises:
            LogCorrupt: events before them are missing, or the segment contradicts itself or its predecessor.
        """
        position, digest = self.position, self._digest
        try:
            events = [decode(body) for body in self.take_stored(kv)]
            for seq, event in enumerate(events, position + 1):
                if event.seq != seq:
                    raise LogCorrupt(f"{name(kv.key)}: event {event.seq} stands where {seq} was expected")
        except LogCorrupt:
            self.position, self._digest = position, digest
            raise
        return events

    def take_stored(self, kv: KeyValue) -> list[msgspec.Raw]:
        """The bodies of those events, as they are stored; raises ``LogCorrupt`` like ``take``."""
        segment = parse_segment(kv, self._keys)
        end = segment.first + segment.count - 1
        if end <= self.position:
            return []
        if segment.first > self.position + 1:
            raise LogCorrupt(f"{name(kv.key)}: a segment is missing: expected seq {self.position + 1}")
        if self._digest is not None and segment.first == self.position + 1 and segment.prev != self._digest:
            raise LogCorrupt(f"{name(kv.key)}: does not follow the segment before it (digest)")
        bodies = segment.events[self.position + 1 - segment.first :]
        self.position = end
        self._digest = segment.dig
        return bodies


def empty_head() -> bytes:
    """The head of a log without events."""
    return _encode(Head(v=LAYOUT, next=1, term=0, batch="", dig=GENESIS.hex()))


def next_segments(keys: Keys, head: Head, batch: str, bodies: list[bytes], term: int) -> tuple[Head, list[Put]]:
    """The head after events were put behind ``head``, and all that is to be written for it."""
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
    """The state from what was read of ``leader`` and ``head`` at revision ``now``.

    Raises:
        StoreError: there is no head, or it is none of ours.
    """
    if head.first is None:
        raise StoreError(f"{name(keys.head)} is gone from etcd: somebody deleted the log")
    term = leader.first.create_revision if leader.first is not None else 0
    return State(now=now, term=term, head_revision=head.first.mod_revision, head=parse_head(head.first))


def parse_head(kv: KeyValue) -> Head:
    """The value of ``head``.

    Raises:
        StoreError: it is none of ours, or of a newer layout.
    """
    try:
        head = _head_decoder.decode(kv.value)
    except msgspec.MsgspecError as error:
        raise StoreError(f"{name(kv.key)} is not the head of a log of ftcore: {error}") from error
    _check_layout(kv, head.v)
    return head


def parse_segment(kv: KeyValue, keys: Keys) -> Segment:
    """The value of a segment's key, checked against its digests.

    Raises:
        LogCorrupt: it is no segment, or contradicts itself.
        StoreError: of a newer layout.
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
        raise LogCorrupt(f"{name(kv.key)}: the segment contradicts itself (place, count or digest)")
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
        raise StoreError(f"{name(kv.key)} has layout {version}, this ftcore knows {LAYOUT}: use a newer ftcore")


def name(key: bytes) -> str:
    """A key for people."""
    return key.decode(errors="replace")
