"""ftcore for Lightning.

    trainer = Trainer(max_steps=10_000, callbacks=[FtcoreCallback()])
    trainer.fit(model, dataloader)

| part | module |
|---|---|
| the callback: steps, losses, boundaries, saves, the end | ``callback`` |
| the trainer's progress as registered state | ``progress`` |
| the place in the training data | ``place`` |

Outside ``ftrun`` the callback changes nothing, so the script also runs under torchrun. Lightning's own
``TorchElasticEnvironment`` recognizes the workers of ``ftrun``: another one is not needed.
"""

from ftcore_lightning.callback import FtcoreCallback

__all__ = ["FtcoreCallback"]
