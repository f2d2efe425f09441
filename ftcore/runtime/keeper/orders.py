"""Orders to the workers to stage their state now, because other ranks have died."""

import asyncio
from typing import Any, Final

import attrs

from ftcore.runtime.keeper.peer import Peer
from ftcore.shm import messages

STAGE_S: Final = 20.0
"""Timeout in seconds for a worker's answer."""


@attrs.define(eq=False)
class _OrderedWorker:
    rank: int
    round: int
    peer: Peer
    waiting: dict[int, "asyncio.Future[dict[str, Any]]"] = attrs.field(factory=dict)


class StageOrders:
    """Sends orders to all connected workers, and collects their answers."""

    def __init__(self) -> None:
        self._workers: list[_OrderedWorker] = []
        self._number = 0

    async def serve(self, peer: Peer, rank: int, round_: int) -> None:
        """Serve a worker's connection for orders until it ends."""
        worker = _OrderedWorker(rank, round_, peer)
        self._workers.append(worker)
        try:
            while True:
                message, fds = await peer.receive()
                messages.close_all(fds)
                if message is None:
                    return
                answer = worker.waiting.pop(int(message["staged"]), None)
                if answer is not None and not answer.done():
                    answer.set_result(message)
        finally:
            self._workers.remove(worker)
            for answer in worker.waiting.values():
                if not answer.done():
                    answer.set_result({"error": "it has ended"})

    async def stage(self, round_: int) -> list[dict[str, Any]]:
        """Order all workers of a round to stage; returns ``rank`` with ``step`` or ``error`` for each, by rank."""
        asked = [worker for worker in self._workers if worker.round == round_]
        answers = await asyncio.gather(*map(self._ask, asked))
        return sorted(answers, key=lambda each: int(each["rank"]))

    async def _ask(self, worker: _OrderedWorker) -> dict[str, Any]:
        self._number += 1
        number, loop = self._number, asyncio.get_running_loop()
        worker.waiting[number] = answer = loop.create_future()
        worker.peer.send({"stage": number})
        try:
            message = await asyncio.wait_for(answer, STAGE_S)
        except TimeoutError:
            worker.waiting.pop(number, None)
            return {"rank": worker.rank, "error": f"it did not answer within {STAGE_S:g} s"}
        if "step" in message:
            return {"rank": worker.rank, "step": int(message["step"])}
        return {"rank": worker.rank, "error": str(message.get("error", "no reason given"))}
