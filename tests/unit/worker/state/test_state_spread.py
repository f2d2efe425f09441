"""What ranks say to each other while they load."""

import torch
from rank_processes import Ranks

from ftcore.worker.state.spread import SHORT_BYTES


def test_a_short_value_takes_one_collective(ranks: Ranks) -> None:
    """A collective of a thousand ranks passes a thousand messages in turn; only long values take a second one."""
    out = ranks("gathers", 3)
    half, triple = SHORT_BYTES // 2 + 1, 3 * SHORT_BYTES + 1
    of_rank = [1, 1000 * SHORT_BYTES + 1, 2000 * SHORT_BYTES + 1]
    for rank in range(3):
        assert torch.load(out / f"{rank}.end", weights_only=False) == [
            ([1] * 3, [0, 1, 2], 1),
            ([half] * 3, [0, 1, 2], 1),
            ([triple] * 3, [0, 1, 2], 2),
            (of_rank, [0, 1, 2], 2),
        ]
