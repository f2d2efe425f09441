"""Write a preset as a policy file to edit: every entry with its options and their descriptions."""

import textwrap
from collections.abc import Iterator
from typing import Any

import yaml

from ftcore.events.policy import ChainEntry
from ftcore.policies.abilities import CARRIED_OUT, needs_text
from ftcore.policies.chain import BUILT_IN
from ftcore.policies.file import presets
from ftcore.policies.file.config import SAID_BY_SCRIPT, SCHEMA_VERSION, preset
from ftcore.policies.file.job_options import CHECKPOINTS
from ftcore.policies.options import described
from ftcore.states.health import MODES
from ftcore.wording import format_bytes

COLUMNS = 100
_UNITS = (("d", 86400), ("h", 3600), ("m", 60))


def commented(name: str) -> str:
    """A policy file equivalent to a preset, with a comment for each option.

    Options with their default value are commented out. Entries that need abilities are ``optional``, as in the preset.

    Args:
        name: one of ``presets.names()``.

    Raises:
        UsageError: unknown preset.
    """
    loaded = preset(name)
    lines = [*_comment(f"Made from the preset {name!r}. {presets.doc(name)}", 0), ""]
    lines += [
        "# Commented-out options show their defaults. To validate the file: ftctl policy check FILE",
        "",
    ]
    lines += [f"version: {SCHEMA_VERSION}", "", *_job(), "", "# Highest priority first.", "chain:"]
    for entry in loaded.chain:
        lines += [*_entry(entry), ""]
    return "\n".join(lines).rstrip() + "\n"


def _job() -> Iterator[str]:
    yield from _comment("Properties of the job that ftcore cannot detect:", 0)
    yield "# job:"
    yield "#   replicas: all                  # which ranks hold the same state: all, none or [[0, 4], [1, 5]], or"
    yield "#                                  # {data_parallel: 8, optimizer_shard: 4}"
    able = ", ".join(ability for ability in SAID_BY_SCRIPT if ability in CARRIED_OUT)
    yield f"#   abilities: [rollback]          # what the script can do: {able}"
    yield "#   checkpoint_every: 100          # steps"
    yield f"#   checkpoints:                   # that ftcore writes; also: {', '.join([*CHECKPOINTS][1:])}"
    yield f"#     kept: {CHECKPOINTS['kept'].default}"
    yield f"#   health: auto                   # when nodes check their devices and links: {', '.join(MODES)}"
    yield "#   check_s: 60s                   # timeout of one stage of a health check"


def _entry(entry: ChainEntry) -> Iterator[str]:
    policy = BUILT_IN[entry.policy]
    yield from _comment(policy.doc, 2)
    if policy.needs:
        yield from _comment(f"Needs: {needs_text(policy.needs)}.", 2)
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
    """Format a value for a policy file: durations in the largest unit that fits, texts quoted only if YAML requires it.

    Args:
        value: the value of an option.
        kind: the kind of the option.
    """
    if kind == "duration":
        unit = next(((name, size) for name, size in _UNITS if value and value % size == 0), ("s", 1))
        return f"{value / unit[1]:.9f}".rstrip("0").rstrip(".") + unit[0]
    if kind == "size":
        return format_bytes(value)
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
