"""The arguments of ``ftctl``; docs/reference/cli.md is generated from them."""

import argparse
import difflib
import os
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from ftcore.cli.ctl_chronicle_parser import add_chronicle
from ftcore.cli.ctl_futures import add_futures
from ftcore.cli.ctl_import_parser import add_import
from ftcore.cli.ctl_one_command import OneCommand
from ftcore.cli.ctl_policy_parser import add_policy
from ftcore.cli.ctl_replay_parser import add_replay
from ftcore.cli.ctl_top_parser import add_top
from ftcore.cli.ctl_types import BOUND_HELP, bound, duration_over_0, positive, whole

_EXIT_CODES = """exit codes: 0 done; 1 verify found a mismatch, the log is damaged, a request was not carried out, or
standard output cannot be written; 2 wrong usage or input; 3 store or master unreachable; 4 no such job, node,
incident, event or log file; 130 interrupted"""

LOSS_LIMIT = 8.0
"""``faults.detectors.loss.LIMIT``, which is imported only by the command itself."""


class CtlParser(argparse.ArgumentParser):
    """A parser with one-line errors and without abbreviated options, which break when options are added."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs |= {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Print the error in one line; exit with code 2."""
        message = re.sub(r"^argument (?:-\w/)?(\S+): ", r"\1: ", message)
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = list(map(str, action.choices))
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of: {', '.join(choices)}"
        raise argparse.ArgumentError(action, f"found {value!r}; {hint}")


def build_parser(version: str, argv: Sequence[str] | None = None) -> CtlParser:
    """The parser of ``ftctl``.

    Args:
        version: what ``--version`` prints.
        argv: the arguments: if they name one of ftcore's own commands, the parser has this one alone; if they are
            ``--version``, none; else all, and those of installed packages. None: all of ftcore's own. For a shell
            completion the arguments are those of its line.
    """
    completes = "_ARGCOMPLETE" in os.environ
    if argv is not None and completes:
        argv = os.environ.get("COMP_LINE", "").split()[1:]
    name = None if argv is None else _command_in(argv)
    if argv is not None and name is not None and not completes:
        parser, commands = _main_parser(version)
        _add_all(OneCommand(commands, name))
        if name in commands.choices:
            return parser
    parser, commands = _main_parser(version)
    if argv is not None and list(argv) == ["--version"]:
        return parser
    _add_all(commands)
    if argv is not None and name not in commands.choices:
        from ftcore.cli.ctl_installed import add_installed

        add_installed(commands, argv)
    return parser


def _main_parser(version: str) -> tuple[CtlParser, Any]:
    """The parser without commands, and its subparsers."""
    parser = CtlParser(
        prog="ftctl",
        description="Show what happened in a job, what ftcore decided and why; send requests to a running job.",
        epilog=_EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"ftctl {version}")
    defaults = (os.environ.get(f"FTCORE_{name}") or None for name in ("STORE", "JOB", "ARCHIVE"))
    _add_common(parser, *defaults)
    return parser, parser.add_subparsers(dest="command", metavar="COMMAND", required=True)


def _add_all(commands: Any) -> None:
    _add_reading(commands)
    _add_incidents(commands)
    _add_checkpoints(commands)
    _add_observe(commands)
    _add_log_tools(commands)
    _add_spikes(commands)
    add_import(commands, _command)
    add_futures(commands, _command, _reading)
    add_policy(commands, _command)
    _add_commands(commands)
    add_chronicle(commands, _reading)
    _add_alert(commands)


def _command_in(argv: Sequence[str]) -> str | None:
    """The command that the arguments name; None if there is none, or the help or version of ``ftctl`` is asked for.

    Options before the command have one value each.
    """
    rest = iter(argv)
    for argument in rest:
        if not argument.startswith("-"):
            return argument
        if argument in ("-h", "--help", "--version"):
            return None
        if argument in ("--store", "--archive", "--job"):
            next(rest, None)
    return None


