"""Writes the reference pages of ``docs/reference/`` from the code that runs.

    python docs/generate.py            write them
    python docs/generate.py --check    exit 1, with the difference, if the committed ones are stale

House rule: nothing is said here that the code does not say; a page that reads badly is repaired in a docstring.
"""

import argparse
import ast
import difflib
import inspect
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import api_examples
import extension_points
import msgspec
from drawing import job_flow, named, to_mermaid_grouped

from ftcore import timing, worker
from ftcore.cli import ctl_parser, options, torchrun_flags
from ftcore.engine.decide import ADVANCES
from ftcore.events import all_types
from ftcore.events.envelope import Event
from ftcore.events.registry import EventType
from ftcore.faults import extra, rule, taxonomy
from ftcore.faults.context import SETTINGS
from ftcore.faults.rules import RULES
from ftcore.faults.taxonomy import CLASSES, DETAILS, UNREADABLE, UNREADABLE_FILE, Remedy, Severity
from ftcore.policies.abilities import CARRIED_OUT, DECLARED_BY, OBSERVED, needs_text
from ftcore.policies.base import Ability
from ftcore.policies.chain import BUILT_IN
from ftcore.policies.file import config, environment, presets, rules, values
from ftcore.policies.file.schema import schema
from ftcore.policies.file.writing import shown
from ftcore.policies.options import Option, OptionRule, described
from ftcore.sim.cost import DEFAULTS as COSTS
from ftcore.sim.evidence import KINDS
from ftcore.sim.profiles import PROFILES
from ftcore.states import phases
from ftcore.states.drawing import MACHINES
from ftcore.states.job import JobPhase
from ftcore.states.phases import IncidentCondition, JobCondition
from ftcore.states.table import Machine
from ftcore.states.timers import TIMERS
from ftcore.timing import Timing

REFERENCE = Path(__file__).parent / "reference"
NOTE = "<!-- Written by docs/generate.py; change the code, then run it. -->\n\n"
FLOW = """\
The phases of a job, what moves it from one to another, and the timers of each. [The machine of a
job](machines/job.md) has every row; here, rows from many phases to one share an arrow, and timers of most phases are
in the table alone."""
STEPS = """\
After every fact the master tries these steps in this order, each in its phases. After a decision it begins again."""
HELP_COLUMNS = "100"
HELP_PYTHON = (3, 11)
"""The Python whose argparse lays out the page of the command line; others wrap it otherwise and leave it alone."""


def simulation_page() -> str:
    """Profiles, kinds of faults and costs of ``ftctl simulate``."""
    parts = [
        "# Simulation",
        "What `ftctl simulate` takes for granted. Marks: `v` read in the source or in a note that quotes it; `m` from "
        "memory of the paper, not checked again; `c` computed; `d` our own choice inside the sources' ranges.",
        "## Costs",
        "| figure | seconds | what |\n|---|---|---|\n"
        + "\n".join(f"| `{name}` | {figure.seconds:g} | {figure.doc} |" for name, figure in COSTS.items()),
        "## Kinds of faults",
        "| kind | shows as | what |\n|---|---|---|\n"
        + "\n".join(f"| `{name}` | {kind.shows} | {kind.doc} |" for name, kind in KINDS.items() if name[0] != "@"),
        "## Profiles",
    ]
    for known in PROFILES.values():
        parts.append(f"### {known.name}")
        costs = "".join(f"; `{name}` {value:g} s" for name, value in known.costs.items())
        parts.append(
            f"{known.source}. {known.gpus[0].upper()}{known.gpus[1:]}. {known.rate:.4g} failures per node and day "
            f"({known.rate_mark}). {known.another_node:.0%} of the faults need another machine "
            f"({known.another_node_mark}){costs}. The mix: {known.mix_mark}."
        )
        rows = (f"| {part.component} | `{part.kind}` | {part.count:g} | {part.mark} |" for part in known.mix)
        parts.append("| source's word | kind | weight | mark |\n|---|---|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Write or check every page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is stale")
    args = parser.parse_args()
    made = dict(pages())
    stale = 0
    for name, text in made.items():
        path = REFERENCE / name
        old = path.read_text() if path.exists() else ""
        if old == text:
            continue
        stale += 1
        if args.check:
            sys.stdout.writelines(
                difflib.unified_diff(old.splitlines(True), text.splitlines(True), str(path), f"{path} as it should be")
            )
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {path}")
    left = {str(path.relative_to(REFERENCE)) for path in (REFERENCE / "machines").glob("*.md")} - set(made)
    for name in sorted(left):
        stale += 1
        print(f"{name}: no machine has this page any more; remove it")
    return 1 if args.check and stale else 0


