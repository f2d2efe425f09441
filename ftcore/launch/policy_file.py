"""The policy of a run: the policy file with changes from command line and environment, checked for this job."""

import sys
from collections.abc import Sequence
from pathlib import Path

from ftcore.errors import UsageError
from ftcore.events.policy import PolicyLoaded
from ftcore.launch.plugins import offered, policies_named_in, with_installed_rules
from ftcore.policies.file.config import Checked, check, default_chain, parse, with_grace, with_max_restarts
from ftcore.policies.file.environment import apply_switches, switched_on
from ftcore.policies.file.feasible import check_abilities
from ftcore.policies.file.yaml_nodes import BYTES_MAX

STDIN = "-"


def policy_in_force(
    path: str | None,
    *,
    max_restarts: int | None,
    switches: str,
    ranks: int | None,
    abilities: Sequence[str] = (),
    grace_s: int | None = None,
) -> PolicyLoaded:
    """The policy that ``ftrun`` submits.

    Args:
        path: the policy file; None: the default chain.
        max_restarts: ``--max-restarts``, if given.
        switches: value of ``FTCORE_POLICIES``.
        ranks: the size of the largest world of the job; None: not known.
        abilities: abilities of its platform.
        grace_s: ``--shutdown-timeout``, if given.

    Raises:
        UsageError: the file cannot be used, or requires an ability that this job lacks.
    """
    if max_restarts is not None and max_restarts < 0:
        raise UsageError(f"--max-restarts: found {max_restarts}; expected 0 or more")
    loaded = default_chain()
    if path == STDIN:
        raise UsageError("--policy: found -; expected a file, because every agent of the job reads it again")
    if path is not None:
        try:
            text = read_text(path)
        except UsageError as error:
            raise UsageError(f"--policy: {error}") from error
        loaded = parsed(text, path)
    loaded = with_installed_rules(loaded)
    if max_restarts is not None:
        loaded = with_max_restarts(loaded, max_restarts)
    if grace_s is not None:
        loaded = with_grace(loaded, grace_s)
    loaded = apply_switches(loaded, switches)
    # Plain scripts declare no ability before the run begins; abilities come from the file.
    refused = check_abilities(loaded, abilities, ranks=ranks, switched=switched_on(switches))
    if refused:
        raise UsageError(f"{loaded.source}: " + "\n  ".join(refused))
    return loaded


def read_policy(path: str) -> PolicyLoaded:
    """Read and parse a policy file, including policies of packages.

    Raises:
        UsageError: it cannot be read or used.
    """
    return parsed(read_text(path), named(path))


def named(path: str) -> str:
    """The name of a policy file in messages."""
    return "standard input" if path == STDIN else path


def parsed(text: str, source: str) -> PolicyLoaded:
    """Parse the text of a policy file, including policies of packages.

    Raises:
        UsageError: it cannot be used.
    """
    return parse(text, source, external=policies_named_in(text), offered=offered())


def checked(text: str, source: str) -> Checked:
    """As ``parsed``, but returns a list of mistakes instead of raising.

    Raises:
        UsageError: a package whose policy the file names cannot be loaded.
    """
    return check(text, source, external=policies_named_in(text), offered=offered())


def read_text(path: str) -> str:
    """The file's text.

    Args:
        path: path of the file; ``-`` is standard input.

    Raises:
        UsageError: it cannot be read, is too large to be a policy file, or is not UTF-8 text.
    """
    try:
        if path == STDIN:
            raw = sys.stdin.buffer.read(BYTES_MAX + 1)
        else:
            with Path(path).open("rb") as file:
                raw = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # a NUL in the name
        raise UsageError(f"cannot read {path!r}: {error}") from error
    if len(raw) > BYTES_MAX:
        raise UsageError(f"{path} is too large for a policy file: expected at most {BYTES_MAX} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UsageError(f"cannot read {path}: not UTF-8 text: byte 0x{raw[error.start]:02x} in line {line}") from error
