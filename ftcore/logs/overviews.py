"""Overviews of logs (``replay.overview``) in the user's cache directory, and the digest of the code that made them.

    $XDG_CACHE_HOME/ftcore/overviews/<key>.ftview        default: ~/.cache

House rules: the cache may be lost, full, damaged or not writable at any time; then the log is read without it. Files
are private to the user: one that others could have written is not read. They are written under another name and
renamed, so several readers may write the same file at once; the oldest files are removed. All functions block.
"""

import contextlib
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ftcore.private import is_private, make_private

FILES_MAX: Final = 32
"""Most overviews that are kept."""

FILE_BYTES_MAX: Final = 16 << 20
"""Most bytes of one; a larger one is not written."""

DRAFT_S: Final = 600.0
"""Age in seconds of a draft whose writer must have been killed."""

CODE: Final = (
    *("events", "faults", "policies", "replay", "states"),
    *("batch.py", "commands.py", "ids.py", "redaction.py", "sample_ranges.py", "wording.py"),
)
"""Parts of ftcore that decide what an overview of given events is."""

_KEY: Final = re.compile(r"[0-9a-f]{1,64}")


def cache_directory() -> Path:
    """The directory of the overviews."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # XDG specification: a relative path in the variable is invalid and must be ignored.
    base = Path(cache) if cache.startswith("/") else Path.home() / ".cache"
    return base / "ftcore" / "overviews"


def code_digest() -> str:
    """Hex digest of the sources of ``CODE``; empty if they cannot be read.

    A working copy changes, and its version does not.
    """
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    try:
        for part in CODE:
            top = package / part
            for path in [str(top)] if top.is_file() else _sources(top):
                digest.update(f"{path[len(str(package)) :]}\n".encode())
                with open(path, "rb") as file:
                    digest.update(file.read())
    except OSError:
        return ""
    return digest.hexdigest()


def _sources(top: Path) -> Iterator[str]:
    for directory, below, names in os.walk(top):
        below.sort()
        for name in sorted(names):
            if name.endswith(".py"):
                yield f"{directory}/{name}"


class OverviewCache:
    """The overviews of this user.

    Args:
        directory: where they are; None: ``cache_directory()``.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory

    def read(self, key: str) -> bytes | None:
        """The overview with a key (hex digits); None if there is none, or it cannot be read."""
        with contextlib.suppress(OSError, RuntimeError):
            directory = self._place()
            if not is_private(directory):
                return None
            number = os.open(self._file(directory, key), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(number, "rb") as file:
                found = os.fstat(file.fileno())
                if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
                    return file.read(FILE_BYTES_MAX + 1)
        return None

    def write(self, key: str, overview: bytes) -> bool:
        """Keep an overview; returns whether it was written. A failure has no effect but the next reading's time."""
        if len(overview) > FILE_BYTES_MAX:
            return False
        try:
            directory = self._place()
            make_private(directory)
            if not is_private(directory):
                return False
            self._make_room(directory, key)
            self._put(directory, key, overview)
        except (OSError, RuntimeError):
            return False
        return True

    def _place(self) -> Path:
        return self._directory if self._directory is not None else cache_directory()

    def _put(self, directory: Path, key: str, overview: bytes) -> None:
        draft = directory / f".{key}.{secrets.token_hex(4)}"
        try:
            number = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            with os.fdopen(number, "wb") as file:
                file.write(overview)
            draft.rename(self._file(directory, key))
        finally:
            draft.unlink(missing_ok=True)

    def _make_room(self, directory: Path, key: str) -> None:
        """Remove drafts of killed writers, and the oldest files beyond ``FILES_MAX``."""
        kept = []
        for path in directory.iterdir():
            with contextlib.suppress(OSError):  # another reader removes files, too
                changed = path.lstat().st_mtime
                if path.suffix == ".ftview" and path.stem != key:
                    kept.append((changed, path))
                elif path.name.startswith(".") and time.time() - changed > DRAFT_S:
                    path.unlink()
        for _, path in sorted(kept)[: max(0, len(kept) + 1 - FILES_MAX)]:
            with contextlib.suppress(OSError):
                path.unlink()

    @staticmethod
    def _file(directory: Path, key: str) -> Path:
        assert _KEY.fullmatch(key), key
        return directory / f"{key}.ftview"
