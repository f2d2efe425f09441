"""A worker's progress page, as its supervisor uses it."""

import os
from collections.abc import Mapping

from ftcore.ports import Progress, Signs
from ftcore.shm import page
from ftcore.shm.boundary import BoundaryOrders

__all__ = ["WorkerPage"]


class WorkerPage:
    """The progress page of one worker: shared memory in which ``ftcore.worker`` reports, and a supervisor reads.

    A supervisor creates one for each worker. The worker inherits the descriptor ``fd`` under the same number (argument
    ``pass_fds`` of ``subprocess``), and has the variables of ``env`` in its environment. A worker that reports nothing
    leaves the page empty.

    Attributes:
        fd: the page's descriptor.
        env: variables by which the worker finds it.

    Raises:
        OSError: the process has too many open files, or the machine has no memory left.
    """

    fd: int
    env: Mapping[str, str]

    def __init__(self) -> None:
        self.fd = page.create()
        self.env = {page.PAGE_FD_ENV: str(self.fd)}
        self._reader = page.PageReader(self.fd)

    @property
    def orders(self) -> BoundaryOrders:
        """Orders to the worker at its step boundaries."""
        return self._reader.orders

    def progress(self) -> Progress | None:
        """What the worker has reported; None: it has completed no step."""
        sample = self._reader.read()
        if sample is None:
            return None
        role, declared = self._reader.role()
        return Progress(
            steps=sample.steps,
            step=sample.step,
            absolute=sample.absolute,
            mono=sample.mono,
            loss=sample.loss,
            findings=self._reader.findings(),
            saves=self._reader.saves(),
            paced=sample.paced,
            own_s=sample.own / 1e9,
            whole_s=sample.whole / 1e9,
            abilities=self._reader.orders.read().abilities,
            blocks=self._reader.blocks(),
            role=role,
            role_declared=declared,
        )

    def signs(self) -> Signs:
        """The worker's signs of life."""
        life = self._reader.life()
        return Signs(life.active, life.ended, life.timeout, self._reader.sections())

    def release_fd(self) -> None:
        """Close the descriptor in this process, once the worker has inherited it; the page stays readable."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def close(self) -> None:
        """Release the page; it cannot be read any more."""
        self.release_fd()
        self._reader.close()
