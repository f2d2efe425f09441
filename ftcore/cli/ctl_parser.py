"""The arguments of ``ftctl``; the reference page of the command line is generated from here."""

import argparse
import difflib
import os
import re
from typing import Any, NoReturn

from ftcore.cli.ctl_futures import add_futures
from ftcore.cli.ctl_policy_parser import add_policy
from ftcore.cli.ctl_types import BOUND_HELP, bound, duration_over_0, position, positive
from ftcore.faults.detectors.loss import LIMIT

_EXIT_CODES = """exit codes: 0 done; 1 verify found a mismatch, the log is damaged, a command was not carried out, or
standard output cannot be written; 2 wrong usage or input; 3 store or master unreachable; 4 no such job, node,
incident, event or file of a log; 130 interrupted"""


class Parser(argparse.ArgumentParser):
    """Names the program alone in errors, and takes no abbreviated options: they break when options are added."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs |= {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line; exit 2."""
        message = re.sub(r"^argument (?:-\w/)?(\S+): ", r"\1: ", message)
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        words = list(map(str, action.choices))
        near = difflib.get_close_matches(str(value), words, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of: {', '.join(words)}"
        raise argparse.ArgumentError(action, f"found {value!r}; {hint}")


def build_parser(version: str) -> Parser:
    """The parser of ``ftctl`` with all its commands.

    Args:
        version: what ``--version`` prints.
    """
    parser = Parser(
        prog="ftctl",
        description="Read the log of a job: what happened, what was decided and why.",
        epilog=_EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"ftctl {version}")
    defaults = (os.environ.get(f"FTCORE_{name}") or None for name in ("STORE", "JOB", "ARCHIVE"))
    _add_common(parser, *defaults)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_reading(commands)
    _add_incidents(commands)
    _add_taking_away(commands)
    _add_spikes(commands)
    add_futures(commands, _command, _reading)
    add_policy(commands, _command)
    _add_commands(commands)
    _add_alert(commands)
    return parser


def _add_common(parser: argparse.ArgumentParser, store: Any, job: Any, archive: Any) -> None:
    parser.add_argument(
        "--store",
        metavar="URL",
        default=store,
        help="where the logs are: sqlite:///DIR, etcd://HOST:PORT/PREFIX, file:///FILE.ftlog (FTCORE_STORE; default: "
        "the one that ftrun uses by default)",
    )
    parser.add_argument(
        "--archive",
        metavar="DIR",
        default=archive,
        help="where older events were moved to (FTCORE_ARCHIVE; default: where the log says that they went)",
    )
    option = parser.add_argument(
        "--job", metavar="NAME", default=job, help="the job (FTCORE_JOB); not needed if the store has only one"
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
        "Show what is true of a job now.",
        "ftctl status\nftctl --job demo status --format json | jq .step\nftctl status --nodes",
    )
    status.add_argument(
        "--nodes",
        action="store_true",
        help="what the nodes' heartbeats tell, asked from the master: step, network counters, known lines, devices",
    )
    events = _reading(
        commands,
        "events",
        "Show the audit log: every fact, and the decisions that answer it.",
        "ftctl events\nftctl events --type 'worker.*,incident.*' --since 15m\n"
        "ftctl events --incident i2 --format json | jq .data\nftctl events --follow",
    )
    events.add_argument(
        "--since",
        type=bound,
        metavar="SEQ|TIME",
        help=f"from here on, included; {BOUND_HELP}; without it, from the first one, or if the archive is away from "
        "the first that is there, which is told, and the exit code is 4",
    )
    events.add_argument("--until", type=bound, metavar="SEQ|TIME", help="up to here, included")
    events.add_argument("--type", metavar="GLOB", help="types, as worker.* or node.lost; several with commas")
    events.add_argument("--node", metavar="NODE", help="events that come from the node or name it")
    events.add_argument("--incident", metavar="ID", help="an incident's decisions and the facts that they answer")
    events.add_argument("--follow", action="store_true", help="go on with new events until interrupted")


def _add_incidents(commands: Any) -> None:
    _reading(
        commands,
        "incidents",
        "List the incidents: what interrupted the training, what was done, how long it took.",
        "ftctl incidents\nftctl incidents --format json | jq '.[] | {id, class, total: .phases.total}'",
    )
    explain = _reading(
        commands,
        "explain",
        "Explain an incident: evidence, verdicts with their reasons, times, failures.",
        "ftctl explain\nftctl explain i2\nftctl explain i2 --format json | jq .failures[0]",
    )
    explain.add_argument("incident", nargs="?", metavar="INCIDENT", help="its id, as i2; default: the newest")


def _add_taking_away(commands: Any) -> None:
    replay = _reading(
        commands,
        "replay",
        "Rebuild a job's state at a point of its log, or verify that every decision would be made again.",
        "ftctl replay\nftctl replay --at 120 --format json | jq .folded.nodes\nftctl replay --verify",
    )
    replay.add_argument("--at", type=position, metavar="SEQ", help="after this event; default: the last one")
    replay.add_argument("--verify", action="store_true", help="decide again from the facts and compare; exit 1 if not")
    export = _command(
        commands,
        "export",
        "Write the log to a file that can be read anywhere.",
        "ftctl export -o demo.ftlog\nftctl --store file:demo.ftlog explain\nftctl export -o - | gzip > demo.ftlog.gz",
    )
    _add_common(export, *[argparse.SUPPRESS] * 3)
    export.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="by custom NAME.ftlog; an archive that is there is replaced, another file is not; - for standard output",
    )
    _reading(
        commands,
        "salvage",
        "Make a new log of what can be read of a damaged one on this machine; the damaged file is kept.",
        "ftctl --job demo salvage\nftctl --job demo salvage --format json | jq .lost_count",
    )
    machines = _command(
        commands,
        "machines",
        "Draw the state machines as they run.",
        "ftctl machines\nftctl machines node --format mermaid\nftctl machines job --format dot | dot -Tsvg > job.svg",
    )
    machines.add_argument("machine", nargs="?", metavar="MACHINE", help="one of them; default: all")
    machines.add_argument("--format", choices=("table", "mermaid", "dot"), default="table", help="default: table")
    completion = _command(
        commands,
        "completion",
        "Print the script that makes a shell complete ftctl's arguments.",
        'eval "$(ftctl completion bash)"\nftctl completion fish > ~/.config/fish/completions/ftctl.fish',
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))


