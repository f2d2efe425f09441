"""``ftctl policy``: write, check and explain policy files. Needs no store and no job."""

import argparse
import json
import textwrap
from collections.abc import Sequence
from typing import Any

import attrs

from ftcore.cli.ctl_output import columns, paint, print_json, wants_colour
from ftcore.cli.ctl_rehearsal import Met, rehearse
from ftcore.errors import UsageError
from ftcore.events.policy import ChainEntry, PolicyLoaded
from ftcore.faults.taxonomy import CLASSES, FaultClass
from ftcore.launch.plugins import policies_named_in
from ftcore.launch.policy_file import checked, named, read_policy, read_text
from ftcore.platforms import abilities_of
from ftcore.policies import presets
from ftcore.policies.abilities import DECLARED_BY, counted
from ftcore.policies.assumed import read_assumed, said_of
from ftcore.policies.base import Policy
from ftcore.policies.chain import BUILT_IN
from ftcore.policies.config import preset
from ftcore.policies.external import External
from ftcore.policies.feasible import missing, needs
from ftcore.policies.notes import notes
from ftcore.policies.options import described
from ftcore.policies.reach import asked, why_not
from ftcore.policies.schema import schema
from ftcore.policies.writing import commented, shown
from ftcore.policies.yaml_nodes import Problem, Problems, did_you_mean
from ftcore.wording import clean

EXPLAIN_COLUMNS = 80
"""Width of what ``explain`` prints: what is read like a page is not wider than one."""

OPTION_COLUMNS = 22
"""Room for an option with its value, before what it means."""


async def policy(args: argparse.Namespace) -> int:
    """Run one of the commands below ``ftctl policy``."""
    return {"init": _init, "check": _check, "explain": _explain, "schema": _schema}[args.action](args)


def _init(args: argparse.Namespace) -> int:
    print(commented(args.preset or presets.DEFAULT), end="")
    return 0


def _schema(args: argparse.Namespace) -> int:
    print(json.dumps(schema(), indent=2))
    return 0


def _check(args: argparse.Namespace) -> int:
    can, assumed = abilities_of(args.platform), _assumed(args)
    if args.format == "table":
        told = checked(read_text(args.file), named(args.file))
        if told.loaded is None:
            raise _all_of(told.problems, named(args.file))
        loaded = told.loaded
        if assumed:
            print(said_of(assumed))
        print(f"{named(args.file)}: {' -> '.join(entry.policy for entry in loaded.chain)}")
        for entry in loaded.chain:
            lack = missing(entry, loaded, can, assumed)
            if lack:
                what = "refused" if entry.required else "passed over"
                print(f"{entry.policy}: {what} unless there is {', '.join(map(_who, lack))}")
        for note in notes(loaded):
            print(f"note: {note}")
        return 0
    valid, problems = _checked(args.file)
    chain = [_entry_json(entry, valid, can, assumed) for entry in valid.chain] if valid is not None else []
    found = [{"line": problem.line or None, "message": problem.text} for problem in problems]
    remarks = notes(valid) if valid is not None else []
    head = {"assumed": assumed} if assumed else {}
    print_json({**head, "file": args.file, "ok": not found, "problems": found, "notes": remarks, "chain": chain})
    return 2 if found else 0


def _all_of(found: tuple[Problem, ...], source: str) -> UsageError:
    problems = Problems(source)
    for problem in found:
        problems.add(problem.line, problem.text)
    return problems.error(most=len(found))


def _checked(path: str) -> tuple[PolicyLoaded | None, tuple[Problem, ...]]:
    try:
        told = checked(read_text(path), named(path))
    except UsageError as error:
        return None, (Problem(line=0, text=str(error)),)
    return told.loaded, told.problems


def _load(path: str) -> PolicyLoaded:
    return read_policy(path)


def _explain(args: argparse.Namespace) -> int:
    if (args.file is None) == (args.preset is None):
        raise UsageError("expected either FILE or --preset NAME")
    loaded = preset(args.preset) if args.file is None else _load(args.file)
    classes = [str(cls) for cls in FaultClass]
    if args.fault not in classes:
        raise UsageError(f"no class of faults is called {args.fault!r}{did_you_mean(args.fault, classes)}")
    places, can, assumed = asked(loaded.chain, args.fault), abilities_of(args.platform), _assumed(args)
    able = counted((*loaded.declared.abilities, *can), assumed)
    met = rehearse(loaded, FaultClass(args.fault), able)
    if args.format == "json":
        facts = CLASSES[FaultClass(args.fault)]
        chain = [
            {
                **_entry_json(entry, loaded, can, assumed),
                "asked": place in places,
                "why_not": _why_not(entry, place, places, args.fault),
                "meets": [attrs.asdict(one) for one in met[place]],
            }
            for place, entry in enumerate(loaded.chain)
        ]
        head = {"assumed": assumed} if assumed else {}
        print_json({**head, "source": loaded.source, "fault": args.fault, "meaning": facts.meaning, "chain": chain})
        return 0
    _print_explained(loaded, places, args.fault, can, assumed, met)
    return 0


