"""Machines of the ``transitions`` package, built from the rows: for inspection and for embedders' hooks.

House rules: a view is derived and never asked. The fold on the rows is the live machine; ``Mirror`` is told what the
fold did (``Change``) and fires the same triggers on its models, so that callbacks such as ``on_enter_running`` are
called. What the rows ignore, or do not accept, leaves a view as it is. Nothing else imports this module, so a job pays
nothing for it; it is the only one that imports ``transitions``. Diagrams are drawn from the rows, see ``drawing.py``.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from transitions import Machine as TransitionsMachine

from ftcore.states.drawing import MACHINES
from ftcore.states.fold import Change
from ftcore.states.table import Machine, Row


class Model:
    """What a ``transitions`` machine puts its state and triggers on; subclass it to have hooks called.

    ``on_enter_STATE(self, event)`` and ``on_exit_STATE(self, event)`` are called by name; ``event.kwargs["change"]`` is
    the fold's ``Change``.

    Args:
        instance: which one it stands for, as ``node1`` or ``node1/0``.
    """

    state: str

    def __init__(self, instance: str) -> None:
        self.instance = instance


def build(machine: Machine, *models: Model) -> Any:
    """A ``transitions.Machine`` with the rows of a machine; its guards are conditions.

    Triggers keep their names, dots and slashes included: fire them with ``model.trigger(name, context=...)``, where the
    context is what the guards look at. It returns whether a row was taken.

    Args:
        machine: the rows.
        models: what gets state and triggers; more can be added with ``add_model``.
    """
    made = TransitionsMachine(
        model=list(models),
        states=[str(state) for state in machine.states],
        initial=str(machine.initial),
        auto_transitions=False,
        ignore_invalid_triggers=True,
        send_event=True,
    )
    for row in machine.rows:
        conditions = _condition(machine, row) if row.guard else None
        made.add_transition(row.trigger, str(row.source), str(row.target), conditions=conditions)
    return made


def _condition(machine: Machine, row: Row) -> Callable[[Any], bool]:
    guard = machine.guards[row.guard]

    def holds(event: Any) -> bool:
        change: Change | None = event.kwargs.get("change")
        # In step with the fold the guard was asked already, on a state that has moved on since.
        return guard(event.kwargs.get("context")) if change is None else change.target is row.target

    return holds


class Mirror:
    """Keeps one model per machine instance in step with the fold, and has its hooks called.

        class Node(views.Model):
            def on_enter_faulted(self, event):
                page_somebody(self.instance)

        mirror = Mirror({"node": Node})
        mirror.follow(fold(state, event))

    An instance that begins anew (a node that joined again, the workers of a new round) begins where the fold says; that
    is no transition and calls no hook.

    Args:
        models: classes of models by name of machine; machines that are not named are not mirrored. All, with plain
            models, if None.

    Raises:
        ValueError: there is no such machine.
    """

    def __init__(self, models: Mapping[str, type[Model]] | None = None) -> None:
        machines = {machine.name: machine for machine in MACHINES}
        self._classes = dict(models) if models is not None else dict.fromkeys(machines, Model)
        unknown = sorted(set(self._classes) - set(machines))
        if unknown:
            raise ValueError(f"no machine is called {', '.join(unknown)}; there are {', '.join(machines)}")
        self._views = {name: build(machines[name]) for name in self._classes}
        self.models: dict[tuple[str, str], Model] = {}

    def follow(self, changes: Iterable[Change]) -> None:
        """Move the models along with what one event did."""
        for change in changes:
            view = self._views.get(change.machine)
            if view is not None:
                self._follow(view, change)

    def _follow(self, view: Any, change: Change) -> None:
        key = (change.machine, change.instance)
        model = self.models.get(key)
        if model is None:
            model = self.models[key] = self._classes[change.machine](change.instance)
            view.add_model(model, initial=str(change.source))
        elif model.state != change.source:
            view.set_state(str(change.source), model)
        if change.trigger in view.events:
            view.events[change.trigger].trigger(model, change=change)
        expected = change.source if change.target is None else change.target
        assert model.state == expected, f"{change}: the view is in {model.state}"
