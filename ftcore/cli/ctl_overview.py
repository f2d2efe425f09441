"""Reading a long log by its overview (``replay.overview``), if there is one that fits; else from its start.

An overview comes from an exported archive itself, from the newest snapshot in a job's store, or from the user's cache.
It fits if this code made it, and of the same events: of an archive file, the digest of all its bytes says so; of any
other log, the chained digest of the last event. The events that it covers are not read again, so damage to them since
then is found by `ftctl replay --verify`.
"""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ftcore.cli.ctl_reading import LogReading
from ftcore.errors import FtcoreError, LogCorrupt, UnknownEvent
from ftcore.events.codec import digest_of, encode
from ftcore.events.envelope import Event
from ftcore.ids import Seq
from ftcore.logs.archive import ArchiveWriter, read_content, read_header
from ftcore.logs.archived import intact_file
from ftcore.logs.in_thread import in_thread
from ftcore.logs.overviews import OverviewCache, code_digest
from ftcore.logs.stores import archive_file
from ftcore.ports import AppendOnlyLog
from ftcore.replay.causality import CausalTree
from ftcore.replay.overview import JobOverview, OverviewLabel, label_in, pack_overview, restore_overview
from ftcore.states.snapshot import overview_in

if TYPE_CHECKING:
    from ftcore.launch.overview_process import OverviewProcess

LONG_EVENTS = 20_000
"""Events of a log beyond which overviews are used: a shorter one is read at once."""

NEW_EVENTS = 5_000
"""Events beyond an overview after which a newer one is kept."""


async def read_overview(reading: LogReading, args: argparse.Namespace) -> JobOverview:
    """The overview after the last event of the log that can be read.

    Args:
        reading: the log.
        args: of the command, for its store.
    """
    kept = await KeptOverview.of(reading, args)
    overview = await _from_start(reading) if kept.newest is None else await _continued(reading, kept.newest)
    if reading.error is None:
        await kept.keep(overview)
    return overview


class KeptOverview:
    """The newest overview that fits a log, and where a newer one is kept.

    Attributes:
        newest: that overview; None: there is none, or the log is short.
    """

    def __init__(self, overviews: "_Overviews | None", newest: JobOverview | None) -> None:
        self._overviews, self.newest = overviews, newest
        self._known = 0 if newest is None else newest.state.seq

    @classmethod
    async def of(cls, reading: LogReading, args: argparse.Namespace) -> "KeptOverview":
        """That of a log; see ``read_overview``."""
        if reading.cut is not None or await reading.log.last_seq() <= LONG_EVENTS:
            return cls(None, None)
        overviews = await _overviews(reading.log, args)
        return cls(overviews, None if overviews is None else await overviews.found())

    def start_process(self) -> "OverviewProcess | None":
        """A process that collects the missing overview meanwhile; None: it saves no time, or it cannot be started."""
        if self._overviews is None or self.newest is not None or len(os.sched_getaffinity(0)) < 2:
            return None
        try:
            return self._overviews.start_process()
        except OSError:
            return None

    async def keep(self, overview: JobOverview) -> None:
        """Keep a newer overview, if it has enough new events."""
        if self._overviews is not None and overview.state.seq - self._known >= NEW_EVENTS:
            await self._overviews.keep(overview)


async def incident_tree(
    reading: LogReading, args: argparse.Namespace, overview: JobOverview, incident: str
) -> CausalTree | None:
    """The tree of an incident, made of its own events; None if the whole log has to be read for it.

    Args:
        reading: the log.
        args: of the command, for its store.
        overview: that of the log, as ``read_overview`` returns it.
        incident: an incident in it.
    """
    tree, span = CausalTree(incident), overview.ranges.of(incident)
    if span is None or reading.error is not None:
        return None
    path = archive_file(args.store)
    log = reading.log if path is None else intact_file(path)
    try:
        async for event in log.read(Seq(span.first - 1), Seq(overview.state.seq if span.last is None else span.last)):
            tree.feed(event)
    except LogCorrupt:  # the damage is newer than the overview
        return None
    return tree


class ExportOverview:
    """The overview of a log while it is exported; none, if one of its events cannot be folded."""

    def __init__(self) -> None:
        self._overview: JobOverview | None = JobOverview()

    def feed(self, event: Event) -> None:
        """Note the next event."""
        if self._overview is not None:
            try:
                self._overview.feed(event)
            except (LogCorrupt, UnknownEvent):
                self._overview = None

    def attach(self, writer: ArchiveWriter) -> None:
        """Add the overview to the archive that all events were written to."""
        overview, code = self._overview, code_digest()
        if overview is None or not code:
            return
        stored = pack_overview(overview, OverviewLabel(code=code, seq=overview.state.seq, digest=writer.digest))
        if stored is not None:
            writer.attach(stored)


