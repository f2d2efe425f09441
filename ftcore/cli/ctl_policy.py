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
from ftcore.policies.abilities import DECLARED_BY, OBSERVED, SUBSTITUTES, usable_abilities
from ftcore.policies.assumed import assumption_note, read_assumed
from ftcore.policies.base import Ability, Policy
from ftcore.policies.chain import BUILT_IN
from ftcore.policies.external import External
from ftcore.policies.file import presets
from ftcore.policies.file.config import preset
from ftcore.policies.file.feasible import check_abilities, missing, needs
from ftcore.policies.file.notes import notes, repeat_notes
from ftcore.policies.file.reach import asked, why_not
from ftcore.policies.file.schema import schema
from ftcore.policies.file.writing import commented, shown
from ftcore.policies.file.yaml_nodes import Problem, Problems, did_you_mean
from ftcore.policies.options import described
from ftcore.wording import printable

EXPLAIN_COLUMNS = 80
"""Largest width of the text that ``explain`` prints."""

OPTION_COLUMNS = 22
"""Width of an option with its value, before its description."""


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
        result = checked(read_text(args.file), named(args.file))
        if result.loaded is None:
            raise _all_of(result.problems, named(args.file))
        loaded = result.loaded
        if assumed:
            print(assumption_note(assumed))
        print(f"{named(args.file)}: {' -> '.join(entry.policy for entry in loaded.chain)}")
        for entry in loaded.chain:
            lack = missing(entry, loaded, can, assumed)
            if lack and not entry.required:
                print(f"{entry.policy}: skipped without {', '.join(map(_ability, lack))}")
        for note in (*notes(loaded), *repeat_notes(loaded)):
            print(f"note: {note}")
        refused = _refused(loaded, args, assumed)
        if refused:
            raise UsageError(f"{named(args.file)}: " + "\n  ".join(refused))
        return 0
    valid, problems = _checked(args.file)
    chain = [_entry_json(entry, valid, can, assumed) for entry in valid.chain] if valid is not None else []
    found = [{"line": problem.line or None, "message": problem.text} for problem in problems]
    if valid is not None:
        found += [{"line": None, "message": line} for line in _refused(valid, args, assumed)]
    remarks = [*notes(valid), *repeat_notes(valid)] if valid is not None else []
    head = {"assumed": assumed} if assumed else {}
    print_json({**head, "file": args.file, "ok": not found, "problems": found, "notes": remarks, "chain": chain})
    return 2 if found else 0


def _refused(loaded: PolicyLoaded, args: argparse.Namespace, assumed: Sequence[str]) -> list[str]:
    """Why ``ftrun`` with this platform would refuse the file."""
    lines = check_abilities(loaded, abilities_of(args.platform), assumed=assumed)
    if lines and not args.platform:
        lines.append("checked for a job without a platform; give the one of ftrun with --platform URL")
    return lines


def _all_of(found: tuple[Problem, ...], source: str) -> UsageError:
    problems = Problems(source)
    for problem in found:
        problems.add(problem.line, problem.text)
    return problems.error(most=len(found))


def _checked(path: str) -> tuple[PolicyLoaded | None, tuple[Problem, ...]]:
    try:
        result = checked(read_text(path), named(path))
    except UsageError as error:
        return None, (Problem(line=0, text=str(error)),)
    return result.loaded, result.problems


def _explain(args: argparse.Namespace) -> int:
    if (args.file is None) == (args.preset is None):
        raise UsageError("expected either FILE or --preset NAME")
    loaded = preset(args.preset) if args.file is None else read_policy(args.file)
    classes = [str(cls) for cls in FaultClass]
    if args.fault not in classes:
        raise UsageError(f"--fault: found {args.fault!r}; expected a fault class{did_you_mean(args.fault, classes)}")
    places, can, assumed = asked(loaded.chain, args.fault), abilities_of(args.platform), _assumed(args)
    able = usable_abilities((*loaded.declared.abilities, *can), assumed)
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
    return why_not(entry, cls) or "an earlier `stop` takes every incident"


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
    """Print the answer of every entry to such a fault, and conditions and options of entries that take it.

    The output is text folded to the terminal's width.
    """
    colour, width = wants_colour(), min(columns() or EXPLAIN_COLUMNS, EXPLAIN_COLUMNS)

    def put(text: str, style: str = "", indent: str = "", hang: str = "  ") -> None:
        lines = textwrap.wrap(
            printable(text), width, initial_indent=indent, subsequent_indent=indent + hang, break_on_hyphens=False
        )
        for line in lines:
            print(paint(line, style, colour))

    if assumed:
        put(assumption_note(assumed), "warn")
    put(f"{cls}: {CLASSES[FaultClass(cls)].meaning}", "strong")
    put(f"{loaded.source}: asked in this order until one takes the incident; faults of a simulated job", "quiet")
    for number, place in enumerate(places, start=1):
        entry = loaded.chain[place]
        known = _known(entry, loaded)
        print()
        put(f"{number}. {entry.policy}: {known.doc}", "strong", hang="   ")
        if entry.external:
            put(f"from {entry.external}; runs in its own process", "quiet", "   ")
        lack = missing(entry, loaded, can, assumed)
        if lack:
            refused = entry.required and missing(entry, loaded, (*can, *OBSERVED), assumed)
            what = "refused at the start" if refused else "skipped"
            put(f"{what} without {', '.join(map(_ability, lack))}", "warn", "   ")
        else:
            for one in met[place]:
                if one.verdict != "not asked":
                    verb = {"take": "takes it", "pass": "passes"}.get(one.verdict, one.verdict)
                    put(f"{one.case}: {verb}: {one.reason}", "good" if one.verdict == "take" else "", "   ")
        if not any(one.verdict in ("take", "ask") for one in met[place]):
            continue
        for condition in known.conditions:
            put(f"- {condition}", "", "   ")
        for key, option in (known.options if isinstance(known, External) else described(known.options)).items():
            set_to = f"{key}: {shown(entry.options[key], option.kind)}"
            style = "strong" if entry.options[key] != option.default else ""
            meaning = option.doc.replace("`", "")
            if len(set_to) < OPTION_COLUMNS:
                put(f"{set_to:<{OPTION_COLUMNS}}{meaning}", style, "     ", " " * OPTION_COLUMNS)
            else:
                put(set_to, style, "     ")
                put(meaning, style, " " * (OPTION_COLUMNS + 5), "")
    left = [entry.policy for place, entry in enumerate(loaded.chain) if place not in places]
    if left:
        print()
        put(f"not asked about {cls}: {', '.join(left)}", "quiet")


def _known(entry: ChainEntry, loaded: PolicyLoaded) -> Policy | External:
    return BUILT_IN.get(entry.policy) or policies_named_in(loaded.text)[entry.policy]


def _ability(ability: Ability) -> str:
    sufficient = SUBSTITUTES.get(ability, ability)
    return f"{DECLARED_BY[sufficient]} (`{sufficient}`)"
