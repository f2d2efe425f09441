"""Checkpoints: layout, files, storage, verification. No torch: the keeper, ``ftctl`` and the worker share this."""