def pages() -> Iterator[tuple[str, str]]:
    """Every page: its name below ``docs/reference/``, its text."""
    for machine in MACHINES:
        yield f"machines/{machine.name}.md", NOTE + machine_page(machine)
    yield "job-flow.md", NOTE + job_flow_page()
    yield "events.md", NOTE + events_page()
    yield "policies.md", NOTE + policies_page()
    yield "policy.schema.json", json.dumps(schema(), indent=2) + "\n"
    yield "faults.md", NOTE + faults_page()
    if sys.version_info[:2] == HELP_PYTHON:
        yield "cli.md", NOTE + cli_page()
    yield "timing.md", NOTE + timing_page()
    yield "simulation.md", NOTE + simulation_page()
    yield "worker.md", NOTE + worker_page()
    yield "torchrun.md", NOTE + torchrun_page()
    yield "extension-points.md", NOTE + extension_points.page()
    yield "api/examples.md", NOTE + api_examples.page()


def machine_page(machine: Machine) -> str:
    """A machine: its module's words, its drawing, its rows."""
    module = inspect.getmodule(machine.states)
    theory = inspect.getdoc(module) or ""
    meanings = _docs_of_members(machine.states)
    lines = [f"# {machine.name.capitalize()}", "", machine.doc, "", _markdown(theory), "", "```mermaid"]
    lines += [to_mermaid_grouped(machine).rstrip(), "```", "", "## States", ""]
    lines += _table(("state", "meaning"), [(_state(machine, s), meanings.get(s.name, "")) for s in machine.states])
    lines += ["", "## What leads where", ""]
    lines += _table(
        ("in", "on", "to"),
        [
            (f"`{r.source}`", f"`{r.trigger}`", f"`{r.target}`" + (f" if {r.guard}" if r.guard else ""))
            for r in machine.rows
        ],
    )
    if machine.ignored:
        lines += ["", "## What is ignored, and why", ""]
        lines += _table(
            ("in", "on", "because"),
            [(", ".join(f"`{s}`" for s in e.sources), f"`{e.trigger}`", e.reason) for e in machine.ignored],
        )
    lines += ["", "Any other trigger of this machine is an anomaly: it is recorded and changes nothing."]
    return "\n".join(lines) + "\n"


def job_flow_page() -> str:
    """The flow of a job: its phases, what moves it on, its timers, and what holds where."""
    meanings = _docs_of_members(JobPhase)
    timers = {p: ", ".join(f"`{t.kind}`" for t in TIMERS if p in t.phases) for p in JobPhase}
    in_words = [(f"`{t.kind}`", inspect.getdoc(t) or "", named(t.phases, "`"), t.expiry) for t in TIMERS]
    steps = [(_without_sections(inspect.getdoc(step) or ""), named(where.phases, "`")) for step, where in ADVANCES]
    headers = ("condition", "in", "what it means")
    of_incident = [(f"`{c.name}`", ", ".join(f"`{p}`" for p in c.phases), c.doc) for c in _declared(IncidentCondition)]
    lines = ["# Flow of a job", "", FLOW, "", "```mermaid", job_flow().rstrip(), "```", "", "## Phases", ""]
    lines += _table(("phase", "meaning", "timers"), [(f"`{p}`", meanings[p.name], timers[p]) for p in JobPhase])
    lines += ["", "## Timers", "", "In `stuck` timers run on; an expiry is decided about once an operator resumes.", ""]
    lines += _table(("timer", "meaning", "runs in", "on expiry"), in_words)
    lines += ["", "## What the master moves on", "", STEPS, ""]
    lines += _table(("step", "in"), steps)
    lines += ["", "## What holds in which phase", "", "Of a job:", ""]
    lines += _table(headers, [(f"`{c.name}`", named(c.phases, "`"), c.doc) for c in _declared(JobCondition)])
    return "\n".join([*lines, "", "Of an incident:", "", *_table(headers, of_incident)]) + "\n"