def _why_not(entry: ChainEntry, place: int, places: list[int], cls: str) -> str:
    if place in places:
        return ""
    return why_not(entry, cls) or "`stop` before it takes everything"


def _assumed(args: argparse.Namespace) -> tuple[str, ...]:
    return read_assumed(args.assume) if args.assume is not None else ()


def _entry_json(entry: ChainEntry, loaded: PolicyLoaded, can: Sequence[str], assumed: Sequence[str]) -> dict[str, Any]:
    known = _known(entry, loaded)
    return {
        "policy": entry.policy,
        "from": entry.external or "ftcore",
        "doc": known.doc,
        "faults": entry.faults,
        "required": entry.required,
        "needs": [str(ability) for ability in needs(entry)],
        "missing": [str(ability) for ability in missing(entry, loaded, can, assumed)],
        "conditions": known.conditions,
        "options": entry.options,
    }


def _print_explained(
    loaded: PolicyLoaded,
    places: list[int],
    cls: str,
    can: Sequence[str],
    assumed: Sequence[str],
    met: Sequence[Sequence[Met]],
) -> None:
    """Plain text, folded to the terminal's width: what is to be read from top to bottom is no table.

    Of every entry what it says of such a fault; conditions and options of those that take one.
    """
    colour, width = wants_colour(), min(columns() or EXPLAIN_COLUMNS, EXPLAIN_COLUMNS)

    def tell(text: str, style: str = "", indent: str = "", hang: str = "  ") -> None:
        lines = textwrap.wrap(
            clean(text), width, initial_indent=indent, subsequent_indent=indent + hang, break_on_hyphens=False
        )
        for line in lines:
            print(paint(line, style, colour))

    if assumed:
        tell(said_of(assumed), "warn")
    tell(f"{cls}: {CLASSES[FaultClass(cls)].meaning}", "strong")
    tell(f"{loaded.source}: asked in this order, until one takes it; the fault of a made-up job of 4 nodes", "quiet")
    for number, place in enumerate(places, start=1):
        entry = loaded.chain[place]
        known = _known(entry, loaded)
        print()
        tell(f"{number}. {entry.policy}: {known.doc}", "strong", hang="   ")
        if entry.external:
            tell(f"comes from {entry.external}; is asked in a process of its own", "quiet", "   ")
        lack = missing(entry, loaded, can, assumed)
        if lack:
            what = "refused at the start" if entry.required else "passed over"
            tell(f"{what} unless there is {', '.join(map(_who, lack))}", "warn", "   ")
        else:
            for one in met[place]:
                if one.verdict != "not asked":
                    verb = {"take": "takes it", "pass": "passes"}.get(one.verdict, one.verdict)
                    tell(f"{one.case}: {verb}: {one.reason}", "good" if one.verdict == "take" else "", "   ")
        if not any(one.verdict in ("take", "ask") for one in met[place]):
            continue
        for condition in known.conditions:
            tell(f"- {condition}", "", "   ")
        for key, option in (known.options if isinstance(known, External) else described(known.options)).items():
            set_to = f"{key}: {shown(entry.options[key], option.kind)}"
            style = "strong" if entry.options[key] != option.default else ""
            meaning = option.doc.replace("`", "")
            if len(set_to) < OPTION_COLUMNS:
                tell(f"{set_to:<{OPTION_COLUMNS}}{meaning}", style, "     ", " " * OPTION_COLUMNS)
            else:
                tell(set_to, style, "     ")
                tell(meaning, style, " " * (OPTION_COLUMNS + 5), "")
    left = [entry.policy for place, entry in enumerate(loaded.chain) if place not in places]
    if left:
        print()
        tell(f"not asked about {cls}: {', '.join(left)}", "quiet")


def _known(entry: ChainEntry, loaded: PolicyLoaded) -> Policy | External:
    return BUILT_IN.get(entry.policy) or policies_named_in(loaded.text)[entry.policy]


def _who(ability: Any) -> str:
    return f"{DECLARED_BY[ability]} (`{ability}`)"
