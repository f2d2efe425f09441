"""Hosts and processes: what may die, freeze and wake again at any moment.

House rules: whatever a process does it does through its own ``after``, so that a dead process does nothing and a frozen
one does nothing until it wakes, and then all that came meanwhile, late and in order.
"""

from ftcore.sim.clock import Scheduler, Timer, Work


class Host:
    """A machine.

    Args:
        name: its name; nodes and masters on it are reached by this.
        skew_ns: how far its wall clock is off.
        switch: what it stands behind; empty: it does not say.
    """

    def __init__(self, name: str, skew_ns: int, switch: str = "") -> None:
        self.name = name
        self.switch = switch
        self.skew_ns = skew_ns
        self.up = True
        self.bad = False
        self.disk_full = False
        self.processes: list[Process] = []
        self.outboxes: dict[str, list[tuple[str, int, bytes]]] = {}

    @property
    def frozen(self) -> bool:
        """Nothing on it moves."""
        return any(process.frozen for process in self.processes)


class Process:
    """A process on a host.

    Args:
        clock: virtual time.
        host: where it runs.
        name: for the trace.
    """

    def __init__(self, clock: Scheduler, host: Host, name: str) -> None:
        self.clock = clock
        self.host = host
        self.name = name
        self.alive = True
        self.frozen = False
        self._held: list[Work] = []
        host.processes.append(self)

    def after(self, delay_ns: int, work: Work) -> Timer:
        """Do something later, if it lives then and as soon as it is awake."""
        return self.clock.after(delay_ns, lambda: self.wake_for(work))

    def wake_for(self, work: Work) -> None:
        """Do something now, or on waking."""
        if not self.alive:
            return
        if self.frozen:
            self._held.append(work)
        else:
            work()

    def freeze(self, duration_ns: int) -> None:
        """Stop moving for a while."""
        if self.alive and not self.frozen:
            self.frozen = True
            self.clock.after(duration_ns, self._thaw)

    def _thaw(self) -> None:
        self.frozen = False
        held, self._held = self._held, []
        for work in held:
            self.wake_for(work)

    def kill(self) -> None:
        """End at once."""
        if self.alive:
            self.alive = False
            self._held.clear()
            self.host.processes.remove(self)
            self.died()

    def died(self) -> None:
        """What the world sees of the end of this process; for subclasses."""
