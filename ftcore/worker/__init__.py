"""What runs inside the training process; ``import ftcore.worker`` never imports torch.

A plain script needs nothing of this: a worker that ftcore forked counts optimizer steps by itself. A script that wants
to say more calls ``report`` (its step, loss, gradient norm), ``watch`` (what is wrong with those) and ``saved`` (which
checkpoints a rollback may go back to). Outside ``ftrun`` all of them do nothing, so scripts run anywhere.
"""

from ftcore.worker._progress import report, saved, watch

__all__ = ["report", "saved", "watch"]
