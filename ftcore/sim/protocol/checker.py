"""The base class of all checkers of invariants."""

from collections.abc import Sequence

from ftcore.engine import actions as act
from ftcore.engine.orders import Order
from ftcore.events.envelope import Event, Fact
from ftcore.sim.protocol.environment import Environment
from ftcore.sim.protocol.saved_state import LoadedRound
from ftcore.sim.protocol.training import Gang, NodeWorkers
from ftcore.states.model import JobState


class Violation(Exception):
    """An invariant was violated."""


class Checker:
    """Base class: receives all occurrences; a subclass overrides the methods that it needs.

    Args:
        sim: the environment.
    """

    def __init__(self, sim: Environment) -> None:
        self.sim = sim

    def fail(self, text: str) -> None:
        """Raise ``Violation`` with the name of the checker."""
        raise Violation(f"{type(self).__name__}: {text}")

    def appended(self, event: Event) -> None:
        """An event is durable; the simulation's ``oracle`` includes its whole group."""

    def acknowledged(self, facts: list[Fact]) -> None:
        """An agent received the acknowledgement of these facts."""

    def obeyed(self, node: str, incarnation: str, order: Order, actions: act.Actions) -> None:
        """An agent received an order and takes these actions."""

    def stepped(self, gang: Gang) -> None:
        """A round completed a step."""

    def loaded(self, gang: Gang, done: LoadedRound) -> None:
        """A round loaded its registered state, or could not."""

    def stopping(self, ranks: NodeWorkers) -> None:
        """An agent is about to stop running workers."""

    def decided(self, group: Sequence[Event]) -> None:
        """A master has made the decisions for a fact."""

    def committed(self, address: str, state: JobState) -> None:
        """A master learned that a batch is durable; its state includes exactly that batch."""

    def ended(self) -> None:
        """The simulation has ended."""
