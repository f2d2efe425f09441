"""torchrun's agent as a library: runs it, hands back the handler, and only then looks at how the workers ended."""

import sys
import time

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler


def work(fails: bool) -> None:
    """One worker."""
    if fails:
        sys.exit(3)
    time.sleep(600)


def main() -> int:
    store, job, name, fails = sys.argv[1:]
    handler = get_rendezvous_handler(RendezvousParameters("ftcore", store, job, min_nodes=2, max_nodes=2, node_id=name))
    spec = WorkerSpec(role="default", local_world_size=1, entrypoint=work, args=(fails == "1",), rdzv_handler=handler)
    spec.max_restarts = 0
    agent = LocalElasticAgent(spec, logs_specs=DefaultLogsSpecs(), start_method="spawn")
    result = agent.run()
    handler.shutdown()
    return 1 if result.is_failed() else 0


if __name__ == "__main__":
    sys.exit(main())
