"""A training with a fault at a known step, for the tests of ``ftctl import``: gloo, no GPU, seconds.

python -m torch.distributed.run --nproc-per-node 3 --redirects 3 --log-dir LOGS train.py KIND RANK STEP
"""

import datetime
import json
import logging
import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

STEPS = 8


def inject(kind: str) -> None:
    """Fail in the way that is named, and write down when."""
    (pathlib.Path(os.environ["TRUTH"])).write_text(json.dumps({"kind": kind, "time": time.time()}))
    if kind == "exception":
        raise ValueError("sample 7 is <b>empty</b>")
    if kind == "oom":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.15 GiB in total")
    if kind == "exit":
        os._exit(17)
    if kind == "hang":
        time.sleep(600)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "segv": signal.SIGSEGV, "term": signal.SIGTERM}[kind])


@record
def main() -> None:
    kind, who, when = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    wait = datetime.timedelta(seconds=float(os.environ.get("WAIT_S", "30")))
    # torchrun keeps its store over a restart, and gloo would find the addresses of dead workers in it
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=wait)
    prefixed = dist.PrefixStore(f"attempt{attempt}", store)
    dist.init_process_group("gloo", store=prefixed, rank=rank, world_size=int(os.environ["WORLD_SIZE"]), timeout=wait)
    logging.basicConfig(level="INFO", format=f"%(asctime)s [rank{rank}] %(message)s", stream=sys.stdout)
    logging.Formatter.converter = time.gmtime
    total = torch.ones(1)
    for step in range(1, STEPS + 1):
        if kind != "none" and (rank, step, attempt) == (who, when, 0):
            inject(kind)
        dist.all_reduce(total)
        time.sleep(0.1)
        logging.info("step %d loss %.3f", step, 2 / step)
    dist.destroy_process_group()


main()
