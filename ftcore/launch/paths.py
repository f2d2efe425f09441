"""Paths of ftcore's own files on a machine; all are private to the user."""

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from ftcore.errors import UsageError
from ftcore.logs.stores import own_file
from ftcore.private import PATH_BYTES_MAX, is_private, make_private, sweep

SHARED = ("/var/tmp", tempfile.gettempdir())
"""Parent directories for sockets if they cannot be beside the log."""


def state_home() -> Path:
    """``$XDG_STATE_HOME/ftcore``, or its default."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "ftcore"


def private_dir(path: Path) -> Path:
    """Make a directory, and missing parents, that only this user may access.

    Raises:
        UsageError: it cannot be made.
    """
    try:
        make_private(path)
    except OSError as error:
        raise UsageError(f"cannot make the directory {path}: {error.strerror}") from error
    return path


def own_dir(path: Path, what: str) -> Path:
    """Make a private directory for files that ftcore trusts.

    Raises:
        UsageError: another user owns it or may access it, or it cannot be made.
    """
    if not path.is_symlink():
        private_dir(path)
    found = path.lstat()
    if not is_private(path):
        raise UsageError(
            f"{path}, the directory for {what}, is not private to this user (owner {found.st_uid}, mode "
            f"{stat.S_IMODE(found.st_mode):o}): remove it, or set owner and mode 700"
        )
    return path


def socket_dir(store: str | None) -> Path:
    """A directory for sockets; sockets without a server are removed from it.

    It must outlive a login, so it is not below ``XDG_RUNTIME_DIR``. Its path must be short, because a socket's path is
    limited to 107 bytes. It is beside a log on this machine; for other jobs it is below ``/var/tmp``.

    Args:
        store: URL of the log store; None for the default store.

    Raises:
        UsageError: no possible directory can be made or is private to this user.
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
    raise problem or UsageError("no directory for sockets has a short enough path: set TMPDIR to a shorter path")


def master_socket(store: str | None) -> str:
    """A new gRPC target for a master on this machine; ``store`` as for ``socket_dir``."""
    return f"unix:{_new_socket(store)}"


def platform_socket(store: str | None) -> str:
    """A new socket path for the platform of local nodes; ``store`` as for ``socket_dir``."""
    return str(_new_socket(store))


def keeper_socket(store: str | None, job: str, node: str) -> str:
    """The socket of a node's keeper, which a later agent of the node finds again; ``store`` as for ``socket_dir``."""
    name = hashlib.sha256("\0".join((store or "", job, node)).encode()).hexdigest()[:16]
    return str(socket_dir(store) / f"{name}.sock")


def _new_socket(store: str | None) -> Path:
    return socket_dir(store) / f"{os.urandom(8).hex()}.sock"
