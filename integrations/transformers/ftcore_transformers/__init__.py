"""ftcore for the ``Trainer`` of transformers.

    trainer = Trainer(model=model, args=args, train_dataset=dataset)
    ftcore_transformers.attach(trainer)
    trainer.train()

| part | module |
|---|---|
| the callback: steps, losses, boundaries, saves, the end | ``callback`` |
| the trainer's progress as registered state, and the place in its data | ``progress`` |

Outside ``ftrun`` the callback changes nothing, so the script also runs under torchrun and ``accelerate launch``.
"""

from ftcore_transformers.callback import FtcoreTrainerCallback, attach

__all__ = ["FtcoreTrainerCallback", "attach"]
