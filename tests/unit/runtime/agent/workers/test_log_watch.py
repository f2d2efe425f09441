"""The live scan of output, for which nothing waits."""

import asyncio

from ftcore.faults.scan import Hit
from ftcore.ids import Round
from ftcore.runtime.agent.workers import log_watch
from ftcore.runtime.agent.workers.log_watch import LogWatch

XID = b"NVRM: Xid (PCI:0000:91:00): 79, GPU has fallen off the bus.\n"


async def told(blocks: list[bytes]) -> tuple[list[tuple[int, int, Hit]], LogWatch]:
    """The matches reported for a stream of these blocks."""
    found: list[tuple[int, int, Hit]] = []
    ended = asyncio.Event()

    def take(round_: Round, rank: int, hit: Hit) -> None:
        if "sentinel" in hit.line:
            ended.set()
        else:
            found.append((round_, rank, hit))

    watch = LogWatch(asyncio.get_running_loop(), take)
    tap, last = watch.stream(Round(3), 5), watch.stream(Round(3), 6)
    for block in blocks:
        tap.put(block)
    tap.end()
    while watch._size:
        await asyncio.sleep(0)
    last.put(b"CUDA error: unspecified launch failure sentinel\n")
    await asyncio.wait_for(ended.wait(), 30)
    watch.close()
    return found, watch


def test_a_match_is_reported_with_round_and_rank():
    """The loop gets round and rank of each match."""
    [(round_, rank, hit)], watch = asyncio.run(told([b"step 1\n", XID[:20], XID[20:]]))
    assert (round_, rank, hit.cls, watch.dropped) == (3, 5, "gpu-hw", 0)


def test_unscanned_output_is_counted(monkeypatch):
    """Output beyond the limit is dropped, and the interrupted line is not scanned."""
    monkeypatch.setattr(log_watch, "LAG_BYTES_MAX", 4)
    found, watch = asyncio.run(told_of_a_full_queue())
    assert found == []
    assert watch.dropped == len(XID)


async def told_of_a_full_queue() -> tuple[list[Hit], LogWatch]:
    found: list[Hit] = []
    watch = LogWatch(asyncio.get_running_loop(), lambda _round, _rank, hit: found.append(hit))
    tap = watch.stream(Round(1), 0)
    tap.put(XID)
    tap.put(b"ok\n")
    while watch._size:
        await asyncio.sleep(0)
    watch.close()
    await asyncio.sleep(0)
    return found, watch