def _add_common(parser: argparse.ArgumentParser, store: Any, job: Any, archive: Any) -> None:
    parser.add_argument(
        "--store",
        metavar="URL",
        default=store,
        help="log store: sqlite:///DIR, etcd://HOST:PORT/PREFIX, file:///FILE.ftlog (default: $FTCORE_STORE, else the "
        "default store of ftrun)",
    )
    parser.add_argument(
        "--archive",
        metavar="DIR",
        default=archive,
        help="directory with archived older events (default: $FTCORE_ARCHIVE, else the directory recorded in the log)",
    )
    option = parser.add_argument(
        "--job", metavar="NAME", default=job, help="job name (default: $FTCORE_JOB, else the only job in the store)"
    )
    option.completer = _complete_jobs  # type: ignore[attr-defined]


def _command(commands: Any, name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    text = "examples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines())
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary, epilog=text)
    return parser


def _reading(commands: Any, name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    parser = _command(commands, name, summary, examples)
    _add_common(parser, *[argparse.SUPPRESS] * 3)
    parser.add_argument("--format", choices=("table", "json"), default="table", help="default: table")
    return parser


def _add_reading(commands: Any) -> None:
    _reading(commands, "jobs", "List the jobs in the store.", "ftctl jobs\nftctl jobs --format json | jq -r '.[].job'")
    status = _reading(
        commands,
        "status",
        "Show the current state of a job: phase, master, nodes, step, open incident.",
        "ftctl status\nftctl --job demo status --format json | jq .step\nftctl status --nodes",
    )
    status.description = (
        f"{status.description} The row `abilities` lists what platform, script and agents can do beyond a restart, "
        "such as `replace`: launch a node. A policy that needs another ability is skipped."
    )
    status.add_argument(
        "--nodes",
        action="store_true",
        help="show the nodes' last heartbeats, from the master: step, network counters, known log lines, devices",
    )
    add_top(commands, _reading)
    events = _reading(
        commands,
        "events",
        "Show the event log: every fact, and below it the decisions that it caused.",
        "ftctl events\nftctl events --type 'worker.*,incident.*' --since 15m\n"
        "ftctl events --incident i2 --format json | jq .data\nftctl events --follow",
    )
    events.add_argument(
        "--since",
        type=bound,
        metavar="SEQ|TIME|AGO",
        help=f"first event to show: {BOUND_HELP}; default: the first of the log. If the archive is unavailable, the "
        "events in the store are shown, with a message and exit code 4",
    )
    events.add_argument("--until", type=bound, metavar="SEQ|TIME|AGO", help="last event to show, as --since")
    events.add_argument(
        "--type", metavar="GLOB", help="only these event types, as worker.* or node.lost, separated by commas"
    )
    events.add_argument("--node", metavar="NODE", help="only events that come from this node or name it")
    events.add_argument("--incident", metavar="ID", help="only decisions of this incident, and the facts before them")
    events.add_argument("--follow", action="store_true", help="wait for new events until interrupted")


def _add_incidents(commands: Any) -> None:
    _reading(
        commands,
        "incidents",
        "List the incidents: what interrupted training, which policy resolved it, how long it took.",
        "ftctl incidents\nftctl incidents --since 9h\n"
        "ftctl incidents --format json | jq '.[] | {id, class, total: .phases.total}'",
    ).add_argument(
        "--since", type=bound, metavar="SEQ|TIME|AGO", help=f"only incidents that were open then or later: {BOUND_HELP}"
    )
    explain = _reading(
        commands,
        "explain",
        "Explain an incident on one page: why training stopped, what was done, what it cost, whether it will come "
        "back. Below: each policy's verdict and reason, durations of phases, failed workers, events and their causes.",
        "ftctl explain\nftctl explain i2\nftctl explain i2 --format json | jq .failures[0]",
    )
    explain.add_argument(
        "--presets",
        action="store_true",
        help="estimate what other presets would have cost, also in a log of more than 20,000 events",
    )
    explain.add_argument("incident", nargs="?", metavar="INCIDENT", help="incident id, as i2; default: the newest")
    goodput = _reading(
        commands,
        "goodput",
        "Show what the time of a job was used for: training, checkpoints, and each phase of recovery, by cause, by "
        "incident and by node. The uses add up to the wall time.",
        "ftctl goodput\nftctl goodput --price 2.50\nftctl goodput --format json | jq .seconds_by_use",
    )
    goodput.add_argument("--price", type=positive, metavar="MONEY", help="money per GPU-hour; a worker counts as a GPU")
    goodput.add_argument("--nodes", action="store_true", help="list every node")
    _reading(
        commands,
        "samples",
        "Show which samples the job trained on: each epoch, what was left out and why, and whether any were lost or "
        "used twice (exit code 1). For scripts that load data with ftcore.data.",
        "ftctl samples\nftctl samples --format json | jq .epochs",
    )
    report = _command(
        commands,
        "report",
        "Write the whole job as one HTML file that a browser opens without network: why it stopped, what was done, "
        "what it cost; timeline, incidents, curves, goodput, checkpoints, policy, events.",
        "ftctl report -o demo.html\nftctl report --price 2.50 -o demo.html\n"
        "ftctl --store file:demo.ftlog report -o demo.html",
    )
    _add_common(report, *[argparse.SUPPRESS] * 3)
    report.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="output file, usually NAME.html; an existing report is overwritten, any other file is refused; - for "
        "standard output",
    )
    report.add_argument("--price", type=positive, metavar="MONEY", help="money per GPU-hour; a worker counts as a GPU")