def _declared(kind: type[Any]) -> list[Any]:
    """The conditions of a kind, in the order of their module."""
    return [condition for condition in vars(phases).values() if isinstance(condition, kind)]


def _state(machine: Machine, state: Any) -> str:
    return f"`{state}`" + (" (first)" if state is machine.initial else " (end)" if state in machine.finals else "")


def events_page() -> str:
    """Every event type with its fields, by the noun it begins with."""
    lines = ["# Events", "", "The events of a job's event log. Every event has this envelope:", ""]
    lines += _fields_table(Event)
    lines += [
        "",
        "Types, by noun. A *fact* reports what happened; a *decision* is the master's conclusion from a fact.",
    ]
    for event_type in all_types():
        lines += ["", *_event(event_type)]
    return "\n".join(lines) + "\n"


def _event(event_type: EventType) -> Iterator[str]:
    notes = [str(event_type.kind), f"version {event_type.version}"]
    if event_type.ignorable:
        notes.append("ignorable")
    summary = _markdown(_without_sections(inspect.getdoc(event_type.payload) or ""))
    yield from (f"## `{event_type.name}`", "", f"*{', '.join(notes)}*. {summary}", "")
    yield from _fields_table(event_type.payload)


def _fields_table(payload: type[Any]) -> list[str]:
    told = _arguments(inspect.getdoc(payload) or "")
    hints = inspect.get_annotations(payload)
    rows = []
    for name, hint in hints.items():
        rows.append((f"`{name}`", f"`{_type_name(hint)}`", _markdown(told.get(name, ""))))
    return _table(("field", "type", "meaning"), rows)


def _type_name(hint: Any) -> str:
    text = (
        hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else str(hint)
    )
    short = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text).replace("|", "or")
    return re.sub(r"^Optional\[(.*)\]$", r"\1 or None", short)


def _reported_by(ability: Ability) -> str:
    """Where a job gets an ability from, if not from its platform, its agents or `job: replicas`."""
    if ability in OBSERVED:
        return "the running script reports it"
    if ability in config.SAID_BY_SCRIPT:
        return "`job: abilities`" + ("" if ability in CARRIED_OUT else "; not supported yet")
    return ""


