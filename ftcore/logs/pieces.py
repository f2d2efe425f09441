"""A long log taken away piece by piece: what the live store need not hold any more.

    DIR/<job>/000000000001-000000010000.ftlog
              000000010001-000000020000.ftlog

Each piece is a whole archive file (``archive``): it knows its first seq and the digest of the log before it, so the
pieces and the live log form one chain of digests, and a piece of another log, or a missing one, is found out.

House rules:

- A piece appears whole or not at all, synced, under a name that tells what is in it. It holds the bodies as the store
  had them. So two masters that archive at once, the old one and the new one, write the same bytes; pieces that overlap
  do no harm; no piece is ever deleted. A draft is, that nobody has written to for long: its writer was killed. If it
  only hung, it fails and writes the piece again.
- What is there is believed only if its digest is that of the live log. An archive that holds another log of the same
  name is left as it is, and refused.
- Everything here blocks: the caller has a thread for it.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from ftcore.errors import LogCorrupt, NotFound, StoreError, UsageError
from ftcore.ids import JobName, Seq
from ftcore.logs.archive import ArchiveWriter, Line, read_footer, read_header, read_lines

_NAME = re.compile(r"(\d{12,})-(\d{12,})\.ftlog")
_DRAFT = re.compile(r"\.\d{12,}-\d{12,}\.ftlog\.[0-9a-f]{8}")
"""What ``outfile`` calls a piece that is being written."""

DRAFT_S = 600.0
"""A piece is written in a moment; a draft that nobody has written to for so long is nobody's any more."""


@attrs.frozen
class Piece:
    """A file that holds the events ``first`` to ``last``."""

    path: Path
    first: int
    last: int


class Archive:
    """The archive of one job; see ``ports.Archive``.

    Args:
        root: the directory of all archives.
        job: the job.
    """

    def __init__(self, root: Path, job: JobName) -> None:
        self.path = root / job
        self.job = job

    @classmethod
    def at(cls, path: Path, job: JobName) -> "Archive":
        """The archive whose own directory is known."""
        archive = cls(path.parent, job)
        archive.path = path
        return archive

    def pieces(self) -> list[Piece]:
        """The pieces that are there, by their first event.

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
        pieces = [Piece(self.path / name, int(match[1]), int(match[2])) for match, name in found]
        return sorted(pieces, key=lambda piece: (piece.first, -piece.last))

    def piece_with(self, seq: int) -> Piece | None:
        """The piece that holds an event, and most of what comes after it; None if there is none."""
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
            LogCorrupt: the file was cut, or is not what its name says.
        """
        piece = next(piece for piece in self.pieces() if piece.last == last)
        header, footer = read_header(piece.path), read_footer(piece.path)
        if (header.job, header.first, header.first + footer.events - 1) != (self.job, piece.first, piece.last):
            raise LogCorrupt(f"{piece.path} does not hold what its name says: put the right file in its place")
        return footer.digest

    def prepare(self, make: bool = True) -> None:
        """See ``ports.Archive.prepare``; the directory is made private to the user, abandoned drafts are removed."""
        try:
            if make:
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.touch(mode=0o600)
            now = probe.stat().st_mtime  # by the clock that stamps the drafts, too: a file server's, maybe
            probe.unlink(missing_ok=True)
            for path in self.path.iterdir():
                with contextlib.suppress(FileNotFoundError):  # it is a piece by now
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

    def lines(self, after: int, until: int | None = None) -> Iterator[tuple[Path, Line]]:
        """The archived events with ``after < seq <= until``, each with the file that it is in.

        Ends where the archive does, if ``until`` is None.

        Raises:
            NotFound: the archive has not all of them.
            LogCorrupt: a piece is not as it was written, or does not follow the one before it.
        """
        digest: bytes | None = None
        while until is None or after < until:
            piece = self.piece_with(after + 1)
            if piece is None:
                if until is None and after > 0 and not any(other.first > after for other in self.pieces()):
                    return
                raise NotFound(f"event {after + 1} is not in the archive {self.path}: it has {self.held()}")
            header = read_header(piece.path)
            if digest is not None and header.first == after + 1 and bytes.fromhex(header.previous) != digest:
                raise LogCorrupt(f"{piece.path} does not follow the piece before it: it is of another log")
            for line in read_lines(piece.path):
                if line.seq > after and (until is None or line.seq <= until):
                    yield piece.path, line
                    after, digest = line.seq, line.digest
                elif until is not None and line.seq > until:
                    break
            if after < (piece.last if until is None else min(until, piece.last)):
                raise LogCorrupt(f"{piece.path} does not hold what its name says: put the right file in its place")

    def begins(self, last: Seq) -> Seq:
        """The seq after which, by the files' names, every event up to ``last`` is here; ``last`` if that one is not."""
        begins = last
        for piece in sorted(self.pieces(), key=lambda piece: -piece.last):
            if piece.first <= begins <= piece.last:
                begins = Seq(piece.first - 1)
        return begins

    def held(self) -> str:
        """Which events are here by the files' names, as ``1 to 25, 51 to 100``."""
        spans: list[list[int]] = []
        for piece in self.pieces():
            if spans and piece.first <= spans[-1][1] + 1:
                spans[-1][1] = max(spans[-1][1], piece.last)
            else:
                spans.append([piece.first, piece.last])
        return ", ".join(f"{first} to {last}" for first, last in spans) or "no events"
