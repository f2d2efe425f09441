"""Machines of the ``transitions`` package, built from the rows: for inspection and for hooks of embedders.

House rules: views are derived; no decision reads them. ``Mirror`` receives the changes of the fold (``Change``) and
fires the same triggers on its models, which calls hooks such as ``on_enter_running``. A trigger that the rows ignore
or do not accept leaves a view unchanged. Only this module imports ``transitions``, and no module of ftcore imports
this one, so a job has no cost from it. Diagrams are drawn from the rows, see ``drawing.py``.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from transitions import Machine as TransitionsMachine

from ftcore.states.drawing import MACHINES
from ftcore.states.fold import Change
from ftcore.states.table import Machine, Row


class Model:
    """The model of one instance of a ``transitions`` machine; a subclass defines hooks.

    Hooks are ``on_enter_STATE(self, event)`` and ``on_exit_STATE(self, event)``; ``event.kwargs["change"]`` is the
    fold's ``Change``.

    Args:
        instance: name of the instance, for example ``node1`` or ``node1/0``.
    """

    state: str

    def __init__(self, instance: str) -> None:
        self.instance = instance


def build(machine: Machine, *models: Model) -> Any:
    """A ``transitions.Machine`` with the rows of a machine; guards become conditions.

    Triggers keep their names, with dots and slashes. ``model.trigger(name, context=...)`` fires one, passes the context
    to the guards, and returns whether a row was taken.

    Args:
        machine: the rows.
        models: the first models; ``add_model`` adds more.
    """
    view = TransitionsMachine(
        model=list(models),
        states=[str(state) for state in machine.states],
        initial=str(machine.initial),
        auto_transitions=False,
        ignore_invalid_triggers=True,
        send_event=True,
    )
    for row in machine.rows:
        conditions = _condition(machine, row) if row.guard else None
        view.add_transition(row.trigger, str(row.source), str(row.target), conditions=conditions)
    return view


def _condition(machine: Machine, row: Row) -> Callable[[Any], bool]:
    guard = machine.guards[row.guard]

    def holds(event: Any) -> bool:
        change: Change | None = event.kwargs.get("change")
        # For a change of the fold, the guard was evaluated there; the state may have changed since.
        return guard(event.kwargs.get("context")) if change is None else change.target is row.target

    return holds


class Mirror:
    """Keeps one model per machine instance in step with the fold and calls its hooks.

        class Node(views.Model):
            def on_enter_faulted(self, event):
                page_operator(self.instance)

        mirror = Mirror({"node": Node})
        mirror.follow(fold(state, event))

    An instance that starts again (a node that rejoined, the workers of a new round) gets its state from the fold. This
    is not a transition and calls no hook.

    Args:
        models: classes of models by name of the machine; other machines are not mirrored. None: every machine, without
            hooks.

    Raises:
        ValueError: no machine has this name.
    """

    def __init__(self, models: Mapping[str, type[Model]] | None = None) -> None:
        machines = {machine.name: machine for machine in MACHINES}
        self._classes = dict(models) if models is not None else dict.fromkeys(machines, Model)
        unknown = sorted(set(self._classes) - set(machines))
        if unknown:
            raise ValueError(f"unknown machine {', '.join(unknown)}; expected {', '.join(machines)}")
        self._views = {name: build(machines[name]) for name in self._classes}
        self.models: dict[tuple[str, str], Model] = {}

    def follow(self, changes: Iterable[Change]) -> None:
        """Apply the changes of one event to the models."""
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
