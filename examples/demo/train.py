"""A small GPT trained on the Python standard library's own sources.

It registers its model and optimizer, and has no checkpoint code: ftcore saves their state in memory after each step,
and restores it after a fault. Its DDP model is made in each round, so its process stays when another one dies.

Every number depends only on the seed and the step: the batch is drawn from (seed, step, rank), there is no dropout, and
each rank computes on one thread. With two ranks the gradient sum has two terms, and their order does not matter. So an
interrupted run ends with the same weights, to the last bit, as an uninterrupted one.
"""

import argparse
import ctypes
import hashlib
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  (everybody calls it F)
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ftcore.worker as ft

CONTEXT, WIDTH, LAYERS, HEADS, VOCABULARY = 64, 256, 4, 4, 256
BATCH = 4


class Block(nn.Module):
    """Attention and a two-layer network, each with a norm before it and a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        shape = (batch, length, HEADS, WIDTH // HEADS)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(WIDTH, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Bytes in, next bytes out; 3.3 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def corpus() -> Tensor:
    """Return half a megabyte of the standard library, in order of file names."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) > 500_000:
            break
    return torch.frombuffer(text, dtype=torch.uint8).long()


def batch_of(text: Tensor, seed: int, step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return the batch of a step and rank, the same at every call."""
    draw = torch.Generator().manual_seed((seed * 1_000_003 + step) * 1_009 + rank)
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=draw)
    rows = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


def cause_fault(faults: Path, rank: int) -> None:
    """Carry out the fault that is planned for this rank, once."""
    for kind in ("exception", "segfault"):
        order = faults / f"{kind}.{rank}"
        if order.exists():
            order.unlink()
            if kind == "exception":
                raise ValueError(f"the demo's own exception on rank {rank}")
            ctypes.string_at(0)


def in_bytes(values: Tensor) -> bytes:
    """Return the bytes of a tensor in memory, without numpy, which not every installation of torch has."""
    whole = values.detach().contiguous()
    return ctypes.string_at(whole.data_ptr(), whole.numel() * whole.element_size())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory for the result")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--faults", type=Path, help="directory with the demo's planned faults")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    text = corpus()
    net = GPT()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    job = ft.join()
    job.register(model=net, optimizer=optimizer)
    model: nn.Module = net

    @job.on_round
    def build() -> None:
        nonlocal model
        model = DistributedDataParallel(net)

    for step in job.steps(until=args.steps):
        with step:
            began = time.monotonic()
            loss = model(*batch_of(text, args.seed, step.number, rank))
            if args.faults is not None:
                cause_fault(args.faults, rank)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step.report(loss=loss.item())
            if rank == 0:
                seconds = time.monotonic() - began
                print(f"step {step.number}/{args.steps} loss {loss.item():.4f} {seconds:.2f} s", flush=True)
    if rank == 0:
        with torch.no_grad():
            final = sum(net(*batch_of(text, -1, i, 0)).item() for i in range(8)) / 8
        weights = hashlib.sha256(b"".join(map(in_bytes, net.parameters()))).hexdigest()
        (args.out / "result.txt").write_text(f"{final.hex()} {weights}\n")
        print(f"final loss {final:.6f}, weights {weights[:16]}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
