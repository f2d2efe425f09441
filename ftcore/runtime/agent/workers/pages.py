"""Reads a worker's progress page into the data of the port."""

from ftcore.ports import Progress
from ftcore.shm.page import PageReader


def progress_of(page: PageReader) -> Progress | None:
    """The content of a page; None: the worker has completed no step."""
    sample = page.read()
    if sample is None:
        return None
    return Progress(
        steps=sample.steps,
        step=sample.step,
        absolute=sample.absolute,
        mono=sample.mono,
        loss=sample.loss,
        findings=page.findings(),
        saves=page.saves(),
        paced=sample.paced,
        own_s=sample.own / 1e9,
        whole_s=sample.whole / 1e9,
        abilities=page.orders.read().abilities,
    )