def policies_page() -> str:
    """The policy file, the presets, and every policy with its options."""
    lines = ["# Policies", "", "A policy file (`ftrun --policy FILE`):", "", *_policy_file(), ""]
    lines += ["[How to choose policies](../how-to/choose-policies.md) begins at the other end, with what a job needs."]
    lines += ["Editors check such a file with [its JSON Schema](policy.schema.json) (`ftctl policy schema`).", ""]
    lines += ["## The file", ""]
    lines += _table(("key", "meaning"), [(f"`{key}`", meaning) for key, meaning in config.MEANINGS.items()])
    lines += ["", "Kinds of values:", ""]
    lines += _table(("kind", "accepted value"), [(f"`{kind}`", text) for kind, (_, text) in values.KINDS.items()])
    lines += ["", "Settings that contradict each other are refused:", ""]
    lines += [f"- {_rule(rule)}" for rule in rules.SHARED]
    lines += [f"- `{name}`: {_rule(rule)}" for name, each in BUILT_IN.items() for rule in rules.own_rules(each.options)]
    lines += ["", "## Presets", ""]
    chains = {name: " -> ".join(f"`{e.policy}`" for e in config.preset(name).chain) for name in presets.names()}
    lines += _table(
        ("preset", "meaning", "chain"), [(f"`{name}`", presets.doc(name), chain) for name, chain in chains.items()]
    )
    lines += ["", f"The chain of a job without a policy file is that of `{presets.DEFAULT}`.", "", "## Abilities", ""]
    lines += [
        "A policy needs the abilities named with it; without them it is skipped, or refused if it is required.",
        "",
    ]
    lines += _table(
        ("ability", "declared by", "from"),
        [(f"`{ability}`", who, _reported_by(ability)) for ability, who in DECLARED_BY.items()],
    )
    lines += ["", "## `FTCORE_POLICIES`", "", *_markdown(inspect.getdoc(environment) or "").splitlines()[2:]]
    for name, policy in BUILT_IN.items():
        lines += [
            "",
            f"## `{name}`",
            "",
            policy.doc,
            "",
            *(f"- {text}" for text in map(_markdown, policy.conditions)),
            "",
        ]
        lines += [f"Asked about: {', '.join(policy.kinds)}."]
        if policy.needs:
            lines += [f"Needs: {needs_text(policy.needs)}."]
        options = described(policy.options).items()
        rows = [(f"`{key}`", option.kind, _default(option), _markdown(option.doc)) for key, option in options]
        lines += ["", *_table(("option", "kind", "default", "meaning"), rows)]
    return "\n".join(lines) + "\n"


def _rule(rule: OptionRule) -> str:
    """A rule without the values that it would name, and the options that the file must set for it to apply."""
    text = re.sub(r" ?\(\{\w+\}(?: s)?\)|\{\w+\} s ", "", rule.text)
    return text + (f" (if the file sets {' or '.join(f'`{each}`' for each in rule.given)})" if rule.given else "")


def _policy_file() -> list[str]:
    doc = inspect.getdoc(config) or ""
    block = [line[4:] for line in doc.splitlines() if line.startswith("    ")]
    return ["```yaml", *block, "```"]


def _default(option: Option) -> str:
    return f"`{shown(option.default, option.kind)}`"


def _fault_settings() -> list[str]:
    return _table(
        ("class", "detail", "settings"),
        [
            (f"`{cls}`", f"`{detail}`" if detail else "all others" if len(named) > 1 else "all", text)
            for cls, named in taxonomy.SETTINGS.items()
            for detail, text in named.items()
        ],
    )


def faults_page() -> str:
    """The taxonomy and the rules of classification."""
    lines = ["# Faults", "", "Classes of faults with their meaning, usual causes and usual action.", ""]
    details = [(": ".join(UNREADABLE_FILE) + " before any step", UNREADABLE)]
    details += [(": ".join(detail), facts) for detail, facts in DETAILS.items()]
    lines += _table(
        ("class", "meaning", "usual causes", "at fault", "recurs after a restart", "severity", "usual action"),
        [
            (
                f"`{cls}`",
                facts.meaning,
                facts.causes,
                facts.at_fault,
                "yes" if facts.repeats else "no",
                str(facts.severity),
                f"`{facts.action}`",
            )
            for cls, facts in [*CLASSES.items(), *details]
        ],
    )
    lines += ["", "## Advice", ""]
    lines += _table(
        ("class", "advice"),
        [(f"`{cls}`", facts.advice) for cls, facts in [*CLASSES.items(), *details]],
    )
    lines += ["", "## Settings", "", "Settings that may help, by class and detail.", "", *_fault_settings()]
    for title, enumeration in (("Actions", Remedy), ("Severities", Severity)):
        meanings = _docs_of_members(enumeration)
        lines += ["", f"## {title}", ""]
        lines += _table(("name", "meaning"), [(f"`{member}`", meanings[member.name]) for member in enumeration])
    lines += ["", "## Custom rules", "", _markdown(inspect.getdoc(extra) or "").replace("YAML::", "YAML:"), ""]
    lines += ["## Rules", "", _markdown(inspect.getdoc(rule) or ""), ""]
    lines += _table(
        ("rule", "class", "role", "weight", "usual action", "reason", "example"),
        [
            (
                f"`{r.name}`",
                f"`{r.cls}`" + (f": {r.detail}" if r.detail else ""),
                r.role,
                str(r.weight),
                f"`{r.action or CLASSES[r.cls].action}`" if r.weight else "",
                r.reason,
                f"`{r.example.strip().replace('`', chr(39))}`",
            )
            for r in RULES
        ],
    )
    lines += ["", "## Places", "", "Exceptions that no rule explains are classified by where they were raised.", ""]
    lines += _table(
        ("place", "class", "role", "weight", "usual action", "reason", "example"),
        [
            (
                f"`{s.name}`",
                f"`{s.cls}`" + (f": {s.detail}" if s.detail else ""),
                s.role,
                str(s.weight),
                f"`{s.action or CLASSES[s.cls].action}`",
                s.reason,
                f"`{s.example[3]}` in `{s.example[1]}`",
            )
            for s in SETTINGS
        ],
    )
    return "\n".join(lines) + "\n"