def _add_checkpoints(commands: Any) -> None:
    checkpoints = _reading(
        commands,
        "checkpoints",
        "List the checkpoints of a job, in memory and on storage: step, size, age, state and shards. Or verify them: "
        "every byte is read and compared with its checksum. Or convert: export the model of a checkpoint as "
        "safetensors files, as transformers opens them, or import a checkpoint of torch (a file of torch.save, a "
        "directory of torch.distributed.checkpoint) that a job then resumes from. Nothing that exists is overwritten.",
        "ftctl checkpoints --job demo\n"
        "ftctl checkpoints --path /data/checkpoints\n"
        "ftctl checkpoints --path s3://bucket/demo --format json | jq '.[] | select(.complete) | .step'\n"
        "ftctl checkpoints verify /data/checkpoints/step-000000012-r3\n"
        "ftctl checkpoints --path /data/checkpoints verify\n"
        "ftctl checkpoints convert /data/checkpoints /models/demo\n"
        "ftctl checkpoints convert s3://bucket/demo/step-000000012-r3 /models/demo-12 --model ema\n"
        "ftctl checkpoints convert last.pt /data/checkpoints --step 1200 --job demo",
    )
    checkpoints.add_argument(
        "action",
        nargs="?",
        choices=("list", "verify", "convert"),
        default="list",
        metavar="list|verify|convert",
        help="default: list",
    )
    checkpoints.add_argument(
        "directory",
        nargs="?",
        metavar="PATH",
        help="verify: a checkpoint, or a directory of checkpoints; default: all checkpoints of --path that are "
        "not unfinished. Exit code 1 if one cannot be loaded. convert: the source: a checkpoint, a directory of "
        "checkpoints, of which the newest is taken, or a checkpoint of torch",
    )
    checkpoints.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="convert: the directory to make for a model, or the directory or URL of checkpoints for an import. --job "
        "names the job that is to load it; default: any",
    )
    checkpoints.add_argument(
        "--path", metavar="URL", help="directory or URL with the checkpoints; default: that of the job"
    )
    checkpoints.add_argument(
        "--model", metavar="NAME", help="convert: the name under which the script registered the model; default: model"
    )
    checkpoints.add_argument(
        "--file-size", type=positive, metavar="GB", help="convert: largest size of a file of the model; default: 5"
    )
    checkpoints.add_argument(
        "--step",
        type=whole,
        metavar="N",
        help="convert: last completed step of an import; default: the number `step` in it, else 0",
    )


