"""torchrun's rendezvous over the event log: ``torchrun --rdzv-backend ftcore`` (entry points ``torchrun.handlers``).

torchrun starts, watches and stops the workers, as ever; who trains with whom, and when a new round begins, is decided
by the job's master, as under ``ftrun``: same agent, same formation, same log. Two processes share the work on a node:

| process | module | does |
|---|---|---|
| torchrun | ``handler``, ``agent_view``, ``round_store`` | waits for a world, serves its store, tells how workers end |
| its sidecar | ``sidecar``, ``supervisor`` | the agent; knows no torch; lives as long as torchrun |

They speak over a socket pair (``channel``). torchrun's process never loads gRPC, and never waits for the other one
while its workers run.

House rules: torchrun loads this module whatever its backend is, so nothing is imported here but ``entry``. Everything
that is read of torchrun is read in ``agent_view``; what is missing there costs detail in the log, never the training.
"""

from ftcore.rdzv_etcd.entry import create_handler, handlers

__all__ = ["create_handler", "handlers"]
