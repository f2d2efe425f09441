"""The page of extension points: entry point groups of ftcore, and a package with one entry point of each."""

from pathlib import Path

import attrs

from ftcore.cli import ctl_installed, launcher_flags
from ftcore.logs import formats
from ftcore.platforms import adapters
from ftcore.policies import external
from ftcore.runtime import observers
from ftcore.runtime.checks import protocol

PACKAGE = Path(__file__).parents[1] / "examples" / "extensions"
INTRO = """\
Installed packages extend ftcore by entry points. No setup is needed beyond the installation: ftcore reads the names
from the metadata of the packages, and imports an object only when it is used. Install a package in the same version
on every node."""
RULES = """\
- A package imports only [public names](api/README.md) of ftcore.
- If two packages offer the same policy, a policy file that names it is refused. Of platforms, checks and commands,
  ftcore's own win.
- A message about an object that cannot be used is one line. It names the entry point, the package with its version,
  and the error.
- ftcore refuses a broken extension before anything starts. Once a job runs, no extension stops it: a policy that fails
  counts as a pass, a check that fails as unavailable, a platform that fails as one without machines."""


@attrs.frozen
class ExtensionPoint:
    """An entry point group.

    Args:
        group: the group.
        name: the meaning of the entry point's name.
        kind: what the object is.
        loaded: when it is loaded, and where.
        broken: what happens if it cannot be used.
        module: module of the example.
        guide: link to the how-to page, below ``docs``.
    """

    group: str
    name: str
    kind: str
    loaded: str
    broken: str
    module: str
    guide: str


POINTS = (
    ExtensionPoint(
        external.GROUP,
        "name of the policy",
        "a class, or an object, with the attributes of `ftcore.policies.base.Policy`",
        "when a policy file names it, and at each question; in a process of its own",
        "`ftrun` and `ftctl policy check` refuse the policy file; in a running job `policy.faulted` is "
        "recorded, and the next policy is asked",
        "policy",
        "how-to/write-your-own-policy.md",
    ),
    ExtensionPoint(
        external.RULES_GROUP,
        "any",
        "a list of rules as in a policy file under `faults: rules:`, or a function that returns it",
        "when `ftrun` starts; in a process of its own. The log records the rules",
        "`ftrun` refuses to start; a running job has its rules in the log",
        "rules",
        "how-to/write-your-own-policy.md",
    ),
    ExtensionPoint(
        protocol.GROUP,
        "name of the check",
        "a function: gets `context` (`node`, `devices`, `log_dir`, `address`), returns a mapping with "
        "`verdict`, and optionally `detail`, `values`, `facts`; "
        "attribute `budget_s`: its time limit in seconds",
        "before a node trains; in a process of its own",
        "its verdict is `unavailable`, with the error; the node trains",
        "check",
        "how-to/check-nodes.md",
    ),
    ExtensionPoint(
        adapters.GROUP,
        "scheme of the URL",
        "an `ftcore.PlatformAdapter`",
        "when `--platform` has the scheme: by each `ftrun` to check the URL, by the master to open it",
        "`ftrun` refuses the URL; if a master cannot open it, training goes on, and no node is replaced",
        "platform",
        "how-to/write-a-platform.md",
    ),
    ExtensionPoint(
        observers.GROUP,
        "scheme of the URL",
        "an `ftcore.ObserverAdapter`",
        "when `--observe` has the scheme: by each `ftrun` to check the URL; it runs in a process of its own",
        "`ftrun` and `ftctl observe` refuse the URL; if the process ends later, the master starts it again after "
        "a pause",
        "observer",
        "reference/api/examples.md",
    ),
    ExtensionPoint(
        formats.GROUP,
        "name of the format",
        "an `ftcore.ExportFormat`",
        "when `ftctl export --format` names it",
        "the export is refused; all other formats work",
        "export",
        "how-to/query-events-with-duckdb.md",
    ),
    ExtensionPoint(
        launcher_flags.GROUP,
        "shown with the flags",
        "a function: gets the environment, returns a mapping of flags of `ftrun` without dashes, empty "
        "outside of its scheduler",
        "when `ftrun` starts without `--standalone` and `--local-nodes`",
        "`ftrun` refuses to start, because the flags of its node are unknown",
        "launcher",
        "how-to/write-a-platform.md",
    ),
    ExtensionPoint(
        ctl_installed.GROUP,
        "name of the command",
        "a module with `add_arguments(parser)` and the coroutine `run(args)`, which returns the exit code",
        "when the command is given",
        "the command is refused; all others work",
        "command",
        "how-to/write-a-platform.md",
    ),
)


def page() -> str:
    """The page."""
    lines = [
        "# Extension points",
        "",
        INTRO,
        "",
        "| group | name of the entry point | object | loaded |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| [`{each.group}`](#{_anchor(each.group)}) | {each.name} | {each.kind} | {each.loaded} |" for each in POINTS
    ]
    lines += ["", "Rules:", "", RULES, "", "## A package with one of each", ""]
    lines += ["The package is in `examples/extensions`; the tests install it and use all of it. `pyproject.toml`:", ""]
    lines += ["```toml", (PACKAGE / "pyproject.toml").read_text().rstrip(), "```"]
    for each in POINTS:
        code = (PACKAGE / "src/acme_extensions" / f"{each.module}.py").read_text().rstrip()
        lines += [
            "",
            f"## {each.group}",
            "",
            f"The object: {each.kind}.",
            "",
            f"If it cannot be used: {each.broken}.",
            "",
        ]
        lines += [
            f"More: [{each.guide}](../{each.guide}). The example, `{each.module}.py`:",
            "",
            "```python",
            code,
            "```",
        ]
    return "\n".join(lines) + "\n"


def _anchor(title: str) -> str:
    return title.replace(".", "")
