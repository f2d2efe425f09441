"""Adapters of ``ports.Platform``, chosen by the scheme of a URL.

| URL | platform |
|---|---|
| ``local:?OPTIONS`` | ``ftrun --local-nodes``: nodes are processes of this machine (``options.py`` has the options) |
| others | adapters of installed packages: entry points of the group ``ftcore.platforms``, named by their scheme |

An adapter's entry point is a function of the URL and the job's name that returns a ``Platform``. It is called in the
master's process, whenever one begins to lead; what it raises is told and tried again, and no job ends of it.

House rules: an adapter knows nothing of the job but what it is asked. Names are read from the packages' metadata;
nothing of theirs is imported before a master opens it.
"""

import difflib
from collections.abc import Callable
from importlib.metadata import entry_points

from ftcore.errors import UsageError
from ftcore.ports import Platform

GROUP = "ftcore.platforms"
LOCAL = "local"
REPLACE = "replace"
"""The ability that every platform gives to a job; the name is that of ``policies.base.Ability``."""


def schemes() -> tuple[str, ...]:
    """The schemes that can be named, ftcore's own first."""
    return (LOCAL, *sorted({entry.name for entry in entry_points(group=GROUP)} - {LOCAL}))


def check_url(url: str) -> str:
    """The scheme of a platform's URL.

    Raises:
        UsageError: no adapter of that name is installed, or the URL's options are wrong.
    """
    scheme, colon, _ = url.partition(":")
    known = schemes()
    if not colon or scheme not in known:
        near = difflib.get_close_matches(scheme.lower(), known, n=1)
        hint = f"did you mean {near[0]}:?" if near else f"known are {', '.join(f'{name}:' for name in known)}"
        raise UsageError(f"{url!r} is not the URL of a platform: {hint}")
    if scheme == LOCAL:
        from ftcore.platforms.options import parse

        parse(url)
    return scheme


def abilities_of(url: str) -> tuple[str, ...]:
    """What a job on this platform can do besides, as far as that is plain before anything starts.

    Args:
        url: of the platform; empty: there is none.

    Raises:
        UsageError: as ``check_url``.
    """
    if not url:
        return ()
    if check_url(url) == LOCAL:
        from ftcore.platforms.options import parse

        return (REPLACE,) if parse(url).ever_free else ()
    return (REPLACE,)


def open_platform(url: str, job: str) -> Platform:
    """The platform at a URL; nothing is connected to yet.

    Args:
        url: its URL.
        job: the job whose nodes are meant.

    Raises:
        UsageError: the URL cannot be used, or the adapter cannot be loaded.
    """
    scheme = check_url(url)
    if scheme == LOCAL:
        from ftcore.platforms.local import LocalPlatform

        return LocalPlatform.from_url(url)
    found = next(entry for entry in entry_points(group=GROUP) if entry.name == scheme)
    try:
        make: Callable[[str, str], Platform] = found.load()
        return make(url, job)
    except Exception as error:  # a package's own code: whatever it raises, the job goes on
        who = f"{found.dist.name} {found.dist.version}" if found.dist is not None else found.value
        raise UsageError(f"the platform {scheme}: of {who} cannot be used: {type(error).__name__}: {error}") from error
