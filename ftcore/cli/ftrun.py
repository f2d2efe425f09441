"""Entry point of ``ftrun``: reads the flags and starts the warm process.

No worker runs before the warm process has imported torch, which takes seconds. So it is started as soon as the flags
are read, and ``ftrun`` imports and opens everything else meanwhile.

House rule: until then, import only the standard library and a few small modules.
"""

import argparse
import importlib.util
import os
import sys

from ftcore.cli import options
from ftcore.cli.launcher_flags import launcher_flags
from ftcore.errors import FtcoreError
from ftcore.launch.environ import worker_base_env
from ftcore.runtime.agent.workers import warm_start


def run() -> None:
    """Entry point of the console script."""
    given = sys.argv[1:]
    parser = options.build_parser()
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)
    args = parser.parse_args(given)
    if args.local_nodes is None and not args.standalone and args.local_parent < 0:
        args, given = _with_launcher_flags(parser, args, given)
    if args.role != "master" and importlib.util.find_spec("torch") is None:
        sys.exit(_without_torch())
    warm = _begin(parser, args)

    from ftcore.cli import ftrun_job

    ftrun_job.run(parser, args, given, warm)


def _with_launcher_flags(
    parser: argparse.ArgumentParser, args: argparse.Namespace, given: list[str]
) -> tuple[argparse.Namespace, list[str]]:
    """The arguments, and the command line, with what a scheduler's environment says; what the user says wins."""
    try:
        found = launcher_flags()
    except FtcoreError as error:
        parser.exit(error.exit_code, f"ftrun: {error}\n")
    if found is None:
        return args, given
    own = {name: value for name, value in found.flags.items() if f"PET_{_dest(name).upper()}" not in os.environ}
    given = [*(f"--{name}={value}" for name, value in own.items()), *given]
    args = parser.parse_args(given)
    shown = [f"--{name} {value}" for name, value in own.items() if str(getattr(args, _dest(name))) == value]
    if args.node_rank in (None, 0) and shown:
        print(f"ftrun: from {found.launcher}: {' '.join(shown)}", file=sys.stderr)
    return args, given


def _dest(name: str) -> str:
    return name.replace("-", "_")


def _without_torch() -> int:
    print(
        f"ftrun: PyTorch is not installed in {sys.executable}; install it, for example with "
        "`pip install 'ftcore[torch]'`, or start ftrun with a Python that has it",
        file=sys.stderr,
    )
    return 2


def _begin(parser: argparse.ArgumentParser, args: argparse.Namespace) -> warm_start.Started | None:
    """Start the warm process, if this ``ftrun`` is a node's agent."""
    if args.leadership == "only" or (args.local_nodes is not None and args.local_place < 0):
        return None
    env = worker_base_env(options.slots(parser, args.nproc_per_node), args.signals_to_handle)
    try:
        return warm_start.start(env, options.preload(parser, args) or ())
    except OSError:
        return None  # the supervisor tries again, and reports the error


if __name__ == "__main__":
    run()
