"""Settings that contradict each other, or have no effect: as data, beside the options that they are about.

A rule is read against an entry's values and the names that somebody gave. One that needs ``given`` speaks only if one
of those names was set: nobody is blamed for a default.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from ftcore.events.policy import ChainEntry, Declared
from ftcore.policies.traits import Trait, having
from ftcore.wording import format_duration, plural

Values = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Rule:
    """What must not be within one entry.

    Args:
        policy: whose entry; empty: any that has all the options which the rule names.
        options: the options that it is about; the first one set has the line.
        broken: whether it is so.
        text: what is wrong, with ``{option}`` for a value.
        given: it speaks only if one of these was set; empty: always.
    """

    policy: str = ""
    options: tuple[str, ...]
    broken: Callable[[Values], bool]
    text: str
    given: tuple[str, ...] = ()


RULES: tuple[Rule, ...] = (
    Rule(
        options=("backoff_max", "backoff"),
        broken=lambda o: o["backoff_max"] < o["backoff"],
        text="backoff_max ({backoff_max}) is below backoff ({backoff})",
    ),
    Rule(
        options=("window", "backoff_max"),
        broken=lambda o: o["window"] < o["backoff_max"],
        text="window ({window}) is below backoff_max ({backoff_max}): no two attempts would be counted together",
    ),
    Rule(
        options=("patience", "grace"),
        broken=lambda o: 0 < o["patience"] < o["grace"],
        text="patience ({patience}) is below grace ({grace}): the wait would be over before the workers are out",
    ),
    Rule(
        policy="process_restart",
        options=("same_fault", "max_restarts"),
        broken=lambda o: o["same_fault"] > o["max_restarts"] + 1,
        text="same_fault ({same_fault}) is never reached: max_restarts ({max_restarts}) are spent before",
        given=("same_fault",),
    ),
    Rule(
        policy="step_retry",
        options=("uce", "hcce"),
        broken=lambda o: not o["uce"] and not o["hcce"],
        text="with uce and hcce off it takes nothing; leave the entry out",
    ),
    Rule(
        policy="step_retry",
        options=("same_fault", "max_retries"),
        broken=lambda o: o["same_fault"] > o["max_retries"] + 1,
        text="same_fault ({same_fault}) is never reached: max_retries ({max_retries}) are spent before",
        given=("same_fault",),
    ),
    Rule(
        options=("per_node", "max_retries"),
        broken=lambda o: o["per_node"] > o["max_retries"],
        text="per_node ({per_node}) is never reached: max_retries ({max_retries}) are spent before",
        given=("per_node",),
    ),
    Rule(
        options=("per_node", "max_swaps"),
        broken=lambda o: o["per_node"] > o["max_swaps"],
        text="per_node ({per_node}) is never reached: max_swaps ({max_swaps}) are spent before",
        given=("per_node",),
    ),
    Rule(
        options=("per_node", "max_replacements"),
        broken=lambda o: o["per_node"] > o["max_replacements"],
        text="per_node ({per_node}) is never reached: max_replacements ({max_replacements}) are spent before",
        given=("per_node",),
    ),
    Rule(
        policy="pod_replacement",
        options=("max_replacements",),
        broken=lambda o: o["max_replacements"] == 0,
        text="with max_replacements: 0 it takes nothing; leave the entry out",
    ),
    Rule(
        policy="shrink",
        options=("max_shrinks",),
        broken=lambda o: o["max_shrinks"] == 0,
        text="with max_shrinks: 0 it takes nothing; leave the entry out",
    ),
    Rule(
        policy="evict_straggler",
        options=("max_evictions", "every", "window"),
        broken=lambda o: o["every"] * o["max_evictions"] > o["window"],
        text="max_evictions ({max_evictions}) in window ({window}) is never reached: every ({every}) allows fewer",
        given=("max_evictions",),
    ),
    Rule(
        policy="evict_straggler",
        options=("slower",),
        broken=lambda o: o["slower"] <= 1,
        text="slower ({slower}) is the usual pace: every node would count as slow; expected more than 1, as 1.1",
        given=("slower",),
    ),
    Rule(
        policy="evict_straggler",
        options=("every",),
        broken=lambda o: o["every"] <= 0,
        text="every (0s) lets one eviction follow another before its effect shows; expected a duration over 0",
        given=("every",),
    ),
    Rule(
        policy="rollback_and_skip",
        options=("before", "back"),
        broken=lambda o: o["back"] == "latest",
        text="before ({before}) has no effect with back: latest",
        given=("before",),
    ),
    Rule(
        policy="rollback_and_skip",
        options=("skip_unit", "skip"),
        broken=lambda o: o["skip"] == 0,
        text="skip_unit has no effect with skip: 0",
        given=("skip_unit",),
    ),
    Rule(
        policy="rollback_and_skip",
        options=("on",),
        broken=lambda o: not o["on"],
        text="with nothing in `on` it takes nothing; leave the entry out",
    ),
    Rule(
        policy="recompute_step",
        options=("on",),
        broken=lambda o: not o["on"],
        text="with nothing in `on` it takes nothing; leave the entry out",
    ),
)
"""What must not be within one entry."""


def broken_rules(policy: str, values: Values, given: Sequence[str]) -> list[tuple[str, str]]:
    """The rules that an entry breaks: the option that has the line (empty: none was set), and what is wrong."""
    found = []
    for rule in RULES:
        applies = rule.policy in ("", policy) and all(name in values for name in rule.options)
        if not applies or (rule.given and not any(name in given for name in rule.given)):
            continue
        if rule.broken(values):
            at = next((name for name in rule.options if name in given), "")
            found.append((at, rule.text.format(**_shown(values))))
    return found


def _shown(values: Values) -> Mapping[str, Any]:
    """The values as messages show them: durations in units."""
    return {
        name: value if not isinstance(value, float) else f"{value:g}" if name == "slower" else format_duration(value)
        for name, value in values.items()
    }


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
            both = sorted(set(retry.options["on"]) & set(back.options["on"]))
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
        elif entry.options["back"] == "steps" and every and every * (kept - 1) < entry.options["before"]:
            before = entry.options["before"]
            needed = -(-before // every) + 1
            back, apart = plural(before, "step"), plural(every, "step")
            text = f"goes back {back}, but {kept} checkpoints, one every {apart}, are kept for "
            text += f"{plural(every * (kept - 1), 'step')} only; keep {needed} (job: checkpoints_kept) or go back less"
            found.append(Clash(policy=entry.policy, text=text))
    return found