def _add_observe(commands: Any) -> None:
    observe = _command(
        commands,
        "observe",
        "Run an observer of an installed package, such as an endpoint for Prometheus, beside a job without "
        "`ftrun --observe`, or over the log of a finished one.",
        "ftctl --job demo observe prometheus://127.0.0.1:9400\nftctl --store file:demo.ftlog observe prometheus:",
    )
    _add_common(observe, *[argparse.SUPPRESS] * 3)
    observe.add_argument("url", metavar="URL", help="URL of the observer, as of `ftrun --observe`")
    observe.add_argument("--once", action="store_true", help="end at the end of the log, as it is now")
    observe.add_argument("--log-level", default="warning", help="debug, info, warning or error; default: warning")
    observe.add_argument("--node", default="", help=argparse.SUPPRESS)
    observe.add_argument("--until-parent", type=int, default=0, help=argparse.SUPPRESS)


def _add_log_tools(commands: Any) -> None:
    add_replay(commands, _reading)
    export = _command(
        commands,
        "export",
        "Write the log to a file that ftctl can read on any machine, or in a format of an installed package.",
        "ftctl export -o demo.ftlog\nftctl --store file:demo.ftlog explain\nftctl export -o - | gzip > demo.ftlog.gz\n"
        "ftctl export --format parquet -o demo.parquet",
    )
    _add_common(export, *[argparse.SUPPRESS] * 3)
    export.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="output file, usually NAME.ftlog; an existing archive is overwritten, any other file is refused; - for "
        "standard output",
    )
    export.add_argument(
        "--format",
        default="ftlog",
        metavar="NAME",
        help="ftlog, which ftctl reads, or a format of an installed package; default: ftlog",
    )
    _reading(
        commands,
        "salvage",
        "Make a new log from the readable events of a damaged SQLite log; the damaged file is kept.",
        "ftctl --job demo salvage\nftctl --job demo salvage --format json | jq .lost_count",
    )
    machines = _command(
        commands,
        "machines",
        "Print the state machines of ftcore: states, triggers, transitions.",
        "ftctl machines\nftctl machines node --format mermaid\nftctl machines job --format dot | dot -Tsvg > job.svg",
    )
    machines.add_argument("machine", nargs="?", metavar="MACHINE", help="name of a machine, as job; default: all")
    machines.add_argument("--format", choices=("table", "mermaid", "dot"), default="table", help="default: table")
    completion = _command(
        commands,
        "completion",
        "Print a completion script for a shell.",
        'eval "$(ftctl completion bash)"\nftctl completion fish > ~/.config/fish/completions/ftctl.fish',
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))


def _add_spikes(commands: Any) -> None:
    classify = _command(
        commands,
        "classify",
        "Classify the text of any log: fault class, rank that failed first, advice.",
        "ftctl classify worker.log\ndmesg | ftctl classify -\nftctl classify --jsonl excerpts.jsonl | jq .class",
    )
    classify.add_argument("file", metavar="FILE", help="text file, or - for standard input")
    classify.add_argument("--jsonl", action="store_true", help="the file has one JSON object per line; read key text")
    classify.add_argument("--policy", metavar="FILE", help="policy file with additional rules (faults: rules)")
    classify.add_argument("--format", choices=("table", "json"), default="table", help="default: table")
    spikes = _command(
        commands,
        "spikes",
        "Show the steps that the detectors flag in a curve of loss and gradient norm, or suggest thresholds.",
        "ftctl spikes run.tsv\nftctl spikes run.tsv --format json | jq .steps\nftctl spikes normal.tsv --suggest\n"
        "ftctl spikes run.tsv --limit 9.5 --norm-threshold 3",
    )
    spikes.add_argument(
        "file",
        metavar="FILE",
        help="table with a header and the columns step, loss and optionally grad_norm, separated by tabs or commas; - "
        "for standard input",
    )
    spikes.add_argument(
        "--suggest", action="store_true", help="suggest thresholds that do not flag this run, assumed to be normal"
    )
    spikes.add_argument(
        "--limit",
        type=positive,
        default=LOSS_LIMIT,
        metavar="SCORE",
        help="flag a loss this many robust deviations above the median of the last 40; default: %(default)g",
    )
    spikes.add_argument(
        "--norm-threshold",
        type=positive,
        metavar="NORM",
        help="also flag every gradient norm of at least NORM; default: off",
    )
    spikes.add_argument("--format", choices=("table", "json"), default="table", help="default: table")