def cli_page() -> str:
    """The help of every command."""
    lines = ["# Command line", "", "## ftrun", "", *_help(options.build_parser())]
    parser = ctl_parser.build_parser("VERSION")
    lines += ["", "## ftctl", "", *_help(parser)]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                lines += ["", f"### ftctl {name}", "", *_help(command)]
                for inner in command._actions:
                    if isinstance(inner, argparse._SubParsersAction):
                        for below, deeper in inner.choices.items():
                            lines += ["", f"#### ftctl {name} {below}", "", *_help(deeper)]
    return "\n".join(lines) + "\n"


def _help(parser: argparse.ArgumentParser) -> list[str]:
    return ["```text", parser.format_help().rstrip(), "```"]


def timing_page() -> str:
    """The time constants with their defaults."""
    doc = inspect.getdoc(timing) or ""
    meanings = dict(re.findall(r"^\| ``(\w+)`` \| (.*) \|$", doc, re.MULTILINE))
    lines = ["# Time constants", "", "Defaults of every job, in seconds.", ""]
    lines += _table(
        ("constant", "default", "meaning"),
        [(f"`{field.name}`", f"{field.default:g}", meanings[field.name]) for field in msgspec.structs.fields(Timing)],
    )
    source = textwrap.dedent(inspect.getsource(Timing.check))
    rules = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    lines += ["", "What must hold between them:", ""]
    lines += [f"- `{rule}`" for rule in rules if isinstance(rule, str) and "<" in rule and "\n" not in rule]
    return "\n".join(lines) + "\n"


def worker_page() -> str:
    """What scripts may call."""
    doc = inspect.getdoc(worker) or ""
    summary, _, rest = doc.partition("\n\n")
    parts = ["# ftcore.worker", _markdown(summary), _markdown(rest)]
    for name in worker.__all__:
        function = getattr(worker, name)
        text = inspect.getdoc(function) or ""
        raises = re.search(r"^Raises:\n((?:[ ]+.*\n?)+)", text, re.MULTILINE)
        is_error = inspect.isclass(function) and issubclass(function, Exception)
        signature = "" if is_error else str(inspect.signature(function)).removesuffix(" -> None")
        parts += [f"## {name}", f"`{name}{signature}`", _markdown(_without_sections(text))]
        parts.append("\n".join(_table(("argument", "meaning"), _rows(_arguments(text)))))
        if raises is not None:
            parts.append(f"Raises {_markdown(' '.join(raises[1].split()))}")
    return "\n\n".join(parts) + "\n"


VARIABLES = {
    "PYTHON_EXEC": "the interpreter of workers that are run by exec",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "default of `--shutdown-timeout`",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "template of the prefix of teed lines",
}

