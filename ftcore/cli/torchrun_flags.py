"""torchrun's flags (torch 2.13) and what ``ftrun`` does with each; the reference page is generated from here.

A test compares this table with torchrun's own parser: a flag of a newer torch that is missing here fails it.

House rule: imported before the warm process is started (``ftrun.py``), so it imports nothing heavy.
"""

from enum import StrEnum
from typing import NamedTuple


class Treatment(StrEnum):
    """What ``ftrun`` does with a flag of torchrun."""

    SAME = "same"
    """Does what it does there."""

    DIFFERS = "differs"
    """Is taken; what differs is on purpose."""

    UNUSED = "unused"
    """Is taken, so that a command line works unchanged, and has nothing to set; a note says why."""

    REFUSED = "refused"
    """Ends `ftrun` with exit code 2, the reason, and another way."""


class Flag(NamedTuple):
    """One flag.

    Args:
        treatment: what is done with it.
        text: what differs, why, or the other way; empty if nothing does.
        variable: torchrun reads its default from ``PET_<NAME>``, and so does ``ftrun``.
    """

    treatment: Treatment
    text: str = ""
    variable: bool = True


_SAME, _DIFFERS, _UNUSED, _REFUSED = Treatment
_KEEP_TORCHRUN = "or keep torchrun with `--rdzv-backend ftcore`, which takes it"

FLAGS: dict[str, Flag] = {
    "nnodes": Flag(_SAME),
    "nproc_per_node": Flag(_DIFFERS, "a number, `cpu`, `gpu` or `auto`; for `xpu` and other devices give the number"),
    "rdzv_backend": Flag(_UNUSED, "rendezvous goes over the job's event log (`--store`)"),
    "rdzv_endpoint": Flag(_DIFFERS, "a URL is the log store (`--store`); `HOST:PORT` is not used, and a note says so"),
    "rdzv_id": Flag(_DIFFERS, "the job's name, also with `--standalone` (`--job`)"),
    "rdzv_conf": Flag(_UNUSED, "the time constants are those of the job"),
    "standalone": Flag(_SAME),
    "max_restarts": Flag(
        _DIFFERS,
        "counted in a time window (`window` of `process_restart`); default 20 in an hour. A fault of the script that "
        "comes again at the same place ends the job before that: `same_fault` of `process_restart` says after how many "
        "times",
    ),
    "monitor_interval": Flag(_UNUSED, "the end of a worker is reported when it happens"),
    "start_method": Flag(_UNUSED, "workers are forked from a warm process, or run by exec (`--no-preload`)"),
    "event_log_handler": Flag(_UNUSED, "events are in the job's log (`ftctl events`, `ftctl export`)"),
    "role": Flag(_DIFFERS, "the same on all nodes; torchrun with `--rdzv-backend ftcore` takes a role for each node"),
    "module": Flag(_SAME),
    "no_python": Flag(_SAME),
    "run_path": Flag(
        _DIFFERS, "wins over `--no-python`; the script runs as with `python SCRIPT`: its directory is importable"
    ),
    "log_dir": Flag(_DIFFERS, "output is always in files: `JOB/LOG/round_N/rank_R/stdout.log` and `stderr.log`"),
    "redirects": Flag(_SAME),
    "tee": Flag(_SAME),
    "local_ranks_filter": Flag(_SAME),
    "duplicate_stdout_filters": Flag(_DIFFERS, "lines go to `filtered_stdout.log` in the directory of the round"),
    "duplicate_stderr_filters": Flag(_DIFFERS, "lines go to `filtered_stderr.log` in the directory of the round"),
    "node_rank": Flag(_DIFFERS, "the place among the nodes with every store, not with static rendezvous alone"),
    "master_addr": Flag(_UNUSED, "the store is on the node with the first ranks; `MASTER_ADDR` is its address"),
    "master_port": Flag(
        _DIFFERS,
        "the port of the workers' store on the node with the first ranks (default: a free one in each round). Where it "
        "is in use, a free port is taken and a note says so; `MASTER_PORT` is always right",
    ),
    "local_addr": Flag(_SAME),
    "logs_specs": Flag(
        _REFUSED,
        "ftrun writes the workers' output itself: use `--log-dir`, `--redirects`, `--tee`, `--local-ranks-filter`, "
        + _KEEP_TORCHRUN,
        variable=False,
    ),
    "numa_binding": Flag(
        _REFUSED,
        "workers are forked from one process and are not bound to processors: call `os.sched_setaffinity` in the "
        "script, " + _KEEP_TORCHRUN,
        variable=False,
    ),
    "signals_to_handle": Flag(_DIFFERS, "the signals end the job in order; workers get SIGTERM whichever it was"),
    "shutdown_timeout": Flag(
        _DIFFERS,
        "sets `grace` of the policies that stop workers, for all nodes; default 10 s at a restart and 30 s at the end. "
        "`TORCH_ELASTIC_SHUTDOWN_TIMEOUT` is read, too",
    ),
    "virtual_local_rank": Flag(_SAME),
}
"""By the name that torchrun's parser gives the value."""

VARIABLES = {
    "PYTHON_EXEC": "the interpreter of workers that are run by exec",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "default of `--shutdown-timeout`",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "template of the prefix of lines that are teed",
}

PLUGIN = "torchrun reads its flags itself, and all of them do what they do there. What differs is in the rendezvous:"

PLUGIN_DIFFERS = {
    "`--max-restarts`": "a fault of the script that comes again at the same place ends the job before: "
    "`same_fault` of `process_restart` in the policy file says after how many times",
    "`--rdzv-conf`": "has ftcore's keys; those of other backends, as `is_host`, are refused with the reason",
    "exit code": "a torchrun that waits for a world when the job has failed ends with the job's exit code and one line",
}
"""Differences of the plugin, on purpose."""


def having(treatment: Treatment) -> dict[str, str]:
    """The flags with this treatment, as texts for a terminal."""
    return {name: flag.text.replace("`", "") for name, flag in FLAGS.items() if flag.treatment is treatment}