def _add_commands(commands: Any) -> None:
    for name, (summary, examples) in _REQUESTS.items():
        parser = _reading(commands, name, summary, examples)
        if name in ("drain", "evict", "admit"):
            parser.add_argument("node", metavar="NODE", help="node name, as shown by ftctl status")
        parser.add_argument("--why", metavar="TEXT", default="", help="reason, recorded in the log")
        parser.add_argument(
            "--no-wait", action="store_true", help="exit once the request is recorded; default: wait for its outcome"
        )
        parser.add_argument(
            "--timeout", type=duration_over_0, default=120.0, metavar="TIME", help="longest wait; default: 2m"
        )


_REQUESTS = {
    "pause": (
        "Pause the training: all ranks stop after the same step and keep their processes. A job that is forming or "
        "recovering is held instead: no further recovery begins until `ftctl resume`.",
        "ftctl pause --why 'network maintenance'",
    ),
    "resume": (
        "Continue a paused, held or stuck job. The fact that a stuck job could not process stays set aside.",
        "ftctl resume --job demo",
    ),
    "drain": (
        "Take a node out of the job; its machine may be used again.",
        "ftctl drain node3 --why 'disk to be replaced'",
    ),
    "evict": (
        "Take a node out of the job and quarantine it: it may not join again.",
        "ftctl evict node3 --why 'slow for an unknown reason'",
    ),
    "admit": (
        "Let a quarantined node join again; its earlier faults no longer count. --local-nodes starts a drained node.",
        "ftctl admit node3 --why 'its memory was replaced'",
    ),
    "checkpoint": (
        "Save a checkpoint now: all ranks save after the same step and train on. The script must call "
        "`ftcore.worker.boundary` and set a function with `ftcore.worker.on_save`.",
        "ftctl checkpoint --no-wait",
    ),
    "stop": (
        "Stop a running job: its workers get SIGTERM, and SIGKILL after the grace period of the policy `stop`; ftrun "
        "exits with 5, and the job can be started again. A script that does not save on SIGTERM loses the steps since "
        "its last checkpoint: `ftctl checkpoint` before saves them.",
        "ftctl checkpoint && ftctl stop --why 'priority job'\nftctl stop --job demo --why 'maintenance at ten'",
    ),
}


def _add_alert(commands: Any) -> None:
    alert = _command(
        commands,
        "alert",
        "Send a test message to targets of the policy `alert`.",
        "ftctl alert env:CHAT_URL\nftctl alert file:/etc/ftcore/alerts --text 'hello from the cluster'",
    )
    alert.add_argument(
        "target", nargs="+", metavar="TARGET", help="env:NAME, file:/PATH or a URL, as in `to:` of the policy file"
    )
    alert.add_argument("--text", default="A test message.", help="text of the message; default: %(default)s")
    alert.add_argument("--format", choices=("table", "json"), default="table", help="default: table")


def _complete_jobs(prefix: str, parsed_args: argparse.Namespace, **rest: object) -> list[str]:
    import asyncio

    from ftcore.cli.ctl_store import job_names

    return [name for name in asyncio.run(job_names(parsed_args.store)) if name.startswith(prefix)]
