"""``FTCORE_POLICIES``: MindIO's switches, which override the policy file.

    FTCORE_POLICIES="{TTP:1,UCE:1}"

| switch | policy | needs replicas |
|---|---|---|
| ``UCE`` | ``step_retry``, option ``uce`` | yes |
| ``HCCE`` | ``step_retry``, option ``hcce`` | no |
| ``TRE`` | ``recompute_step`` | no |
| ``ARF`` | ``hot_swap`` | yes |
| ``TTP`` | ``dying_checkpoint`` | no |
| ``RSC`` | ``pod_replacement`` | no |
| ``TSP`` | ``step_pause`` | no |

``1`` adds the policy to the chain, at its place in MindIO's order, and makes it required; ``0`` removes it. ``UCE:1``
and ``ARF:1`` imply ``TTP:1``, so that the state is saved if they fail; in a policy file their policies do so as well.
``TRE:1`` compares the norm with the threshold of the file's entry, or with the default. Other policies stay as in the
file.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

from ftcore.errors import UsageError
from ftcore.events.policy import ChainEntry, PolicyLoaded
from ftcore.policies.base import Ability
from ftcore.policies.chain import BUILT_IN, default_entry
from ftcore.policies.file.rules import broken_rules, clashes
from ftcore.policies.file.yaml_nodes import did_you_mean, short
from ftcore.policies.traits import Trait, has

VARIABLE = "FTCORE_POLICIES"

POLICIES: Mapping[str, str] = {
    "TSP": "step_pause",
    "UCE": "step_retry",
    "HCCE": "step_retry",
    "TRE": "recompute_step",
    "ARF": "hot_swap",
    "TTP": "dying_checkpoint",
    "RSC": "pod_replacement",
}
"""Each switch and its policy, in MindIO's order of priority."""

REPLICA_BASED = ("UCE", "ARF")
IMPLY_TTP = ("UCE", "ARF")

_RETRY_OPTIONS = {"UCE": "uce", "HCCE": "hcce"}
_PAIR = re.compile(r"\s*([^:=\s]*)\s*[:=]\s*(\S*)\s*")
_EXPECTED = f'expected {VARIABLE}="{{TTP:1,UCE:1}}" with the switches {", ".join(sorted(POLICIES))} and 1 or 0'


def read_switches(text: str) -> dict[str, bool]:
    """Parse the switches.

    Raises:
        UsageError: the text is not of the form ``{NAME:1,NAME:0}`` (braces are optional), or a name is unknown.
    """
    inner = text.strip()
    if inner.startswith("{") != inner.endswith("}"):
        raise UsageError(f"{VARIABLE}: found {short(text)}; a brace is missing; {_EXPECTED}")
    switches: dict[str, bool] = {}
    for part in inner.strip("{}").split(",") if inner.strip("{} ") else ():
        pair = _PAIR.fullmatch(part)
        name, value = (pair[1].strip("\"'").upper(), pair[2].strip("\"'")) if pair is not None else ("", "")
        if pair is None or value not in ("0", "1"):
            raise UsageError(f"{VARIABLE}: found {short(part.strip())}; {_EXPECTED}")
        if name not in POLICIES:
            raise UsageError(f"{VARIABLE}: unknown switch {short(name)}{did_you_mean(name, POLICIES)}")
        if name in switches:
            raise UsageError(f"{VARIABLE}: {name} is set twice")
        switches[name] = value == "1"
    return switches


def apply_switches(loaded: PolicyLoaded, text: str) -> PolicyLoaded:
    """Apply the switches to a chain, and name them in its source.

    Args:
        loaded: the policies of the file, or the default ones.
        text: value of the variable; empty: no change.

    Raises:
        UsageError: the text is invalid, or conflicts with itself or with the policy file.
    """
    switches = read_switches(text)
    if not switches:
        return loaded
    _imply(switches, text)
    _need_replicas(switches, loaded)
    chain = list(loaded.chain)
    for name in POLICIES:
        if name in switches:
            _switch(chain, name, switches[name])
    shown = ",".join(f"{name}:{int(on)}" for name, on in switches.items())
    changed = msgspec.structs.replace(loaded, chain=tuple(chain), source=f"{loaded.source} with {VARIABLE}={{{shown}}}")
    for entry in changed.chain if switches.get("TRE") else ():
        if entry.policy == POLICIES["TRE"]:
            for _, broken in broken_rules(BUILT_IN[entry.policy].options, entry.options, ()):
                raise UsageError(f"{VARIABLE}: {entry.policy}: {broken}")
    for clash in clashes(changed.chain, changed.declared):
        raise UsageError(f"{VARIABLE}: {clash.policy}: {clash.text}")
    return changed


