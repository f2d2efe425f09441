"""Settings that contradict each other, or have no effect: within an entry, as rules beside its options, and in a chain.

A rule is read against an entry's values and the names that somebody gave. One that needs ``given`` speaks only if one
of those names was set: nobody is blamed for a default.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ftcore.events.policy import ChainEntry, Declared
from ftcore.policies.options import Options, Rule, described, filled
from ftcore.policies.traits import Trait, having, options_of
from ftcore.wording import format_duration, plural

SHARED: tuple[Rule, ...] = (
    Rule(
        options=("backoff_max", "backoff"),
        broken=lambda o: o.backoff_max < o.backoff,
        text="backoff_max ({backoff_max}) is below backoff ({backoff})",
    ),
    Rule(
        options=("window", "backoff_max"),
        broken=lambda o: o.window < o.backoff_max,
        text="window ({window}) is below backoff_max ({backoff_max}): no two attempts would be counted together",
    ),
    Rule(
        options=("patience", "grace"),
        broken=lambda o: 0 < o.patience < o.grace,
        text="patience ({patience}) is below grace ({grace}): the wait would be over before the workers are out",
    ),
)
"""Rules of every policy that has these options."""


def own_rules(options: type[Options]) -> list[Rule]:
    """The rules of a policy's record and of those that it extends."""
    return [rule for base in options.__mro__ for rule in vars(base).get("rules", ())]


def broken_rules(options: type[Options], values: Mapping[str, Any], given: Sequence[str]) -> list[tuple[str, str]]:
    """The rules that an entry breaks: the option that has the line (empty: none was set), and what is wrong.

    Args:
        options: the record of its policy.
        values: its values; a rule about one that is not there is left out.
        given: the names that somebody set.
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


_SHOWN = {"duration": format_duration, "number": "{:g}".format}


@attrs.frozen(kw_only=True)
class Clash:
    """What must not be in one chain.

    Args:
        policy: the entry that has the line.
        text: what is wrong.
    """

    policy: str
    text: str


def clashes(chain: Sequence[ChainEntry], declared: Declared) -> list[Clash]:
    """What in a chain contradicts another entry, or what the file says of the job."""
    return [*_two_remedies(chain), *_retention(chain, declared)]


def _two_remedies(chain: Sequence[ChainEntry]) -> list[Clash]:
    """A step computed again keeps its data, a rollback drops it: one detector cannot ask for both (MindIO's rule)."""
    found = []
    for retry in having(chain, Trait.RECOMPUTES):
        for back in having(chain, Trait.ROLLS_BACK):
            both = sorted(set(options_of(retry).on) & set(options_of(back).on))
            apart = retry.faults and back.faults and not set(retry.faults) & set(back.faults)
            if both and not apart:
                found.append(
                    Clash(
                        policy=back.policy,
                        text=f"on: {', '.join(both)} stands in {retry.policy} as well: one computes the step again on "
                        "the same data, the other one skips the data; give each detector to one of them",
                    )
                )
    return found


def _retention(chain: Sequence[ChainEntry], declared: Declared) -> list[Clash]:
    """A rollback needs a checkpoint from before the fault; what the file says of checkpoints must leave one."""
    kept, every = declared.checkpoints_kept, declared.checkpoint_every
    found = []
    for entry in having(chain, Trait.ROLLS_BACK) if kept else ():
        if kept < 2:
            text = "needs a checkpoint from before the fault, and job: checkpoints_kept: 1 keeps the newest alone, "
            found.append(Clash(policy=entry.policy, text=text + "which may be from after it; keep 2 or more"))
        elif options_of(entry).back == "steps" and every and every * (kept - 1) < options_of(entry).before:
            before = options_of(entry).before
            needed = -(-before // every) + 1
            back, apart = plural(before, "step"), plural(every, "step")
            text = f"goes back {back}, but {kept} checkpoints, one every {apart}, are kept for "
            text += f"{plural(every * (kept - 1), 'step')} only; keep {needed} (job: checkpoints_kept) or go back less"
            found.append(Clash(policy=entry.policy, text=text))
    return found
