"""The API for training scripts; ``import ftcore.worker`` never imports torch.

A plain script does not need it: a worker that ftcore forked counts optimizer steps by itself, and waits between two
steps while the job is paused. A script may also call ``report`` (step, loss, gradient norm), ``watch`` (limits for
these), ``section`` (a part with a duration of its own), ``saved`` (checkpoints for a rollback), ``role`` (which ranks
do the same work), ``boundary`` (where it may wait and save) and ``on_save`` (how it saves on request). With ``join`` it
registers its state, which ftcore then saves and restores. Outside ``ftrun`` these functions do nothing, so a script
runs anywhere; ``get_rng_states`` and ``set_rng_states`` do the same everywhere.
"""

from ftcore.batch import RankBatch
from ftcore.worker._boundary import boundary, on_save
from ftcore.worker._job import TrainingJob, join
from ftcore.worker._progress import report, saved, watch
from ftcore.worker._rng import get_rng_states, set_rng_states
from ftcore.worker._roles import role
from ftcore.worker._rounds import MemoryDamaged
from ftcore.worker._sections import section
from ftcore.worker._step import TrainingStep
from ftcore.worker.state.slices import DeclaredSlice as Slice

__all__ = [
    "MemoryDamaged",
    "RankBatch",
    "Slice",
    "TrainingJob",
    "TrainingStep",
    "boundary",
    "get_rng_states",
    "join",
    "on_save",
    "report",
    "role",
    "saved",
    "section",
    "set_rng_states",
    "watch",
]
