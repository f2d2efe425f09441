"""torchrun's flags (torch 2.13) and how ``ftrun`` treats them; docs/reference/torchrun.md is generated from this table.

A test compares this table with torchrun's own parser, and fails if a flag of a newer torch is missing here.

House rule: imported before the warm process is started (``ftrun.py``), so it imports nothing heavy.
"""

from enum import StrEnum
from typing import NamedTuple


class Treatment(StrEnum):
    """How ``ftrun`` treats a flag of torchrun."""

    SAME = "same"
    """Has the same effect as in torchrun."""

    DIFFERS = "differs"
    """Accepted, with a deliberate difference."""

    UNUSED = "unused"
    """Accepted and ignored, so that a command line works unchanged; `ftrun` prints a note with the reason."""

    REFUSED = "refused"
    """Ends `ftrun` with exit code 2, the reason and an alternative."""


class Flag(NamedTuple):
    """One flag.

    Args:
        treatment: how ``ftrun`` treats it.
        text: the difference, the reason or the alternative; empty if there is no difference.
        variable: torchrun reads its default from ``PET_<NAME>``, and so does ``ftrun``.
    """

    treatment: Treatment
    text: str = ""
    variable: bool = True


_SAME, _DIFFERS, _UNUSED, _REFUSED = Treatment
_KEEP_TORCHRUN = "or keep torchrun with `--rdzv-backend ftcore`, which supports it"

FLAGS: dict[str, Flag] = {
    "nnodes": Flag(_SAME),
    "nproc_per_node": Flag(_DIFFERS, "a number, `cpu`, `gpu` or `auto`; for `xpu` and other devices give the number"),
    "rdzv_backend": Flag(_UNUSED, "the rendezvous uses the job's event log (`--store`)"),
    "rdzv_endpoint": Flag(_DIFFERS, "a URL is the log store (`--store`); `HOST:PORT` is ignored, with a note"),
    "rdzv_id": Flag(_DIFFERS, "the job's name, also with `--standalone` (`--job`)"),
    "rdzv_conf": Flag(_UNUSED, "the job's time constants apply"),
    "standalone": Flag(_SAME),
    "max_restarts": Flag(
        _DIFFERS,
        "counted in a time window (`window` of `process_restart`); default 20 in an hour. A fault of the script that "
        "repeats at the same place ends the job earlier, after `same_fault` times (option of `process_restart`)",
    ),
    "monitor_interval": Flag(_UNUSED, "ftcore does not poll: the kernel reports the end of a worker"),
    "start_method": Flag(_UNUSED, "workers are forked from a warm process, or run by exec (`--no-preload`)"),
    "event_log_handler": Flag(_UNUSED, "events are in the job's event log (`ftctl events`, `ftctl export`)"),
    "role": Flag(
        _DIFFERS, "the same on all nodes; torchrun with `--rdzv-backend ftcore` supports a different role on each node"
    ),
    "module": Flag(_SAME),
    "no_python": Flag(_SAME),
    "run_path": Flag(
        _DIFFERS, "overrides `--no-python`; the script runs as with `python SCRIPT`: its directory is importable"
    ),
    "log_dir": Flag(_DIFFERS, "output is always in files: `JOB/LOG/round_N/rank_R/stdout.log` and `stderr.log`"),
    "redirects": Flag(_SAME),
    "tee": Flag(_SAME),
    "local_ranks_filter": Flag(_SAME),
    "duplicate_stdout_filters": Flag(_DIFFERS, "lines go to `filtered_stdout.log` in the directory of the round"),
    "duplicate_stderr_filters": Flag(_DIFFERS, "lines go to `filtered_stderr.log` in the directory of the round"),
    "node_rank": Flag(_DIFFERS, "the position among the nodes with every store, not only with static rendezvous"),
    "master_addr": Flag(_UNUSED, "the store is on the node with the first ranks; `MASTER_ADDR` is its address"),
    "master_port": Flag(
        _DIFFERS,
        "the port of the workers' store on the node with the first ranks (default: a free port in each round). If the "
        "port is in use, ftcore uses a free port and prints a note; `MASTER_PORT` has the actual port",
    ),
    "local_addr": Flag(_SAME),
    "logs_specs": Flag(
        _REFUSED,
        "ftrun writes the workers' output: use `--log-dir`, `--redirects`, `--tee`, `--local-ranks-filter`, "
        + _KEEP_TORCHRUN,
        variable=False,
    ),
    "numa_binding": Flag(
        _REFUSED,
        "workers are forked from one process and are not bound to CPUs: call `os.sched_setaffinity` in the script, "
        + _KEEP_TORCHRUN,
        variable=False,
    ),
    "signals_to_handle": Flag(
        _DIFFERS, "the signals shut the job down gracefully; workers get SIGTERM, whatever the signal"
    ),
    "shutdown_timeout": Flag(
        _DIFFERS,
        "sets `grace` of the policies that stop workers, for all nodes; default 10 s at a restart and 30 s at the end. "
        "`TORCH_ELASTIC_SHUTDOWN_TIMEOUT` is read as well",
    ),
    "virtual_local_rank": Flag(_SAME),
}
"""Treatment by the destination name in torchrun's parser."""


def having(treatment: Treatment) -> dict[str, str]:
    """Texts of the flags with this treatment, without backquotes, for a terminal."""
    return {name: flag.text.replace("`", "") for name, flag in FLAGS.items() if flag.treatment is treatment}