async def _from_start(reading: LogReading) -> JobOverview:
    overview = JobOverview()
    await reading.feed(overview)
    return overview


async def _continued(reading: LogReading, overview: JobOverview) -> JobOverview:
    """Read the events after an overview; the whole log, if they do not continue it."""
    reading.go_on(Seq(overview.state.seq), overview.unknown)
    try:
        await reading.feed(overview, after=Seq(overview.state.seq))
    except FtcoreError:
        raise
    except Exception:  # its records do not fit together
        reading.begin_again()
        return await _from_start(reading)
    if reading.error is not None:
        reading.begin_again()
        return await _from_start(reading)
    return overview


class _Overviews(Protocol):
    """Where the overviews of one log are."""

    async def found(self) -> JobOverview | None:
        """The overview that fits; None if there is none."""

    def start_process(self) -> "OverviewProcess | None":
        """A process that collects one; None: only of an archive file. Raises ``OSError``."""

    async def keep(self, overview: JobOverview) -> None:
        """Keep a newer one, if possible."""


async def _overviews(log: AppendOnlyLog, args: argparse.Namespace) -> _Overviews | None:
    """The overviews of a log; None if this code has no digest."""
    code = await in_thread(code_digest)
    if not code:
        return None
    path = archive_file(args.store)
    if path is not None:
        return _OfFile(path, code) if read_header(path).first == 1 else None
    async for event in log.read(Seq(0), Seq(1)):
        return _OfLog(log, digest_of(encode(event)), code)
    return None


class _OfFile:
    """The overviews of an archive file, by the digest of its bytes."""

    def __init__(self, path: Path, code: str) -> None:
        self._path, self._code, self._cache = path, code, OverviewCache()
        self._key = ""

    def start_process(self) -> "OverviewProcess | None":
        from ftcore.launch.overview_process import OverviewProcess

        return OverviewProcess(self._path)

    async def found(self) -> JobOverview | None:
        return await in_thread(self._found)

    def _found(self) -> JobOverview | None:
        content = read_content(self._path)
        if content is None:
            return None
        self._key = content.content
        label = OverviewLabel(code=self._code, seq=content.seq, digest=content.digest)
        for stored in (content.overview, self._cache.read(self._key)):
            overview = None if stored is None else restore_overview(stored, label)
            if overview is not None:
                return overview
        return None

    async def keep(self, overview: JobOverview) -> None:
        content = await in_thread(read_content, self._path)
        if content is None or content.content != self._key:
            return
        stored = pack_overview(overview, OverviewLabel(code=self._code, seq=content.seq, digest=content.digest))
        if stored is not None:
            await in_thread(self._cache.write, self._key, stored)


class _OfLog:
    """The overviews of any other log, by its first event, which has its identity."""

    def __init__(self, log: AppendOnlyLog, key: str, code: str) -> None:
        self._log, self._key, self._code, self._cache = log, key, code, OverviewCache()

    def start_process(self) -> "OverviewProcess | None":
        return None  # the master's snapshots have overviews

    async def found(self) -> JobOverview | None:
        snapshot = await self._log.snapshot()
        kept = [b"" if snapshot is None else overview_in(snapshot), await in_thread(self._cache.read, self._key) or b""]
        labelled = [(label, stored) for stored in kept if (label := label_in(stored)) is not None]
        for label, stored in sorted(labelled, key=lambda pair: pair[0].seq, reverse=True):
            if await self._fits(label) and (overview := restore_overview(stored, label)) is not None:
                return overview
        return None

    async def _fits(self, label: OverviewLabel) -> bool:
        seq = Seq(label.seq)
        if label.code != self._code or seq > await self._log.last_seq():
            return False
        return await self._log.digest_at(seq) == label.digest

    async def keep(self, overview: JobOverview) -> None:
        digest = await self._log.digest_at(Seq(overview.state.seq))
        if not digest:
            return
        label = OverviewLabel(code=self._code, seq=overview.state.seq, digest=digest)
        stored = pack_overview(overview, label)
        if stored is not None:
            await in_thread(self._cache.write, self._key, stored)
