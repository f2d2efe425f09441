"""Checks for settings that contradict each other or have no effect, within an entry and within a chain.

The rules of an entry are declared with its options. A rule with ``given`` applies only if the user set one of those
options, so that a default never causes an error.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ftcore.events.policy import ChainEntry, Declared
from ftcore.policies.options import OptionRule, Options, described, filled
from ftcore.policies.traits import Trait, having, options_of
from ftcore.wording import format_bytes, format_duration, plural

SHARED: tuple[OptionRule, ...] = (
    OptionRule(
        options=("backoff_max", "backoff"),
        broken=lambda o: o.backoff_max < o.backoff,
        text="backoff_max ({backoff_max}) is below backoff ({backoff})",
    ),
    OptionRule(
        options=("window", "backoff_max"),
        broken=lambda o: o.window < o.backoff_max,
        text="window ({window}) is below backoff_max ({backoff_max}): the budget would never count two attempts",
    ),
    OptionRule(
        options=("patience", "grace"),
        broken=lambda o: 0 < o.patience < o.grace,
        text="patience ({patience}) is below grace ({grace}): the wait would end before the workers are stopped",
    ),
)
"""Rules for every policy that has these options."""


def own_rules(options: type[Options]) -> list[OptionRule]:
    """The rules of an options record and of its base classes."""
    return [rule for base in options.__mro__ for rule in vars(base).get("rules", ())]


def broken_rules(options: type[Options], values: Mapping[str, Any], given: Sequence[str]) -> list[tuple[str, str]]:
    """The rules that an entry violates: the option whose line to report (empty: none is set), and the message.

    Args:
        options: the record type of the policy's options.
        values: the values of the options; rules for a missing value are skipped.
        given: names of the options that the user set.
    """
    shown = {
        name: values[name] if option.kind not in _SHOWN else _SHOWN[option.kind](values[name])
        for name, option in described(options).items()
        if name in values
    }
    return [
        (next((name for name in rule.options if name in given), ""), rule.text.format(**shown))
        for rule in (*SHARED, *own_rules(options))
        if all(name in values for name in rule.options)
        and (not rule.given or any(name in given for name in rule.given))
        and rule.broken(filled(options, values))
    ]


_SHOWN = {"duration": format_duration, "number": "{:g}".format, "size": format_bytes}


@attrs.frozen(kw_only=True)
class Clash:
    """A conflict within a chain.

    Args:
        policy: the entry whose line to report.
        text: the message.
    """

    policy: str
    text: str


def clashes(chain: Sequence[ChainEntry], declared: Declared) -> list[Clash]:
    """The conflicts of a chain, between entries and with the section ``job``."""
    return [*_two_remedies(chain), *_retention(chain, declared)]


def _two_remedies(chain: Sequence[ChainEntry]) -> list[Clash]:
    """A recomputed step keeps its data, other remedies skip it, so a detector can use only one (MindIO's rule)."""
    found = []
    for retry in having(chain, Trait.RECOMPUTES):
        for back in having(chain, Trait.SKIPS):
            both = sorted(set(options_of(retry).on) & set(options_of(back).on))
            apart = retry.faults and back.faults and not set(retry.faults) & set(back.faults)
            if both and not apart:
                found.append(
                    Clash(
                        policy=back.policy,
                        text=f"on: {', '.join(both)} is also in `on` of {retry.policy}, which computes the step again "
                        "on the data that this entry skips; assign each detector to one of them",
                    )
                )
    return found


def _retention(chain: Sequence[ChainEntry], declared: Declared) -> list[Clash]:
    """Check that ``job: checkpoints: kept`` keeps a checkpoint to which a rollback can go back."""
    kept, every = declared.checkpoints.kept, declared.checkpoint_every
    found = []
    for entry in having(chain, Trait.ROLLS_BACK) if kept and not declared.checkpoints.keep_every else ():
        if kept < 2:
            text = "needs a checkpoint from before the fault, but job: checkpoints: kept: 1 keeps only the newest, "
            found.append(Clash(policy=entry.policy, text=text + "which may be newer than the fault; keep 2 or more"))
        elif options_of(entry).back == "steps" and every and every * (kept - 1) < options_of(entry).before:
            before = options_of(entry).before
            needed = -(-before // every) + 1
            back, apart = plural(before, "step"), plural(every, "step")
            text = f"goes back {back}, but {kept} checkpoints, one every {apart}, reach back only "
            text += f"{plural(every * (kept - 1), 'step')}; set job: checkpoints: kept: {needed}, or reduce `before`"
            found.append(Clash(policy=entry.policy, text=text))
    return found
