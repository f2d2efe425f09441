"""A training process that only stages, in its own process: carries out the lines of its standard input.

Each line is JSON, ``[command, *arguments]``; each answer is a line on standard output.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from ftcore.checkpoint.layout import Piece, ShardIndex, placed
from ftcore.shm.staging import needed
from ftcore.worker._keeper import KeeperClient


class Staging:
    """The commands.

    Args:
        client: the connection to the keeper.
        about: fields of the index of each shard: rank, ranks, group, groups, round.
    """

    def __init__(self, client: KeeperClient, about: dict[str, int]) -> None:
        self.client = client
        self.about = about

    def stage(self, step: int, size: int, persist: bool = False, index: int = -1) -> Any:
        """Write a shard whose bytes are its step; returns the slot, or why there is none."""
        pair = self.client.slots(needed(4096, size))
        if pair is None:
            return self.client.problem
        number = pair.choose() if index < 0 else index
        shape = (size,)
        pieces, count = placed([Piece(f"t{self.about['group']}", "uint8", shape, (0,), shape)])
        pair.slots[number].begin(count)[:size] = bytes([step]) * size
        shard = ShardIndex(job="job", log="log", step=step, pieces=pieces, values='{"a":1}', **self.about)
        pair.slots[number].seal(msgspec.json.encode(shard), step, self.about["round"], time.monotonic_ns())
        return number if self.client.sealed(number, step, persist) else self.client.problem

    def tear(self, size: int, index: int = -1) -> int:
        """Write half of a shard, and leave it so."""
        pair = self.client.slots(needed(4096, size))
        assert pair is not None
        number = pair.choose() if index < 0 else index
        pair.slots[number].begin(size)[: size // 2] = b"!" * (size // 2)
        return number

    def pins(self) -> list[int]:
        """How much each slot is needed by readers."""
        pair = self.client.slots(1)
        assert pair is not None
        return [slot.pinned for slot in pair.slots]

    def held(self) -> list[tuple[int, int]]:
        """Rank and step of each complete shard."""
        return [(shard.rank, shard.step) for shard in self.client.held()]

    def read(self, step: int) -> str:
        """The data of the complete shard of a step, checked to be all of it."""
        (shard,) = [shard for shard in self.client.held() if shard.step == step]
        slot = self.client.read(shard.local_rank, shard.slot)
        assert slot is not None
        with slot.data() as data:
            found = set(bytes(data[: shard.bytes - shard.bytes % 64]))
        self.client.done(shard.local_rank, shard.slot)
        return repr(sorted(found))

    def hold(self, step: int) -> bool:
        """Open a shard for reading, and keep it."""
        (shard,) = [shard for shard in self.client.held() if shard.step == step]
        return self.client.read(shard.local_rank, shard.slot) is not None

    def memory(self) -> int:
        """Staging memory that this process has mapped or open."""
        maps = Path("/proc/self/maps").read_text().count("memfd:ftcore-staging")
        opened = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return maps + sum("memfd:ftcore-staging" in str(path) for path in opened)


def main(root: str, rank: int, about: dict[str, int]) -> None:
    client = KeeperClient(f"{root}/run/k.sock", rank, rank, about["round"])
    staging = Staging(client, {"rank": rank, **about})
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print(json.dumps({"answer": getattr(staging, command)(*arguments)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
