"""torchrun's rendezvous over the event log: ``torchrun --rdzv-backend ftcore`` (entry points ``torchrun.handlers``).

torchrun starts, watches and stops the workers, as ever; who trains with whom, and when a new round begins, is decided
by the job's master, as under ``ftrun``: same agent, same formation, same log. Two processes share the work on a node:

| process | module | does |
|---|---|---|
| torchrun | ``handler``, ``agent_view``, ``round_store`` | waits for a world, serves its store, tells how workers end |
| its sidecar | ``sidecar``, ``supervisor`` | the agent; knows no torch; lives as long as torchrun |

They speak over a socket pair (``channel``). torchrun's process never loads gRPC, and never waits for the other one
while its workers run.

House rules: torchrun loads this module whatever its backend is, so nothing is imported here. Everything that is read
of torchrun is read in ``agent_view``; what is missing there costs detail in the log, never the training.
"""

from typing import Any


def handlers() -> Any:
    """The entry point: torchrun calls it without arguments, for what makes a handler from ``RendezvousParameters``."""
    return create_handler


def create_handler(params: Any) -> Any:
    """Make the handler of one torchrun. Ends the process with a message if the parameters cannot be used."""
    from ftcore.rdzv_etcd.handler import make

    return make(params)
