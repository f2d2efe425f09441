"""torchrun's rendezvous over the event log: ``torchrun --rdzv-backend ftcore`` (entry points ``torchrun.handlers``).

torchrun starts, monitors and stops the workers as usual. The job's master decides about membership and rounds, as under
``ftrun``, with the same agent and the same log. Two processes share the work on a node:

| process | module | does |
|---|---|---|
| torchrun | ``handler``, ``agent_view``, ``round_store`` | waits for a world, serves its store, reports failures |
| its sidecar | ``sidecar``, ``supervisor`` | the agent; imports no torch; lives as long as torchrun |

They communicate over a socket pair (``channel``). torchrun's process never loads gRPC, and never waits for the sidecar
while its workers run.

House rules: torchrun loads this module with every backend, so only ``entry`` is imported here. Only ``agent_view``
reads torchrun's objects; if something is missing there, the log has less detail, but training is not affected.
"""

from ftcore.rdzv_etcd.entry import create_handler, handlers

__all__ = ["create_handler", "handlers"]
