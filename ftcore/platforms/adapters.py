"""Platforms by the scheme of their URL.

| URL | platform |
|---|---|
| ``local:?OPTIONS`` | ``ftrun --local-nodes``: nodes are processes of this machine (``options.py`` has the options) |
| others | of installed packages: entry points of the group ``ftcore.platforms``, named by their scheme |

Each is a ``PlatformAdapter``. Names are read from the packages' metadata; only the adapter of the URL is loaded.
"""

import difflib
import pkgutil
from collections.abc import Callable
from importlib.metadata import entry_points

import attrs

from ftcore.errors import UsageError
from ftcore.extensions import loaded
from ftcore.policies.base import Ability
from ftcore.ports import Platform

GROUP = "ftcore.platforms"
LOCAL = "local"

_BUILT_IN = {LOCAL: "ftcore.platforms.local:ADAPTER"}


@attrs.frozen(kw_only=True)
class PlatformAdapter:
    """A kind of platform, registered under a URL scheme (entry points of the group ``ftcore.platforms``).

    ``ftrun`` and ``ftctl policy`` load it on every node to check the URL, so its module must import quickly: import the
    platform's client library in ``open``, which only the master calls.

    Args:
        open: given the URL and the job, returns the platform, without connecting.
        check: raises ``UsageError`` if the URL's options are wrong.
        abilities: additional abilities of jobs at this URL, as far as known before the start: ``replace``, or none.
    """

    open: Callable[[str, str], Platform]
    check: Callable[[str], object] = lambda url: None
    abilities: Callable[[str], tuple[str, ...]] = lambda url: (Ability.REPLACE,)


def schemes() -> tuple[str, ...]:
    """The supported schemes, ftcore's own first."""
    return (*_BUILT_IN, *sorted({entry.name for entry in entry_points(group=GROUP)} - _BUILT_IN.keys()))


def check_url(url: str) -> str:
    """Check a platform's URL and return its scheme.

    Raises:
        UsageError: no usable adapter of that name is installed, or the URL's options are wrong.
    """
    _adapter(url).check(url)
    return url.partition(":")[0]


def abilities_of(url: str) -> tuple[str, ...]:
    """Additional abilities of a job on a platform, as far as known before the start.

    Args:
        url: URL of the platform; empty: none.

    Raises:
        UsageError: as ``check_url``.
    """
    if not url:
        return ()
    adapter = _adapter(url)
    adapter.check(url)
    return adapter.abilities(url)


def open_platform(url: str, job: str) -> Platform:
    """Open the platform at a URL, without connecting.

    Args:
        url: its URL.
        job: the job's name.

    Raises:
        UsageError: as ``check_url``.
    """
    adapter = _adapter(url)
    adapter.check(url)
    try:
        return adapter.open(url, job)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # code of another package may raise anything; the job continues
        raise UsageError(f"{url}: the platform cannot be used: {type(error).__name__}: {error}") from error


def _adapter(url: str) -> PlatformAdapter:
    scheme, colon, _ = url.partition(":")
    known = schemes()
    if not colon or scheme not in known:
        near = difflib.get_close_matches(scheme.lower(), known, n=1)
        hint = f"did you mean {near[0]}:?" if near else f"known are {', '.join(f'{name}:' for name in known)}"
        raise UsageError(f"{url!r} is not the URL of a platform: {hint}")
    if scheme in _BUILT_IN:
        found = pkgutil.resolve_name(_BUILT_IN[scheme])
        assert isinstance(found, PlatformAdapter)
        return found
    entry = next(entry for entry in entry_points(group=GROUP) if entry.name == scheme)
    return loaded(entry, f"platform {scheme}:", PlatformAdapter)
