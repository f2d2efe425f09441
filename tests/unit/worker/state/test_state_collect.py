"""Names and slices of tensors, what cannot be registered, and a script outside of ftrun."""

import copy
import itertools
import os
import subprocess
import sys
import threading
from collections import Counter, OrderedDict
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

from ftcore.worker import Slice
from ftcore.worker.state import replicas, trees
from ftcore.worker.state.collect import StateCollection
from ftcore.worker.state.layouts import FlatRange, boxes_of
from ftcore.worker.state.optimizer_part import expected_bytes
from ftcore.worker.state.parts import ModulePart


def net() -> nn.Module:
    inner = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    return nn.Sequential(OrderedDict(body=inner, shared=inner[0], head=nn.Linear(4, 2)))


def collected(**objects: Any) -> StateCollection:
    found = StateCollection()
    found.register(objects)
    return found


def names(found: StateCollection) -> list[str]:
    return [entry.piece.name for entry in found.collect().entries]


@pytest.mark.parametrize("wrapped", ["plain", "compiled", "checkpointed"])
def test_names_are_those_of_torch(wrapped: str) -> None:
    """Without wrappers, and once for a tensor with several names."""
    model: Any = net()
    if wrapped == "compiled":
        model = torch.compile(model)
    elif wrapped == "checkpointed":
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        model.body[1] = checkpoint_wrapper(model.body[1])
    optimizer = torch.optim.Adam(model.parameters())
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    found = collected(optimizer=optimizer, model=model)
    tied = found.collect().tied
    assert tied == {"model/shared.weight": "model/body.0.weight", "model/shared.bias": "model/body.0.bias"}
    torchs = {f"model/{name}" for name in get_model_state_dict(model)}
    state = get_optimizer_state_dict(model, optimizer)["state"]
    torchs |= {f"optimizer/state/{name}/{key}" for name, each in state.items() for key in each}
    assert {*names(found), *tied} == torchs


@pytest.mark.parametrize("size", [(7,), (3, 4), (2, 3, 4), (1, 5, 2), (4, 1), ()])
def test_flat_ranges_become_boxes(size: tuple[int, ...]) -> None:
    """Every range of a flattened tensor is a few boxes, in order, that are views of its elements."""
    whole = torch.arange(prod(size)).reshape(size)
    for start, end in itertools.combinations(range(whole.numel() + 1), 2):
        data = whole.flatten()[start:end].clone()
        boxes = boxes_of(data, "x", FlatRange(size, start, end - start, data))
        assert len(boxes) <= max(1, 2 * len(size) - 1)
        seen = torch.cat([box.data.flatten() for box in boxes])
        assert torch.equal(seen, data)
        for box in boxes:
            part = tuple(slice(begin, begin + count) for begin, count in zip(box.offset, box.shape, strict=True))
            assert torch.equal(whole[part], box.data)


