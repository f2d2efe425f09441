"""Policies (entry points ``ftcore.policies``) and rules (``ftcore.faults``) of installed packages.

House rule: no plugin is imported here. Names and versions come from the packages' metadata. Plugins are loaded in
a separate process (``runtime/plugin_process.py``), only if needed: a policy if the policy file names it, rules always.
"""

import functools
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import TypeVar

import msgspec

from ftcore.errors import UsageError
from ftcore.events.policy import PolicyLoaded
from ftcore.policies.chain import BUILT_IN
from ftcore.policies.external import GROUP, RULES_GROUP, External, Offered, RuleSource, one_line, with_rules
from ftcore.policies.file.config_chain import numeric_details
from ftcore.runtime.wire import without_secrets

LOAD_TIMEOUT_S = 30.0
"""Longest time for loading plugins: longer than usual imports."""

_WORD = re.compile(r"\w+")

_T = TypeVar("_T")


@functools.lru_cache(maxsize=4)
def policies_named_in(text: str) -> dict[str, External]:
    """The policies of packages whose names occur in a policy file.

    Args:
        text: the file's content.

    Raises:
        UsageError: two packages offer the same name, a name is one of ftcore's, or a package cannot be loaded.
    """
    words = set(_WORD.findall(text))
    found = [entry for entry in entry_points(group=GROUP) if entry.name in words]
    names = sorted({entry.name for entry in found})
    if not names:
        return {}
    for name in names:
        owners = sorted(
            {f"{entry.dist.name} {entry.dist.version}" for entry in found if entry.name == name and entry.dist}
        )
        if name in BUILT_IN:
            raise UsageError(f"{' and '.join(owners)} offers a policy {name}, but ftcore has a policy of that name")
        if len(owners) > 1:
            raise UsageError(f"{' and '.join(owners)} both offer a policy {name}; uninstall one of them")
    return {each.name: each for each in _load("describe", names, list[External])}


def offered() -> Offered:
    """Names of policies of all installed packages, and details of their rules."""
    names = sorted({entry.name for entry in entry_points(group=GROUP)})
    return Offered(names=names, details=_details)


def _details() -> list[str]:
    return [detail for source in _rule_sources() if not source.error for detail in numeric_details(source.items)]


def _rule_sources() -> list[RuleSource]:
    if not entry_points(group=RULES_GROUP):
        return []
    return sorted(_load("rules", (), list[RuleSource]), key=lambda source: (source.origin, source.name))


def with_installed_rules(loaded: PolicyLoaded) -> PolicyLoaded:
    """A policy with the rules of all installed packages after its own.

    Raises:
        UsageError: the rules of a package cannot be loaded or used.
    """
    for source in _rule_sources():
        if source.error:
            raise UsageError(f"the rules {source.name} of {source.origin}: {source.error}; repair or uninstall it")
        loaded = with_rules(loaded, source.items, source.origin)
    return loaded


def _load(what: str, names: Sequence[str], kind: type[_T]) -> _T:
    """Load plugins in a separate process and return their description."""
    argv = (sys.executable, "-P", "-m", "ftcore.runtime.plugin_process", what, *names)
    packages = f"the packages that offer {', '.join(names)}" if names else "the packages that offer rules"
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=without_secrets(os.environ),
            timeout=LOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{packages} take longer than {LOAD_TIMEOUT_S:g} s to load") from None
    try:
        return msgspec.json.decode(done.stdout, type=kind)
    except msgspec.MsgspecError:
        last_line = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise UsageError(f"{packages} cannot be loaded: exit code {done.returncode}; {one_line(last_line)}") from None
