"""Writes a batch script for ``sbatch``."""

import shlex
from collections.abc import Sequence

import attrs

from ftcore_slurm.control import beside_python


@attrs.frozen(kw_only=True)
class BatchScript:
    """What the script asks Slurm for, and what it runs.

    Args:
        nodes: nodes that train.
        spares: further nodes of the allocation, which take the place of lost ones; it begins with fewer if need be.
        lead_s: seconds before the time limit at which the job saves and stops.
        directives: further flags for ``sbatch``, as ``--time=24:00:00``.
        run_flags: further flags for ``ftctl slurm run``.
        command: flags, script and arguments for ``ftrun``.
    """

    nodes: int
    spares: int = 0
    lead_s: int = 180
    directives: Sequence[str] = ()
    run_flags: Sequence[str] = ()
    command: Sequence[str]

    def text(self) -> str:
        """The script."""
        most = self.nodes + self.spares
        lines = [  # without --ntasks-per-node: with it, Slurm gives no more than the least number of nodes
            f"--nodes={self.nodes}-{most}" if self.spares else f"--nodes={self.nodes}",
            "--exclusive",
            "--no-kill",
            "--requeue",
            "--open-mode=append",
            f"--signal=B:USR1@{self.lead_s}",
            *map(_quoted, self.directives),
        ]
        flags = [f"--nodes={self.nodes}", f"--lead={self.lead_s}", *self.run_flags]
        run = [beside_python("ftctl"), "slurm", "run", *flags, "--", *self.command]
        return "\n".join(
            (
                "#!/bin/bash",
                *(f"#SBATCH {line}" for line in lines),
                "",
                f"# {self.nodes} nodes train, others are spares: --no-kill, so that the loss of a node ends nothing.",
                "# --signal: before the time limit it saves, stops and is requeued.",
                "trap '' USR1  # until ftctl handles it",
                f"exec {shlex.join(run)}",
                "",
            )
        )


def _quoted(flag: str) -> str:
    """A flag as a line of ``#SBATCH`` needs it."""
    name, equals, value = flag.partition("=")
    return f'{name}{equals}"{value}"' if " " in value else flag
