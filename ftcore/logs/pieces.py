"""Directory of archive files with the truncated events of a long log.

    DIR/<job>/000000000001-000000010000.ftlog
              000000010001-000000020000.ftlog

Each piece is an archive file (``archive``) with its first seq and the digest before it. The pieces and the live log
form one chain of digests, so a missing piece, or one of another log, is detected.

- Pieces are written atomically and synced, and their names give their contents. They contain the stored bytes: an old
  and a new master that archive at the same time write identical pieces. Pieces may overlap and are never deleted.
- Drafts older than ``DRAFT_S`` are deleted: their writer was killed. A writer that only hung fails and retries.
- A piece is used only if its digest matches the live log. The archive of another log of the same name is refused
  unchanged.
- All functions block: call them from a thread.
"""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ftcore.errors import LogCorrupt, NotFound, StoreError, UsageError
from ftcore.ids import JobName, Seq
from ftcore.logs.archive import ArchiveWriter, Line, read_footer, read_header, read_lines

_NAME = re.compile(r"(\d{12,})-(\d{12,})\.ftlog")
_DRAFT = re.compile(r"\.\d{12,}-\d{12,}\.ftlog\.[0-9a-f]{8}")
"""Names that ``outfile`` gives to drafts of pieces."""

DRAFT_S = 600.0
"""Seconds without a write after which a draft counts as abandoned; writing a piece takes seconds at most."""


class LogPiece(msgspec.Struct, frozen=True):
    """A file with the events ``first`` to ``last``."""

    path: Path
    first: int
    last: int


class FileArchive:
    """The archive of one job; see ``ports.Archive``.

    Args:
        root: the root directory of all archives.
        job: the job.
    """

    def __init__(self, root: Path, job: JobName) -> None:
        self.path = root / job
        self.job = job

    @classmethod
    def at(cls, path: Path, job: JobName) -> "FileArchive":
        """The archive in the directory ``path``."""
        archive = cls(path.parent, job)
        archive.path = path
        return archive

    def pieces(self) -> list[LogPiece]:
        """The existing pieces, sorted by first event.

        Raises:
            StoreError: the directory cannot be read.
        """
        try:
            names = [path.name for path in self.path.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"cannot read the archive {self.path}: {error.strerror}") from error
        found = [(match, name) for name in names if (match := _NAME.fullmatch(name))]
        pieces = [LogPiece(self.path / name, int(match[1]), int(match[2])) for match, name in found]
        return sorted(pieces, key=lambda piece: (piece.first, -piece.last))

    def piece_with(self, seq: int) -> LogPiece | None:
        """The piece that contains an event and reaches furthest; None if no piece does."""
        return max(
            (piece for piece in self.pieces() if piece.first <= seq <= piece.last),
            key=lambda piece: piece.last,
            default=None,
        )

    @property
    def where(self) -> str:
        """See ``ports.Archive.where``."""
        return str(self.path)

    def reaches(self, seq: Seq) -> Seq | None:
        """See ``ports.Archive.reaches``."""
        piece = self.piece_with(seq)
        return None if piece is None else Seq(piece.last)

    def digest_at(self, last: Seq) -> str:
        """See ``ports.Archive.digest_at``.

        Raises:
            LogCorrupt: the file is truncated, or its contents do not match its name.
        """
        piece = next(piece for piece in self.pieces() if piece.last == last)
        header, footer = read_header(piece.path), read_footer(piece.path)
        if (header.job, header.first, header.first + footer.events - 1) != (self.job, piece.first, piece.last):
            raise LogCorrupt(f"{piece.path}: contents do not match the file name: restore the right file")
        return footer.digest

    def prepare(self, make: bool = True) -> None:
        """See ``ports.Archive.prepare``. Creates the directory with mode 0700 and removes abandoned drafts."""
        try:
            if make:
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path) as probe:
                now = os.fstat(probe.fileno()).st_mtime  # the clock of the drafts' times, which may be a file server's
            for path in self.path.iterdir():
                with contextlib.suppress(FileNotFoundError):  # renamed to a piece meanwhile
                    if _DRAFT.fullmatch(path.name) and now - path.stat().st_mtime > DRAFT_S:
                        path.unlink()
        except OSError as error:
            raise UsageError(f"cannot write to the archive {self.path}: {error.strerror}") from error

    def add(self, after: Seq, previous: bytes, bodies: Sequence[bytes]) -> None:
        """See ``ports.Archive.add``."""
        name = f"{after + 1:012d}-{after + len(bodies):012d}.ftlog"
        with ArchiveWriter(self.path / name, self.job, after=after, previous=previous) as writer:
            for body in bodies:
                writer.add_stored(body)

    def lines(self, after: int, until: int | None = None) -> Iterator[Line]:
        """The archived events with ``after < seq <= until`` (None: to the end of the archive).

        Raises:
            NotFound: some of the events are not in the archive.
            LogCorrupt: a piece was changed, or does not continue the previous one.
        """
        digest: bytes | None = None
        while until is None or after < until:
            piece = self.piece_with(after + 1)
            if piece is None:
                if until is None and after > 0 and not any(other.first > after for other in self.pieces()):
                    return
                raise NotFound(f"event {after + 1} is not in the archive {self.path}: it has {self.event_ranges()}")
            header = read_header(piece.path)
            if digest is not None and header.first == after + 1 and bytes.fromhex(header.previous) != digest:
                raise LogCorrupt(f"{piece.path} does not continue the previous piece: it belongs to another log")
            for line in read_lines(piece.path):
                if line.seq > after and (until is None or line.seq <= until):
                    yield line
                    after, digest = line.seq, line.digest
                elif until is not None and line.seq > until:
                    break
            if after < (piece.last if until is None else min(until, piece.last)):
                raise LogCorrupt(f"{piece.path}: contents do not match the file name: restore the right file")

    def begins(self, last: Seq) -> Seq:
        """The seq after which the archive has every event up to ``last``, by file names; ``last`` if it lacks that."""
        begins = last
        for piece in sorted(self.pieces(), key=lambda piece: -piece.last):
            if piece.first <= begins <= piece.last:
                begins = Seq(piece.first - 1)
        return begins

    def event_ranges(self) -> str:
        """The archived ranges of events by file names, as ``1 to 25, 51 to 100``."""
        spans: list[list[int]] = []
        for piece in self.pieces():
            if spans and piece.first <= spans[-1][1] + 1:
                spans[-1][1] = max(spans[-1][1], piece.last)
            else:
                spans.append([piece.first, piece.last])
        return ", ".join(f"{first} to {last}" for first, last in spans) or "no events"
