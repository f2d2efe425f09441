"""What installed packages bring to a job: policies (entry points ``ftcore.policies``), rules (``ftcore.faults``).

House rule: nothing of theirs is imported here. Names and versions are read from the packages' metadata; what lies
behind a name is loaded in a process of its own (``runtime/advise.py``), and only where this job asks for it: a policy
where its file names it, rules always.
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
from ftcore.policies.config_chain import numeric_details
from ftcore.policies.external import GROUP, RULES_GROUP, External, Offered, RuleSource, one_line, with_rules
from ftcore.runtime.wire import without_secrets

PATIENCE_S = 30.0
"""How long the packages may take to load: longer than any import, shorter than a user's patience."""

_WORD = re.compile(r"\w+")

_T = TypeVar("_T")


@functools.lru_cache(maxsize=4)
def policies_named_in(text: str) -> dict[str, External]:
    """The policies of packages that a policy file may name, as far as its words occur as names.

    Args:
        text: the file's content.

    Raises:
        UsageError: two packages offer the same name, one has a name of ftcore's, or they cannot be looked at.
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
            raise UsageError(f"{' and '.join(owners)} offers a policy {name}, which is the name of one of ftcore's")
        if len(owners) > 1:
            raise UsageError(f"{' and '.join(owners)} both offer a policy {name}; uninstall one of them")
    return {each.name: each for each in _look("describe", names, list[External])}


def offered() -> Offered:
    """What installed packages offer beside the policies that a file names."""
    names = sorted({entry.name for entry in entry_points(group=GROUP)})
    return Offered(names=names, details=_details)


def _details() -> list[str]:
    return [detail for source in _rule_sources() if not source.error for detail in numeric_details(source.items)]


def _rule_sources() -> list[RuleSource]:
    if not entry_points(group=RULES_GROUP):
        return []
    return sorted(_look("rules", (), list[RuleSource]), key=lambda source: (source.origin, source.name))


def with_installed_rules(loaded: PolicyLoaded) -> PolicyLoaded:
    """A policy with the rules of all installed packages behind its own.

    Raises:
        UsageError: the rules of a package cannot be loaded or used; says which package.
    """
    for source in _rule_sources():
        if source.error:
            raise UsageError(f"the rules {source.name} of {source.origin}: {source.error}; repair or uninstall it")
        loaded = with_rules(loaded, source.items, source.origin)
    return loaded


def _look(what: str, names: Sequence[str], kind: type[_T]) -> _T:
    """Have a process load what the packages offer, and tell what is there."""
    argv = (sys.executable, "-P", "-m", "ftcore.runtime.advise", what, *names)
    about = f"the packages that offer {', '.join(names)}" if names else "the packages that offer rules"
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=without_secrets(os.environ),
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{about} take longer than {PATIENCE_S:g} s to load") from None
    try:
        return msgspec.json.decode(done.stdout, type=kind)
    except msgspec.MsgspecError:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise UsageError(f"{about} cannot be loaded: exit code {done.returncode}; {one_line(said)}") from None
