"""A switch in user space that delays and loses frames: ``switch.py DELAY_S LOSS NAME=TAP_FD...``.

It reads which hosts are cut off, a JSON list to a line, from standard input, and ends with it.
"""

import contextlib
import heapq
import json
import os
import random
import select
import sys
import time

BROADCAST = 1


def main() -> None:
    delay_s, loss = float(sys.argv[1]), float(sys.argv[2])
    taps = {int(fd): name for name, _, fd in (arg.partition("=") for arg in sys.argv[3:])}
    where: dict[bytes, int] = {}
    cut: set[str] = set()
    on_the_wire: list[tuple[float, int, int, bytes]] = []
    count = 0
    poll = select.poll()
    for fd in (0, *taps):
        poll.register(fd, select.POLLIN)
    while True:
        wait_s = max(0.0, on_the_wire[0][0] - time.monotonic()) if on_the_wire else 60.0
        ready = poll.poll(wait_s * 1000)
        now = time.monotonic()
        for fd, _ in ready:
            if fd == 0:
                line = sys.stdin.readline()
                if not line:
                    return
                cut = set(json.loads(line))
                continue
            for frame in frames(fd):
                where[frame[6:12]] = fd
                known = where.get(frame[:6]) if not frame[0] & BROADCAST else None
                for target in (known,) if known is not None else taps:
                    count += 1
                    if target != fd and random.random() >= loss:
                        heapq.heappush(on_the_wire, (now + delay_s, count, target, frame))
        while on_the_wire and on_the_wire[0][0] <= time.monotonic():
            _, _, target, frame = heapq.heappop(on_the_wire)
            source = where.get(frame[6:12], target)
            if taps[target] not in cut and taps[source] not in cut:
                with contextlib.suppress(OSError):  # the queue is full: lost, as on a wire
                    os.write(target, frame)


def frames(fd: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < 64:
        try:
            found.append(os.read(fd, 65536))
        except OSError:
            break
    return found


if __name__ == "__main__":
    main()
