"""Stores of event logs, by URL.

| URL | store |
|---|---|
| ``memory://NAME`` | in the memory of this process; the reference implementation |
| ``sqlite:///DIR`` | a directory on a local disk, one file per job, ``<job>.db`` |
| ``sqlite:///FILE.db`` | one file (``.db`` or ``.sqlite``) with the log of one job |
| ``etcd://HOST:PORT,HOST:PORT/PREFIX`` | an etcd cluster |
| ``file:///FILE.ftlog`` | a read-only archive, as ``ftctl export`` writes it |
| ``file:///DIR`` | a directory of archived jobs, as a master with ``--archive`` writes it; read-only |

The paths of ``sqlite:`` and ``file:`` may be relative (``sqlite:x``, ``sqlite:///./x``) and are not percent-decoded.
An adapter is imported only when a URL names it, so a job on one machine needs neither gRPC nor protobuf.
"""

import contextlib
import difflib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from ftcore.errors import UsageError
from ftcore.ids import JobName
from ftcore.ports import EventLog, LogStore
from ftcore.timing import DEFAULT, Timing

SCHEMES = ("memory", "sqlite", "etcd", "file")


def default_store_url() -> str:
    """URL of the default store, in the user's state directory."""
    state = os.environ.get("XDG_STATE_HOME", "")
    # XDG specification: a relative path in the variable is invalid and must be ignored.
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return f"sqlite://{base / 'ftcore'}"


async def open_log(url: str | None, job: str, *, create: bool = False) -> EventLog:
    """The log of one job in the store at a URL; see ``open_store`` and ``LogStore.open``.

    Closing the log also releases the store.
    """
    return await open_store(url).open(JobName(job), create=create)


@contextlib.asynccontextmanager
async def opened(url: str | None, job: str, *, create: bool = False) -> AsyncIterator[EventLog]:
    """Context manager: the log of one job in the store at a URL; closes the log and the store at the end."""
    store = open_store(url)
    try:
        yield await store.open(JobName(job), create=create)
    finally:
        await store.close()


def open_store(url: str | None, timing: Timing = DEFAULT) -> LogStore:
    """The store at a URL; ``default_store_url()`` if None. Neither connects nor creates anything.

    Args:
        url: the URL.
        timing: lease and renewal of leaderships in etcd; other stores detect a dead leader at once.

    Raises:
        UsageError: the URL is not one of those in the module's table.
    """
    url = default_store_url() if url is None else url
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in SCHEMES:
        raise UsageError(_unknown_scheme(url, scheme if colon else ""))
    if scheme == "etcd":
        from ftcore.logs.etcd import EtcdStore

        return EtcdStore.from_url(url, timing=timing)
    if scheme == "memory":
        from ftcore.logs.memory import MemoryStore

        return MemoryStore(rest.removeprefix("//"))
    path = _path(url, scheme, rest)
    if scheme == "sqlite":
        from ftcore.logs.sqlite import SqliteStore

        return SqliteStore(path)
    from ftcore.logs.archived import ArchiveStore

    return ArchiveStore(path)


def check_store_url(url: str) -> None:
    """Raise ``UsageError`` unless the URL names a log store; neither opens nor creates anything."""
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in SCHEMES:
        raise UsageError(_unknown_scheme(url, scheme if colon else ""))
    if scheme in ("sqlite", "file"):
        _path(url, scheme, rest)
    endpoints(url)


def endpoints(url: str) -> list[tuple[str, int]]:
    """Hosts and ports of the servers in a URL; empty for a store without servers.

    Raises:
        UsageError: an invalid etcd URL.
    """
    if not url.startswith("etcd:"):
        return []
    from ftcore.logs.etcd import servers

    return servers(url)


def own_file(url: str | None, job: str, suffix: str) -> Path | None:
    """Path beside a job's log file with a suffix; None if the store is not a file store of this machine."""
    log = log_file(url, job)
    return None if log is None else log.with_name(f"{log.name}.{suffix}")


def log_file(url: str | None, job: str) -> Path | None:
    """The file for a job's log, which may not exist; None if the store is not a file store of this machine."""
    url = default_store_url() if url is None else url
    scheme, _, rest = url.partition(":")
    if scheme != "sqlite":
        return None
    from ftcore.logs.sqlite import file_of

    return file_of(_path(url, scheme, rest), job)


def archive_file(url: str | None) -> Path | None:
    """The file of a store that is a single archive; None for other stores."""
    scheme, _, rest = (url or "").partition(":")
    if url is None or scheme != "file":
        return None
    path = _path(url, scheme, rest)
    return path if path.is_file() else None


def missing_path(url: str) -> Path | None:
    """The path of an SQLite store if it does not exist; None if it exists, and for other stores.

    ``ftrun`` creates a missing store with its first job. For a command that only reads, a missing store is an error.
    """
    scheme, _, rest = url.partition(":")
    if scheme != "sqlite":
        return None
    path = _path(url, scheme, rest)
    try:
        return None if path.exists() else path
    except OSError:  # opening the store reports the reason
        return None


def _path(url: str, scheme: str, rest: str) -> Path:
    """The path in a URL. An absolute path may have several leading slashes, as in SQLAlchemy's URLs.

    Raises:
        UsageError: the URL has no valid path, with the reason.
    """
    forms = f"write {scheme}:///absolute/path or {scheme}:relative/path"
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise UsageError(f"{url!r} names the host {host!r}, but a {scheme}: store is on this machine: {forms}")
        rest = path if path.startswith(("./", "../", "~")) else slash + path
    if "?" in rest or "#" in rest:
        odd = rest[min(place for place in (rest.find("?"), rest.find("#")) if place >= 0) :]
        raise UsageError(f"{url!r}: a {scheme}: store takes no options, found {odd!r}: {forms}")
    if not rest.strip("/") or "\0" in rest:
        raise UsageError(f"{url!r} names no path: {forms}")
    if rest.startswith("/"):
        rest = "/" + rest.lstrip("/")
    try:
        return Path(rest).expanduser().absolute()
    except RuntimeError as error:
        raise UsageError(f"{url!r}: {error}") from error


def _unknown_scheme(url: str, scheme: str) -> str:
    near = difflib.get_close_matches(scheme.lower(), SCHEMES, n=1)
    if scheme.lower() in ("http", "https"):
        hint = f"did you mean etcd{url[len(scheme) :]}?"
    elif near:
        hint = f"did you mean {near[0]}{url[len(scheme) :]!s}?"
    elif not scheme:
        hint = f"did you mean sqlite:{url}?"
    else:
        hint = f"known are {', '.join(f'{known}:' for known in SCHEMES)}"
    return f"{url!r} is not the URL of a log store: {hint}"
