"""Overviews: what the readers of a log have collected from it, stored, so that the next reading continues from there.

    {"ftview":1,"version":"0.1.0","code":"5c0f...","seq":1000000,"digest":"9a77...","body":"77e0..."}
    {"ledger":{...},"clocks":{...},"ranges":{...},"skipped":{...},"newer":0}                          deflated

House rules:

- An overview is a shortcut and never the truth. It is used only if the same code made it, and of the same events; else
  the log is read from its start. A result is the same to the byte with and without it.
- Its records are decoded by their types. One that is damaged, foreign or contradicts itself is ignored.
- None is made of a ``poisoned`` state, or of a log that could not be read to its end.
"""

import zlib
from typing import Final

import attrs
import msgspec

from ftcore.errors import LogCorrupt
from ftcore.events.codec import digest_of
from ftcore.events.envelope import Event
from ftcore.events.job import JobProgressed
from ftcore.replay.causality import IncidentRanges, SavedRanges
from ftcore.replay.clocks import ClockBounds, SavedClocks
from ftcore.replay.goodput import GoodputLedger, SavedLedger, restore_ledger, save_ledger
from ftcore.states.model import JobState
from ftcore.states.unknown import UnknownParts
from ftcore.version import __version__

FORMAT: Final = 1
"""The format that this ftcore writes, and the only one that it reads."""

BYTES_MAX: Final = 64 << 20
"""Most bytes of an overview, inflated: one that is larger is not made, and not read."""


@attrs.frozen(kw_only=True)
class OverviewLabel:
    """What an overview was made of.

    Args:
        code: digest of the code that made it.
        seq: the last event.
        digest: hex digest of the log up to that event.
    """

    code: str
    seq: int
    digest: str


class _OverviewHeader(msgspec.Struct, frozen=True, kw_only=True):
    ftview: int
    version: str
    code: str
    seq: int
    digest: str
    body: str


class _OverviewBody(msgspec.Struct, frozen=True, kw_only=True):
    ledger: SavedLedger
    clocks: SavedClocks
    ranges: SavedRanges
    skipped: dict[str, int]
    newer: int


class JobOverview:
    """A reader that collects what ``explain``, ``incidents``, ``goodput`` and ``failures`` show.

    Attributes:
        ledger: the use of time, and the incidents.
        clocks: the clocks of the nodes.
        ranges: the events of each incident.
        unknown: what this ftcore does not know of the events.
    """

    def __init__(self) -> None:
        self.ledger = GoodputLedger()
        self.clocks = ClockBounds()
        self.ranges = IncidentRanges()
        self.unknown = UnknownParts()

    @property
    def state(self) -> JobState:
        """The folded state after the last event, not to be changed."""
        return self.ledger.state

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        self.unknown.note(event)
        self.ledger.feed(event)
        self.ranges.feed(event)
        if event.at is not None or type(event.data) is not JobProgressed:  # most events of a long log
            self.clocks.feed(event)


def label_in(stored: bytes) -> OverviewLabel | None:
    """What a stored overview was made of; None if it is none of this version, or its header is damaged."""
    header = _header(stored)
    return None if header is None else OverviewLabel(code=header.code, seq=header.seq, digest=header.digest)


def pack_overview(overview: JobOverview, label: OverviewLabel) -> bytes | None:
    """The bytes of an overview; None if it cannot be stored: its state is poisoned, or it is too large.

    Args:
        overview: the overview.
        label: what it was made of; ``seq`` is that of its state.
    """
    state = overview.state
    if state.log.poisoned or state.seq != label.seq:
        return None
    body = msgspec.json.encode(
        _OverviewBody(
            ledger=save_ledger(overview.ledger),
            clocks=overview.clocks.saved(),
            ranges=overview.ranges.saved(),
            skipped=overview.unknown.skipped,
            newer=overview.unknown.newer,
        )
    )
    if len(body) > BYTES_MAX:
        return None
    deflated = zlib.compress(body, 1)
    header = _OverviewHeader(
        ftview=FORMAT,
        version=__version__,
        code=label.code,
        seq=label.seq,
        digest=label.digest,
        body=digest_of(deflated),
    )
    return msgspec.json.encode(header) + b"\n" + deflated


def restore_overview(stored: bytes, label: OverviewLabel) -> JobOverview | None:
    """The overview in its bytes; None if it is damaged, or was made of something else than ``label``."""
    if label_in(stored) != label:
        return None
    header, deflated = _header(stored), stored.partition(b"\n")[2]
    if header is None or digest_of(deflated) != header.body:
        return None
    inflate = zlib.decompressobj()
    try:
        body = inflate.decompress(deflated, BYTES_MAX)
        if not inflate.eof:
            return None
        return _restored(msgspec.json.decode(body, type=_OverviewBody), label)
    except (zlib.error, msgspec.MsgspecError, LogCorrupt, IndexError):
        return None


def _restored(body: _OverviewBody, label: OverviewLabel) -> JobOverview | None:
    overview = JobOverview()
    overview.ledger = restore_ledger(body.ledger)
    overview.clocks = ClockBounds.restored(body.clocks)
    overview.ranges = IncidentRanges.restored(body.ranges)
    overview.unknown = UnknownParts(body.skipped, body.newer)
    return overview if overview.state.seq == label.seq else None


def _header(stored: bytes) -> _OverviewHeader | None:
    try:
        header = msgspec.json.decode(stored.partition(b"\n")[0], type=_OverviewHeader)
    except msgspec.MsgspecError:
        return None
    return header if (header.ftview, header.version) == (FORMAT, __version__) else None
