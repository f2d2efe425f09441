"""What runs inside the training process; ``import ftcore.worker`` never imports torch.

A plain script needs nothing of this: a worker that ftcore forked counts optimizer steps by itself. A script that wants
to say its step, loss or gradient norm calls ``report``; outside ``ftrun`` that does nothing, so scripts run anywhere.
"""

from ftcore.worker._progress import report

__all__ = ["report"]
