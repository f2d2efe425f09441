"""Policy files written out for people to change: every entry with its options and what they mean."""

import textwrap
from collections.abc import Iterator
from typing import Any

import yaml

from ftcore.events.policy import ChainEntry
from ftcore.policies import presets
from ftcore.policies.chain import BUILT_IN
from ftcore.policies.config import SAID_BY_SCRIPT, SCHEMA_VERSION, preset
from ftcore.policies.options import described
from ftcore.states.health import MODES

COLUMNS = 100
_UNITS = (("d", 86400), ("h", 3600), ("m", 60))


def commented(name: str) -> str:
    """A policy file that has in force what a preset has, each option with its value and a comment.

    Options that have their default stand behind a ``#``.

    Entries that need what not every job can do are ``optional``, as they are in the preset.

    Args:
        name: one of ``presets.names()``.

    Raises:
        UsageError: there is no such preset.
    """
    loaded = preset(name)
    lines = [*_comment(f"Made from the preset {name!r}. {presets.doc(name)}", 0), ""]
    lines += [
        "# A line behind a # shows a default; take the # away to change it. Check it: ftctl policy check FILE",
        "",
    ]
    lines += [f"version: {SCHEMA_VERSION}", "", *_job(name), "", "# Highest priority first.", "chain:"]
    for entry in loaded.chain:
        lines += [*_entry(entry), ""]
    return "\n".join(lines).rstrip() + "\n"


def _job(name: str) -> Iterator[str]:
    yield from _comment("What nobody but you knows of the job:", 0)
    yield "# job:"
    yield "#   replicas: all                  # which ranks hold the same state: all, none or [[0, 4], [1, 5]]"
    yield f"#   abilities: [save]              # what the script can do when told: {', '.join(SAID_BY_SCRIPT)}"
    yield "#   checkpoint_every: 100          # steps"
    yield "#   checkpoints_kept: 3"
    yield f"#   health: auto                   # when nodes check their devices and links: {', '.join(MODES)}"
    yield "#   check_s: 60s                   # how long one stage of such a check may take"


def _entry(entry: ChainEntry) -> Iterator[str]:
    policy = BUILT_IN[entry.policy]
    yield from _comment(policy.doc, 2)
    if policy.needs:
        yield from _comment(f"Needs: {', '.join(policy.needs)}.", 2)
    yield f"  - {entry.policy}:"
    if policy.needs:
        yield "      optional: true"
    if entry.faults:
        yield f"      faults: [{', '.join(entry.faults)}]"
    for key, option in described(policy.options).items():
        value = f"{key}: {shown(entry.options[key], option.kind)}"
        yield from _comment(option.doc.replace("`", ""), 6)
        yield f"      {'# ' if entry.options[key] == option.default else ''}{value}"


def shown(value: Any, kind: str) -> str:
    """A value as a policy file has it: seconds in the largest unit that fits, texts quoted only where YAML wants it.

    Args:
        value: an option's value.
        kind: the option's kind.
    """
    if kind == "duration":
        unit = next(((name, size) for name, size in _UNITS if value and value % size == 0), ("s", 1))
        return f"{value / unit[1]:.9f}".rstrip("0").rstrip(".") + unit[0]
    if kind == "texts":
        return f"[{', '.join(shown(text, 'text') for text in value)}]"
    if kind == "number":
        return f"{value:.15g}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n...\n").strip()
    return str(value)


def _comment(text: str, indent: int) -> list[str]:
    start = " " * indent + "# "
    return textwrap.wrap(text, COLUMNS, initial_indent=start, subsequent_indent=start)
