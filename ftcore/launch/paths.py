"""Where ftcore keeps its own files on a machine; all private to the user."""

import os
import stat
import tempfile
from pathlib import Path

from ftcore.errors import UsageError
from ftcore.logs.stores import own_file
from ftcore.private import PATH_BYTES_MAX, is_private, make_private, sweep

SHARED = ("/var/tmp", tempfile.gettempdir())
"""Where a directory for sockets is made if none can be made beside the log."""


def state_home() -> Path:
    """``$XDG_STATE_HOME/ftcore``, or its default."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "ftcore"


def private_dir(path: Path) -> Path:
    """Make a directory that only this user may enter; what is missing above it likewise.

    Raises:
        UsageError: it cannot be made, with the reason.
    """
    try:
        make_private(path)
    except OSError as error:
        raise UsageError(f"cannot make the directory {path}: {error.strerror}; choose another or free it") from error
    return path


def own_dir(path: Path, what: str) -> Path:
    """A private directory whose files are believed: nobody else may have made it, or may enter it.

    Raises:
        UsageError: somebody else may have, or it cannot be made.
    """
    if not path.is_symlink():
        private_dir(path)
    found = path.lstat()
    if not is_private(path):
        raise UsageError(
            f"{path}, the directory for {what}, is not private to this user (owner {found.st_uid}, mode "
            f"{stat.S_IMODE(found.st_mode):o}): remove it, or make it yours alone"
        )
    return path


def socket_dir(store: str | None) -> Path:
    """A directory for sockets, swept of those that nobody serves any more.

    It must outlive a login, so it is not below ``XDG_RUNTIME_DIR``; and its name must be short, because a socket's path
    may have 107 bytes. A log on this machine has it beside it, other jobs have it below ``/var/tmp``.

    Args:
        store: URL of the log store; None: the default one.

    Raises:
        UsageError: none of the directories in question can be made, or is private to this user.
    """
    beside = own_file(store, "job", "run")
    shared = [Path(base) / f"ftcore-{os.getuid()}" for base in SHARED]
    problem: UsageError | None = None
    has_log = beside is not None and beside.parent.is_dir()
    for directory in ([beside.parent / ".run"] if beside is not None and has_log else []) + shared:
        if len(os.fsencode(directory)) + len("/0123456789abcdef.sock") > PATH_BYTES_MAX:
            continue
        try:
            own_dir(directory, "sockets")
        except UsageError as error:
            problem = problem or error
            continue
        sweep(directory)
        return directory
    raise problem or UsageError("no directory for sockets has a path short enough: set TMPDIR to a short one")


def master_socket(store: str | None) -> str:
    """A new gRPC target for a master on this machine.

    Args:
        store: URL of the log store; None: the default one.
    """
    return f"unix:{_new_socket(store)}"


def platform_socket(store: str | None) -> str:
    """A new path at which the platform of a job's local nodes is served.

    Args:
        store: URL of the log store; None: the default one.
    """
    return str(_new_socket(store))


def _new_socket(store: str | None) -> Path:
    return socket_dir(store) / f"{os.urandom(8).hex()}.sock"
