"""The table of rules, by source; a line is read by the first rule whose pattern matches it.

The most definite sources come first: noise that no other rule may read, then hardware, memory, CUDA, data loader,
numbers, NCCL, storage, schedulers, the program's set-up, the network, exit codes, and last the program's own
exceptions, which many lines resemble.
"""

from ftcore.faults.rule import Rule
from ftcore.faults.rules import cuda, hardware, memory, nccl, network, noise, program, scheduler, storage

RULES: tuple[Rule, ...] = (
    *noise.RULES,
    *hardware.RULES,
    *hardware.XID_RULES,
    *nccl.EARLY,
    *program.LOADER[:3],
    *memory.RULES,
    *cuda.RULES[:-1],
    *noise.LATE,
    *cuda.RULES[-1:],
    *program.LOADER[3:],
    *scheduler.RULES,
    *nccl.RULES,
    *storage.RULES,
    *program.NUMERIC,
    *program.HANGS,
    *program.SET_UP,
    *network.RULES,
    *program.CRASHES[:1],
    *scheduler.EXITS,
    *program.CRASHES[1:],
    *hardware.WORDS,
)