def with_implied(chain: Sequence[ChainEntry]) -> tuple[ChainEntry, ...]:
    """The chain of a file, with the policy of ``TTP`` if it has one of those that imply it and not that one."""
    causes = [entry for entry in chain if any(_switches_on(entry, name) for name in IMPLY_TTP)]
    implied = POLICIES["TTP"]
    if not causes or any(entry.policy == implied for entry in chain):
        return tuple(chain)
    changed = list(chain)
    required = any(entry.required for entry in causes)
    changed.insert(_place(changed, implied), msgspec.structs.replace(default_entry(implied), required=required))
    return tuple(changed)


def _switches_on(entry: ChainEntry, name: str) -> bool:
    return entry.policy == POLICIES[name] and bool(entry.options.get(_RETRY_OPTIONS.get(name, ""), True))


def switched_on(text: str) -> dict[str, str]:
    """By policy, the switch that enables it, directly or by implication.

    Raises:
        UsageError: as ``read_switches`` and ``apply_switches``.
    """
    named = read_switches(text)
    all_on = dict(named)
    _imply(all_on, text)
    cause = next((name for name in IMPLY_TTP if named.get(name)), "")
    return {POLICIES[name]: name if name in named else cause for name, on in all_on.items() if on}


def _imply(switches: dict[str, bool], text: str) -> None:
    causes = [name for name in IMPLY_TTP if switches.get(name)]
    if not causes:
        return
    if switches.get("TTP") is False:
        raise UsageError(f"{VARIABLE}: found {short(text)}; {causes[0]}:1 implies TTP:1, which contradicts TTP:0")
    switches["TTP"] = True


def _need_replicas(switches: Mapping[str, bool], loaded: PolicyLoaded) -> None:
    on = [name for name in REPLICA_BASED if switches.get(name)]
    if on and Ability.REPLICAS not in loaded.declared.abilities:
        raise UsageError(
            f"{VARIABLE}: {', '.join(on)} need{'s' if len(on) == 1 else ''} replicas, but the policy file declares "
            "none; set there which ranks hold the same state: `job: {replicas: all}`, or groups"
        )


def _switch(chain: list[ChainEntry], name: str, on: bool) -> None:
    policy = POLICIES[name]
    option = _RETRY_OPTIONS.get(name)
    here = [place for place, entry in enumerate(chain) if entry.policy == policy]
    if not here and on:
        entry = msgspec.structs.replace(default_entry(policy), required=True)
        if option is not None:  # the other half of step_retry stays off unless its switch is set as well
            entry.options.update({half: half == option for half in _RETRY_OPTIONS.values()})
        chain.insert(_place(chain, policy), entry)
        return
    for place in reversed(here):
        entry = chain[place]
        if option is not None:
            entry = msgspec.structs.replace(entry, options={**entry.options, option: on}, required=entry.required or on)
            on_at_all = any(entry.options[half] for half in _RETRY_OPTIONS.values())
        else:
            entry, on_at_all = msgspec.structs.replace(entry, required=True), on
        if on_at_all:
            chain[place] = entry
        else:
            del chain[place]


def _place(chain: list[ChainEntry], policy: str) -> int:
    """The index at which to insert a policy: after the policies that precede it in MindIO's order, else at the top.

    This is always above policies that restart, shrink or end, below which the policy would not be asked any more.
    """
    order = list(dict.fromkeys(POLICIES.values()))
    before = order[: order.index(policy)]
    places = [place + 1 for place, entry in enumerate(chain) if entry.policy in before]
    others = (place for place, entry in enumerate(chain) if entry.policy not in before)
    most = (place for place in others if has(chain[place], Trait.COSTS_A_ROUND) or has(chain[place], Trait.ENDS))
    return min(max(places, default=0), next(most, len(chain)))
