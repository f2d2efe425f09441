"""Objects of installed packages, named by entry points. One that is broken is refused by name."""

from importlib.metadata import EntryPoint
from typing import TypeVar

from ftcore.errors import UsageError

T = TypeVar("T")


def package_of(entry: EntryPoint) -> str:
    """The package of an entry point with its version, for messages."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value


def loaded(entry: EntryPoint, what: str, kind: type[T]) -> T:
    """Load the object of an entry point.

    Args:
        entry: the entry point.
        what: for messages, as ``platform k8s:``.
        kind: the type of the object.

    Raises:
        UsageError: the package cannot be imported, or the object has another type.
    """
    problem = f"the {what} of {package_of(entry)} cannot be used"
    try:
        found = entry.load()
    except (Exception, SystemExit) as error:  # code of another package
        raise UsageError(f"{problem}: {type(error).__name__}: {error}") from error
    if not isinstance(found, kind):
        raise UsageError(f"{problem}: {entry.value} is not of the type {kind.__name__}")
    return found
