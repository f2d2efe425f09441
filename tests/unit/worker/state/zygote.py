"""Runs cases in processes that are forked with torch imported: a hundred processes cost one import.

``python zygote.py`` reads orders from its standard input, one JSON object a line, and answers each with the exit codes.
A child has its rank and the order's variables in its environment, and writes its output to ``OUT/RANK.log``.
"""

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

TIMEOUT_S = 250.0


def run(order: dict[str, Any]) -> list[int]:
    children = {}
    for rank in range(order["ranks"]):
        pid = os.fork()
        if not pid:
            _child(order, rank)
        children[pid] = rank
    codes = [0] * order["ranks"]
    deadline = time.monotonic() + TIMEOUT_S
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            codes[children.pop(pid)] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() > deadline:
            for each in children:
                os.kill(each, signal.SIGABRT)
            deadline = float("inf")
        else:
            time.sleep(0.005)
    return codes


def _child(order: dict[str, Any], rank: int) -> None:
    code = 1
    try:
        log = os.open(Path(order["out"]) / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        place = {"RANK": str(rank), "WORLD_SIZE": str(order["ranks"]), "GROUP_RANK": "0"}
        place["FTCORE_LOCAL_RANK"] = str(rank)
        os.environ.update(place | order["env"]["all"] | order["env"].get(str(rank), {}))
        import faulthandler
        import importlib

        import torch

        faulthandler.enable()
        torch.set_num_threads(1)
        (Path(order["out"]) / f"{rank}.pid").write_text(str(os.getpid()))
        module, _, name = order["case"].rpartition(":")
        getattr(importlib.import_module(module or "cases"), name)(Path(order["out"]), **order["args"])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        import atexit

        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel
    import torch.nn.parallel  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
