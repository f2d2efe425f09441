"""Where ftcore keeps its own files on a machine; all private to the user."""

import hashlib
import os
import tempfile
from pathlib import Path

from ftcore.errors import UsageError

MASTER_SAYS = "ftcore master: "
"""How the last line of a candidate's messages begins if it cannot go on."""


def state_home() -> Path:
    """``$XDG_STATE_HOME/ftcore``, or its default."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "ftcore"


def private_dir(path: Path) -> Path:
    """Make a directory that only this user may enter.

    Raises:
        UsageError: it cannot be made, with the reason.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(f"cannot make the directory {path}: {error.strerror}; choose another or free it") from error
    return path


def socket_dir() -> Path:
    """A directory for sockets with a short name: a Unix socket's path may have 107 bytes.

    Raises:
        UsageError: somebody else owns the one in the temporary directory.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base.startswith("/") and len(base) < 60 and os.access(base, os.W_OK):
        return private_dir(Path(base) / "ftcore")
    path = private_dir(Path(tempfile.gettempdir()) / f"ftcore-{os.getuid()}")
    if path.stat().st_uid != os.getuid() or path.stat().st_mode & 0o077:
        raise UsageError(f"{path} is not private to this user; remove it, or set XDG_RUNTIME_DIR")
    return path


def master_socket(job: str) -> str:
    """A new gRPC target for a master of the job on this machine."""
    name = hashlib.blake2b(f"{job}/{os.getpid()}/{os.urandom(8).hex()}".encode(), digest_size=8).hexdigest()
    return f"unix:{socket_dir() / name}.sock"
