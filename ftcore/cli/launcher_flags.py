"""Defaults of ``ftrun``'s flags from the scheduler that starts it, by installed packages.

An entry point of the group ``ftcore.launchers`` is a function. It is given the environment, and returns flags by their
long names without dashes (``{"nnodes": "4"}``); none, if ``ftrun`` was not started by its scheduler. The command line
and torchrun's ``PET_*`` variables win.

House rule: imported before the warm process is started (``ftrun.py``), so it imports nothing heavy.
"""

import os
from collections.abc import Mapping
from importlib.metadata import entry_points

import attrs

from ftcore.errors import UsageError
from ftcore.extensions import package_of

GROUP = "ftcore.launchers"


@attrs.frozen
class LauncherFlags:
    """What a scheduler's environment says.

    Args:
        launcher: name of the entry point.
        flags: values by flag.
    """

    launcher: str
    flags: Mapping[str, str]


def launcher_flags(env: Mapping[str, str] = os.environ) -> LauncherFlags | None:
    """The flags of the first launcher that knows this environment.

    Raises:
        UsageError: a package cannot be used, or the scheduler started ``ftrun`` in a way that cannot work.
    """
    for entry in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        try:
            found = entry.load()(env)
            if not isinstance(found, Mapping):
                raise TypeError(f"{entry.value} returned {type(found).__name__}, expected a mapping of flags")
            flags = {str(name): str(value) for name, value in found.items()}
        except UsageError as error:
            raise UsageError(f"{entry.name}: {error}") from error
        except (Exception, SystemExit) as error:  # code of another package
            raise UsageError(
                f"the launcher {entry.name} of {package_of(entry)} cannot be used: {type(error).__name__}: {error}; "
                "repair or uninstall it"
            ) from error
        if flags:
            return LauncherFlags(entry.name, flags)
    return None
