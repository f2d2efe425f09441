"""Where ftcore keeps its own files on a machine; all private to the user."""

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from ftcore.errors import UsageError
from ftcore.logs import own_file
from ftcore.runtime.wire.security import Security, from_environ

MASTER_SAYS = "ftcore master: "
"""How the last line of a candidate's messages begins if it cannot go on."""


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
        missing = [path]
        while not missing[-1].parent.exists():
            missing.append(missing[-1].parent)
        for one in reversed(missing):
            one.mkdir(exist_ok=True, mode=0o700)
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
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UsageError(
            f"{path}, the directory for {what}, is not private to this user (owner {found.st_uid}, mode "
            f"{stat.S_IMODE(found.st_mode):o}): remove it, or make it yours alone"
        )
    return path


def socket_dir() -> Path:
    """A directory for sockets with a short name: a Unix socket's path may have 107 bytes.

    Raises:
        UsageError: somebody else made it, or may enter it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base.startswith("/") and len(base) < 60 and os.access(base, os.W_OK):
        return own_dir(Path(base) / "ftcore", "sockets (below XDG_RUNTIME_DIR)")
    return own_dir(Path(tempfile.gettempdir()) / f"ftcore-{os.getuid()}", "sockets (unless XDG_RUNTIME_DIR is set)")


def credentials(store: str | None, job: str, *, make: bool = False) -> Security:
    """What this process shows to the others of a job; on one machine the token lies beside the log.

    Args:
        store: URL of the log store; None: the default one.
        job: the job.
        make: make the token of one machine if it is not there.

    Raises:
        UsageError: what the environment names cannot be used.
    """
    return from_environ(own=own_file(store, job, "token"), make=make)


def master_socket(job: str) -> str:
    """A new gRPC target for a master of the job on this machine."""
    return f"unix:{_new_socket(job)}"


def platform_socket(job: str) -> str:
    """A new path at which the platform of the job's local nodes is served."""
    return str(_new_socket(job))


def _new_socket(job: str) -> Path:
    name = hashlib.blake2b(f"{job}/{os.getpid()}/{os.urandom(8).hex()}".encode(), digest_size=8).hexdigest()
    return socket_dir() / f"{name}.sock"