def _add_spikes(commands: Any) -> None:
    classify = _command(
        commands,
        "classify",
        "Say what the text of a log means: class, who began it, what to do.",
        "ftctl classify worker.log\ndmesg | ftctl classify -\nftctl classify --jsonl excerpts.jsonl | jq .class",
    )
    classify.add_argument("file", metavar="FILE", help="the text, or - for standard input")
    classify.add_argument("--jsonl", action="store_true", help="one JSON object a line; its key text is read")
    classify.add_argument("--policy", metavar="FILE", help="a policy file with rules of its own (faults: rules)")
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
        help="columns step, loss and perhaps grad_norm below a header, tabs or commas between; - for stdin",
    )
    spikes.add_argument("--suggest", action="store_true", help="take the run as normal; thresholds that leave it alone")
    spikes.add_argument(
        "--limit",
        type=positive,
        default=LIMIT,
        metavar="SCORE",
        help="robust deviations above the median of the last 40 losses that flag a loss; default: %(default)g",
    )
    spikes.add_argument(
        "--norm-threshold",
        type=positive,
        metavar="NORM",
        help="also flag every gradient norm at or over this; default: off",
    )
    spikes.add_argument("--format", choices=("table", "json"), default="table", help="default: table")


def _add_commands(commands: Any) -> None:
    for name, (summary, examples) in _WISHES.items():
        parser = _reading(commands, name, summary, examples)
        if name in ("drain", "evict", "admit"):
            parser.add_argument("node", metavar="NODE", help="its name, as in: ftctl status")
        parser.add_argument("--why", metavar="TEXT", default="", help="the reason, for the log")
        parser.add_argument(
            "--no-wait", action="store_true", help="return once it is recorded; default: follow it to the verdict"
        )
        parser.add_argument(
            "--timeout", type=duration_over_0, default=120.0, metavar="TIME", help="wait so long; default: 2m"
        )


_WISHES = {
    "pause": (
        "Hold a job that forms or recovers; a running one cannot be paused yet: no script is told to wait at a step.",
        "ftctl pause --why 'network maintenance'",
    ),
    "resume": (
        "Let a paused, held or stuck job go on; a fact that a stuck job could not take in stays set aside.",
        "ftctl resume --job demo",
    ),
    "drain": (
        "Have the job go on without a node, which is released; its machine may be used again.",
        "ftctl drain node3 --why 'disk to be replaced'",
    ),
    "evict": (
        "Have the job go on without a node, which is released and kept out.",
        "ftctl evict node3 --why 'slow, and nobody knows why'",
    ),
    "admit": (
        "Let a node that was kept out take part again; its faults so far count no more.",
        "ftctl admit node3 --why 'its memory was replaced'",
    ),
    "checkpoint": (
        "Ask for a checkpoint now; recorded, but no script is told to save yet, so the request is dropped.",
        "ftctl checkpoint --no-wait",
    ),
    "stop": (
        "Stop a running job: workers get time to save, ftrun exits with 5, the job can be started again.",
        "ftctl stop --job demo --why 'maintenance at ten'",
    ),
}


def _add_alert(commands: Any) -> None:
    alert = _command(
        commands,
        "alert",
        "Send a message, to try out whom the policy `alert` tells.",
        "ftctl alert env:CHAT_URL\nftctl alert file:/etc/ftcore/alerts --text 'hello from the cluster'",
    )
    alert.add_argument(
        "target", nargs="+", metavar="TARGET", help="env:NAME, file:/PATH or a URL, as in `to:` of the policy file"
    )
    alert.add_argument("--text", default="A message to try this out.", help="what is sent; default: %(default)s")
    alert.add_argument("--format", choices=("table", "json"), default="table", help="default: table")


def _complete_jobs(prefix: str, parsed_args: argparse.Namespace, **rest: object) -> list[str]:
    import asyncio

    from ftcore.cli.ctl_store import job_names

    return [name for name in asyncio.run(job_names(parsed_args.store)) if name.startswith(prefix)]