PLUGIN = "torchrun reads its own flags, and they have their usual effect. These differences come from the rendezvous:"

PLUGIN_DIFFERS = {
    "`--max-restarts`": "a fault of the script that repeats at the same place ends the job earlier, after `same_fault` "
    "times (option of `process_restart` in the policy file)",
    "`--rdzv-conf`": "has ftcore's keys; keys of other backends, as `is_host`, are refused with the reason",
    "exit code": "a torchrun that waits for a world when the job fails ends with the job's exit code and one message",
}
"""Deliberate differences of the plugin."""


def torchrun_page() -> str:
    """torchrun's flags and what becomes of them."""
    meanings = _docs_of_members(torchrun_flags.Treatment)
    lines = ["# torchrun's flags", "", "What `ftrun` does with each flag of torchrun (torch 2.13)."]
    lines += ["Both spellings work (`--nproc-per-node`, `--nproc_per_node`). Shortened flags are refused.", ""]
    lines += _table(("treatment", "meaning"), [(str(each), meanings[each.name]) for each in torchrun_flags.Treatment])
    rows = []
    for name, flag in torchrun_flags.FLAGS.items():
        variable = f"`PET_{name.upper()}`" if flag.variable else ""
        rows.append((f"`--{name.replace('_', '-')}`", variable, str(flag.treatment), flag.text))
    lines += ["", *_table(("flag", "variable", "treatment", "what differs, or why"), rows)]
    lines += ["", "## Variables of torchrun without a flag", ""]
    lines += _table(("variable", "meaning"), [(f"`{name}`", text) for name, text in VARIABLES.items()])
    lines += ["", "## `torchrun --rdzv-backend ftcore`", "", PLUGIN, ""]
    lines += _table(("what", "what differs"), list(PLUGIN_DIFFERS.items()))
    return "\n".join(lines) + "\n"


def _rows(arguments: dict[str, str]) -> list[tuple[str, str]]:
    return [(f"`{name}`", _markdown(text)) for name, text in arguments.items()]


def _docs_of_members(enumeration: type[Any]) -> dict[str, str]:
    """The string below each member of an enumeration."""
    [found] = ast.parse(textwrap.dedent(inspect.getsource(enumeration))).body
    assert isinstance(found, ast.ClassDef)
    docs: dict[str, str] = {}
    for first, second in zip(found.body, found.body[1:], strict=False):
        if isinstance(first, ast.Assign) and isinstance(second, ast.Expr) and isinstance(second.value, ast.Constant):
            [target] = first.targets
            assert isinstance(target, ast.Name)
            docs[target.id] = str(second.value.value)
    return docs


def _without_sections(doc: str) -> str:
    return re.split(r"\n\s*\n(?:Args|Returns|Raises|Yields):", doc)[0].strip()


def _arguments(doc: str) -> dict[str, str]:
    """The ``Args`` section of a docstring, by name; several names may share a line."""
    match = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)+)", doc, re.MULTILINE)
    found: dict[str, str] = {}
    if match is not None:
        entries = re.split(r"\n(?=\w[\w, ]*:)", textwrap.dedent(match[1]).strip())
        for entry in entries:
            names, _, text = entry.partition(":")
            for name in names.split(","):
                found[name.strip()] = " ".join(text.split())
    return found


def _markdown(text: str) -> str:
    return text.replace("``", "`")


def _table(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    def line(cells: tuple[str, ...]) -> str:
        return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"

    return [line(headers), f"|{'---|' * len(headers)}", *map(line, rows)] if rows else ["No fields."]


if __name__ == "__main__":
    os.environ["COLUMNS"] = HELP_COLUMNS  # argparse wraps at the terminal's width
    for variable in [name for name in os.environ if name.startswith(("FTCORE_", "PET_"))]:
        del os.environ[variable]  # defaults from the surroundings are no part of the reference
    sys.exit(main())