@pytest.mark.parametrize(
    ("objects", "error", "message"),
    [
        ({"state": {"a": [{"b": {1, 2}}]}}, ValueError, r"state\['a'\]\[0\]\['b'\].*set"),
        ({"state": {"lock": threading.Lock()}}, ValueError, "lock.*_thread.lock"),
        ({"state": {"m": nn.Linear(1, 1)}}, ValueError, "state/m cannot be saved: register a module"),
        ({"model": nn.Linear(1, 1, device="meta")}, ValueError, r"model/weight has no data.*to_empty"),
        ({"state": {"s": torch.eye(3).to_sparse()}}, ValueError, "state/s cannot be saved: its layout"),
        ({"state": {"q": torch.zeros(3, dtype=torch.float8_e4m3fnuz)}}, ValueError, "state/q.*float8_e4m3fnuz"),
        ({"data": object()}, TypeError, "data cannot be registered: it is a builtins.object"),
        ({"count": 3}, TypeError, "count cannot be registered"),
        ({"rng": {}}, ValueError, "the name 'rng'"),
        ({"a/b": {}}, ValueError, "the name 'a/b'"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_its_path(
    objects: dict[str, Any], error: type[Exception], message: str
) -> None:
    """At once, and nothing of it is registered."""
    found = StateCollection()
    with pytest.raises(error, match=message):
        found.register({"fine": {"x": 1}, **objects})
    assert found.parts == {}


def test_an_optimizer_that_splits_itself_is_refused() -> None:
    """Its state would be lost."""

    class ZeroRedundancyOptimizer(torch.optim.SGD):
        pass

    with pytest.raises(ValueError, match="use fully_shard"):
        collected(optimizer=ZeroRedundancyOptimizer([torch.zeros(1, requires_grad=True)]))


def test_a_slice_is_inside_its_tensor() -> None:
    """A wrong declaration is refused where it is made."""
    with pytest.raises(ValueError, match="not inside"):
        Slice(torch.zeros(3), size=(5,), offset=(3,))
    with pytest.raises(ValueError, match="not inside"):
        Slice(torch.zeros(3), size=(5, 1), offset=(0,))


def test_replaced_objects_are_collected_again() -> None:
    """A parameter, its memory, a buffer, a layer, or state of an optimizer: of a parameter, or all of it."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = collected(model=model, optimizer=optimizer)
    before = found.moment(1).collected
    assert found.moment(2).collected is before

    def momentum() -> None:
        for param in model.parameters():
            param.grad = torch.ones_like(param)
        optimizer.step()

    changes = [
        lambda: setattr(model.head, "weight", nn.Parameter(torch.ones(2, 4))),
        lambda: setattr(model.head.bias, "data", torch.ones(2)),
        lambda: model.body[1].register_buffer("running_mean", torch.ones(4)),
        lambda: model.add_module("tail", nn.Linear(2, 2)),
        lambda: model.head.register_buffer("scale", torch.ones(1)),
        momentum,
        lambda: optimizer.state[model.body[0].weight].update(momentum_buffer=torch.zeros(4, 3)),
        lambda: optimizer.state.update({model.body[0].weight: {"momentum_buffer": torch.zeros(4, 3)}}),
        lambda: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())),
    ]
    for change in changes:
        change()
        after = found.moment(3).collected
        assert after is not before
        assert found.moment(4).collected is after
        before = after
    assert "model/tail.weight" in names(found) and "optimizer/state/body.0.weight/momentum_buffer" in names(found)


@pytest.mark.parametrize("kind", ["Adam", "SGD", "RMSprop", "Adagrad", "LBFGS"])
def test_the_state_of_an_optimizer_is_foreseen(kind: str) -> None:
    """So that memory is requested before the first step; nothing of the optimizer changes."""
    model = net()
    optimizer = getattr(torch.optim, kind)(model.parameters(), **({"momentum": 0.9} if kind == "SGD" else {}))
    expected = expected_bytes(optimizer) if not optimizer.state else 0
    if kind == "Adagrad":
        return  # it has its state from the start
    assert not optimizer.state
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step(lambda: torch.zeros(())) if kind == "LBFGS" else optimizer.step()
    entries = [e for e in collected(model=model, optimizer=optimizer).collect().entries if "/state/" in e.piece.name]
    assert expected >= sum(entry.piece.bytes for entry in entries)


def test_groups_are_numbered_by_their_first_rank() -> None:
    """The first rank of a group on each node stages, the first of all persists."""
    groups = replicas.numbered(["b", "a", "b", "a"])
    assert groups == (0, 1, 0, 1)
    places = [replicas.ReplicaGroups(rank, groups, (0, 0, 1, 1)) for rank in range(4)]
    assert [each.members for each in places] == [(0, 2), (1, 3), (0, 2), (1, 3)]
    assert all(each.stages for each in places)
    assert [each.persists for each in places] == [True, True, False, False]


def test_a_process_that_was_killed_stages_nothing() -> None:
    """A zombie is no living rank; the next rank of the group on the node takes its place."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    groups = replicas.ReplicaGroups(1, (0, 0), (0, 0), (child.pid, 0))
    assert not groups.stages_now()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert groups.stages_now()
    child.communicate()
    assert groups.stages_now()


def test_loaded_values_have_the_types_of_the_current_ones() -> None:
    """A Counter stays one; references into a registered dict stay valid."""
    from ftcore.worker.state.parts import assign

    assert type(trees.same_types({"a": {1: 2}}, {"a": Counter()})["a"]) is Counter
    inner = {"x": 1}
    outer: dict[str, Any] = {"inner": inner, "list": [1, {"y": 1}], "gone": 1}
    held = outer["list"]
    assign(outer, {"inner": {"x": 2}, "list": [5], "new": 3})
    assert outer == {"inner": {"x": 2}, "list": [5], "new": 3}
    assert outer["inner"] is inner and outer["list"] is held


def test_outside_of_ftrun_a_script_only_counts(tmp_path: Path) -> None:
    """Nothing is registered or saved, torch is not imported by ftcore, batches come from the data."""
    code = """
import sys
import ftcore.worker as ft
job = ft.join()
assert job is ft.join()
job.register(model=object(), data=[10, 20])
@job.on_round
def build(): print("built")
seen = []
for step in job.steps(until=5, save_every=2, persist_every=3):
    with step:
        seen.append((step.number, step.batch, step.batch))
        step.report(loss=1.0, grad_norm=2.0)
job.save(5)
assert job.load() == 0
print(seen, [name for name in ("torch", "numpy", "msgspec") if name in sys.modules])
print([step.number for step in job.steps(until=9, start=7)])
try:
    for step in job.steps(until=1):
        with step:
            raise KeyError("x")
except KeyError:
    print("raised")
try:
    job.steps(until=-1)
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "built",
        "[(1, 10, 10), (2, 20, 20), (3, 10, 10), (4, 20, 20), (5, 10, 10)] []",
        "[8, 9]",
        "raised",
        "expected numbers of at least 0, or 'auto' for persist_every; found -1, 1, auto, 0, 0",
    ]


def in_a_round(found: StateCollection, seed: int) -> nn.Module:
    """What a function of ``on_round`` registers."""
    torch.manual_seed(seed)
    made = net()
    found.register({"net": made, "optimizer": torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.9)}, rebuilt=True)
    return made


def test_objects_of_a_round_are_replaced_in_the_next_one() -> None:
    """In the same order, also if the round could not be entered at first; those that stay are the same objects."""
    found = collected(before=torch.Generator())
    in_a_round(found, 1)
    found.register({"after": {"count": 3}})
    before, parts = names(found), list(found.parts)
    for _ in range(2):  # the first time, another fault comes meanwhile
        found.leave_round()
        assert list(found.parts) == ["before", "after"]
    made = in_a_round(found, 2)
    found.enter_round()
    assert (names(found), list(found.parts)) == (before, parts)
    assert found.parts["net"].module is made
    found.leave_round()
    in_a_round(found, 3)
    found.enter_round()
    assert names(found) == before


def test_another_round_registers_the_same_names() -> None:
    found = StateCollection()
    in_a_round(found, 1)
    found.leave_round()
    found.register({"net": net()}, rebuilt=True)
    with pytest.raises(ValueError, match=r"other names than in the round before: optimizer$"):
        found.enter_round()


def test_a_collection_without_such_objects_stays() -> None:
    found = collected(net=net())
    before = found.collected
    found.leave_round()
    found.enter_round()
    assert found.collected is before


def test_only_what_outlives_a_round_must_not_refer_to_groups() -> None:
    """A sharded model that is made in each round may."""

    class FlatParameter(nn.Parameter):
        pass

    sharded = nn.Linear(2, 2)
    sharded.weight = FlatParameter(torch.ones(2, 2))
    for rebuilt in (True, False):
        found = StateCollection()
        found.parts["net"] = ModulePart("net", sharded)
        found._rebuilt = {"net"} if rebuilt else set()
        assert found.refers_to_groups() is not rebuilt
