"""The phases of a step: what each hook adds to which phase, on the host and on a device."""

import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ftcore.shm import page
from ftcore.shm.phases import BACKWARD, COMMUNICATION, DATA, FORWARD, OPTIMIZER, OTHER, PHASES, PhaseBlock
from ftcore.worker import _boundary, _device_phases, _phase_hooks, _progress, _roles
from ftcore.worker._device_phases import PENDING_MAX, SAMPLE_EVERY, DevicePhases, find_device
from ftcore.worker._phases import BLOCK_STEPS, PhaseTimer

MS = 1_000_000


@pytest.fixture
def reader() -> Iterator[page.PageReader]:
    """The agent's side of a page."""
    fd = page.create()
    made = page.PageReader(fd)
    os.set_inheritable(fd, True)
    made.fd = fd  # type: ignore[attr-defined]
    yield made
    made.close()
    os.close(fd)


def clock_of(reader: page.PageReader, find: Callable[[], Any] = lambda: None) -> PhaseTimer:
    writer = page.PageWriter(reader.fd).phases  # type: ignore[attr-defined]
    return PhaseTimer(writer, find)


def run_steps(clock: PhaseTimer, count: int, now: int, *, slow: int = -1) -> int:
    """Steps of 100 ms: 5 other, 10 data, 20 forward, 30 own work and 25 waiting in backward, 10 optimizer."""
    for number in range(count):
        start = now
        clock.mark(OTHER, now := now + 5 * MS)
        clock.mark(DATA, now := now + 10 * MS)
        clock.mark(FORWARD, now := now + (20 if number != slow else 2000) * MS)
        clock.passed_back()
        clock.mark(BACKWARD, now := now + 30 * MS)
        clock.waited(15 * MS)
        now += 15 * MS
        clock.mark(COMMUNICATION, now := now + 10 * MS)
        clock.mark(OPTIMIZER, now := now + 10 * MS)
        found = clock.step_ended(now)
        if number != slow and found is not None:
            assert found == (75 * MS, now - start)
    return now


def test_a_block_has_the_medians_of_its_steps(reader: page.PageReader) -> None:
    """One slow step of ten, as for a save, leaves no trace; the first step is not measured."""
    clock = clock_of(reader)
    clock.step_ended(1)
    run_steps(clock, BLOCK_STEPS, 1, slow=4)
    (block,) = reader.blocks()
    assert block.phases == (10 * MS, 20 * MS, 30 * MS, 10 * MS, 5 * MS, 25 * MS)
    assert block == PhaseBlock(1, BLOCK_STEPS, False, 100 * MS, 75 * MS, block.phases)


def test_short_steps_are_sampled(reader: page.PageReader) -> None:
    """A block of many short steps measures some of them; its number of steps counts all."""
    clock, now, measured = clock_of(reader), 1, 0
    clock.step_ended(now)
    while not reader.blocks():
        measured += clock.measures
        clock.passed_back()
        clock.mark(BACKWARD, now := now + MS)
        clock.step_ended(now)
    (block,) = reader.blocks()
    assert block.steps == 250 and block.whole == MS
    assert 5 <= measured <= 20, "the hooks of most steps do nothing"


def test_long_steps_are_blocks_of_their_own(reader: page.PageReader) -> None:
    """A straggler among steps of a minute is not looked for in blocks of ten minutes."""
    clock, now = clock_of(reader), 1
    clock.step_ended(now)
    for _ in range(3):
        clock.passed_back()
        clock.mark(BACKWARD, now := now + 60_000 * MS)
        clock.step_ended(now)
    assert [block.steps for block in reader.blocks()] == [1, 1, 1]


def test_what_shows_no_waiting_is_not_measured(reader: page.PageReader) -> None:
    """A script without backward passes and collectives that we see may wait for others anywhere."""
    clock, now = clock_of(reader), 1
    clock.step_ended(now)
    found = [clock.step_ended(now + number * 100 * MS) for number in range(1, 30)]
    assert found == [None] * 29
    assert reader.blocks() == ()


def test_other_threads_add_nothing(reader: page.PageReader) -> None:
    """A thread that saves waits for other ranks, and a prefetching one for data, while the step goes on."""
    clock = clock_of(reader)
    clock.step_ended(1)

    def elsewhere() -> None:
        clock.waited(50 * MS)
        clock.mark(DATA, 40 * MS)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    clock.passed_back()
    assert clock.step_ended(100 * MS + 1) == (100 * MS, 100 * MS)


# -- devices


class Event:
    """A fake of ``torch.cuda.Event``: it completes when the test says so."""

    made = 0
    queried = 0

    def __init__(self, stream: "Stream") -> None:
        self.stream, self.at = stream, -1.0
        Event.made += 1

    def record(self) -> None:
        """Enter the stream after what was queued."""
        self.at = self.stream.queued

    def query(self) -> bool:
        """Whether the device has come so far."""
        return 0 <= self.at <= self.stream.done

    def elapsed_time(self, other: "Event") -> float:
        """Milliseconds between two completed events; the real one raises if one is not."""
        assert self.query() and other.query(), "an event that has not completed would raise"
        return other.at - self.at

    def synchronize(self) -> None:
        """Block; nothing of ours may."""
        raise AssertionError("synchronized")


class Stream:
    """The device's time line in milliseconds: what was queued, and what is done."""

    queued = 0.0
    done = 0.0
    captures = False

    def meter(self) -> DevicePhases:
        """A meter on this stream."""
        return DevicePhases(lambda: Event(self), lambda: self.captures)


def device_step(meter: DevicePhases, stream: Stream) -> list[tuple[int, ...]]:
    """A step of 100 ms on the device, of which 20 are a wait for an all-gather inside of the forward pass."""
    for phase, took in ((DATA, 5.0), (FORWARD, 15.0), (None, 20.0), (FORWARD, 10.0), (BACKWARD, 30.0), (OTHER, 20.0)):
        if phase is None:
            if meter.sampling:
                meter.wait_begins()
            stream.queued += took
            if meter.sampling:
                meter.wait_ends()
            continue
        stream.queued += took
        if meter.sampling and (phase, took) != (FORWARD, 15.0):
            meter.mark(phase)
    return meter.step_ended()


def test_device_times_are_read_when_their_events_have_completed() -> None:
    """Steps later, without a wait; the wait inside of a phase is communication, the rest of it stays in the phase."""
    stream = Stream()
    meter, found = stream.meter(), []
    for _ in range(3 * SAMPLE_EVERY):
        found += device_step(meter, stream)
    assert found == []
    stream.done = stream.queued
    found = device_step(meter, stream)
    expected = [0] * len(PHASES)
    expected[DATA], expected[FORWARD], expected[BACKWARD], expected[OTHER] = 5 * MS, 25 * MS, 30 * MS, 20 * MS
    expected[COMMUNICATION] = 20 * MS
    assert found == [tuple(expected)] * 2


def test_events_are_used_again_and_a_device_far_behind_is_not_measured() -> None:
    """The number of events is bounded, however far the host runs ahead."""
    stream, before = Stream(), Event.made
    meter = stream.meter()
    for number in range(100 * SAMPLE_EVERY):
        device_step(meter, stream)
        if number > 50 * SAMPLE_EVERY:
            stream.done = stream.queued
    assert Event.made - before <= 8 * (PENDING_MAX + 1)


def test_a_captured_step_and_a_failing_device_are_not_measured() -> None:
    """No event is recorded while a graph is captured; an error of the device's API ends the measuring only."""
    stream = Stream()
    meter = stream.meter()
    stream.captures, before = True, Event.made
    for _ in range(2 * SAMPLE_EVERY):
        device_step(meter, stream)
    assert Event.made == before and not meter.broken

    def fails() -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    meter = DevicePhases(lambda: Event(stream), fails)
    for _ in range(2 * SAMPLE_EVERY):
        assert device_step(meter, stream) == []
    assert meter.broken


def test_device_times_replace_those_of_the_host(reader: page.PageReader) -> None:
    """The device is found at the end of a block; if it fails, the host's times return."""
    stream = Stream()
    meter = stream.meter()
    clock = clock_of(reader, lambda: meter)
    clock.step_ended(1)
    now = run_steps(clock, BLOCK_STEPS, 1)
    assert clock.device is meter and not reader.blocks()[-1].device
    for _ in range(2 * SAMPLE_EVERY + BLOCK_STEPS):
        now += 100 * MS
        if clock.measures:
            stream.queued += 40
            clock.mark(FORWARD, now)
            stream.queued += 60
            clock.mark(BACKWARD, now)
        stream.done = stream.queued
        clock.step_ended(now)
    block = reader.blocks()[-1]
    assert block.device and (block.whole, block.phases[FORWARD], block.phases[BACKWARD]) == (100 * MS, 40 * MS, 60 * MS)
    meter.broken = True
    now = run_steps(clock, 2 * BLOCK_STEPS, now)
    now = run_steps(clock, BLOCK_STEPS, now)
    assert clock.device is None and not reader.blocks()[-1].device


def test_a_device_is_used_once_the_script_uses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking must not start CUDA."""
    used = types.SimpleNamespace(is_initialized=lambda: False, Event=Event, is_current_stream_capturing=lambda: False)
    monkeypatch.setitem(sys.modules, "torch.cuda", used)  # type: ignore[arg-type]
    assert find_device() is None
    used.is_initialized = lambda: True
    assert isinstance(find_device(), DevicePhases)
    monkeypatch.delitem(sys.modules, "torch.cuda")
    assert find_device() is None


def test_waits_of_the_compute_stream_are_communication(monkeypatch: pytest.MonkeyPatch) -> None:
    """FSDP's wait for an all-gather counts, waits of its own streams do not."""
    stream, side = Stream(), Stream()
    cuda = types.SimpleNamespace(current_stream=lambda: stream)
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)  # type: ignore[arg-type]
    clock = PhaseTimer(None)
    clock.device = meter = stream.meter()
    meter.sampling = True
    meter.mark(OTHER)
    waits = _phase_hooks.stream_waits(clock, lambda waiting, event: setattr(waiting, "queued", waiting.queued + 7))
    waits(stream, None)
    waits(side, None)
    stream.queued += 3
    meter.mark(BACKWARD)
    stream.done = stream.queued
    (phases,) = meter.step_ended()
    assert (phases[COMMUNICATION], phases[BACKWARD]) == (7 * MS, 3 * MS)


# -- hooks of torch


@pytest.fixture
def group(tmp_path: Any) -> Iterator[None]:
    """A process group of one rank."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Recorder:
    """Stands for a clock: keeps the phases that end."""

    device = None
    measures = True

    def __init__(self) -> None:
        self.ended: list[int] = []
        self.waits = 0

    def mark(self, phase: int, now: int) -> None:
        """A phase ends."""
        self.ended.append(phase)

    def waited(self, nanoseconds: int) -> None:
        """Waiting for other ranks."""
        self.waits += 1

    def passed_back(self) -> None:
        """A backward pass."""


def passed(recorder: Recorder, loss: Any, **options: Any) -> None:
    marks = _phase_hooks.PassMarks(recorder, lambda function: function)  # type: ignore[arg-type]
    marks.begins(0, loss)
    torch.autograd.backward(loss, **options)
    marks.ends(0)


@pytest.mark.usefixtures("group")
def test_the_wait_of_ddp_is_told_from_the_backward_pass() -> None:
    """Our callback of the autograd engine runs before DDP's, which waits for the other ranks."""
    recorder, order = Recorder(), []
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))

    def reduces(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future.then(lambda done: order.append(list(recorder.ended)) or done.value())

    model.register_comm_hook(None, reduces)
    passed(recorder, model(torch.ones(1, 2)).sum())
    assert recorder.ended == [FORWARD, BACKWARD, COMMUNICATION]


@pytest.mark.usefixtures("group")
def test_passes_without_a_graph_and_repeated_passes_leave_nothing() -> None:
    """A leaf, a list of tensors, a graph that is kept: no hook of an earlier pass remains."""
    recorder = Recorder()
    passed(recorder, torch.ones((), requires_grad=True))
    assert recorder.ended == [FORWARD, BACKWARD]
    value = torch.ones((), requires_grad=True) * 2
    for _ in range(3):
        recorder.ended.clear()
        passed(recorder, [value], retain_graph=True)
        assert recorder.ended == [FORWARD, BACKWARD, COMMUNICATION]


def test_a_pass_inside_of_a_pass_belongs_to_it() -> None:
    """As of activations that are computed again."""
    recorder = Recorder()
    marks = _phase_hooks.PassMarks(recorder, lambda function: function)  # type: ignore[arg-type]
    marks.begins(0, ())
    marks.begins(0, ())
    marks.ends(0)
    marks.ends(0)
    assert recorder.ended == [FORWARD, BACKWARD]


@pytest.mark.usefixtures("group")
def test_collectives_and_data_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait of Python code for a collective, and the loader's next batch; an error passes."""
    recorder = Recorder()
    for owner, name, wrap in _phase_hooks._targets():
        monkeypatch.setattr(owner, name, wrap(recorder, getattr(owner, name)))  # type: ignore[arg-type]
    dist.all_reduce(torch.ones(1))
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert recorder.waits == 1
    assert work is not None and work.wait()
    dist.barrier()
    assert recorder.waits == 3
    assert len(list(torch.utils.data.DataLoader(torch.ones(4, 1), batch_size=None))) == 4
    assert recorder.ended == [OTHER, DATA] * 5


# -- roles


def test_ranks_of_one_stage_have_one_role() -> None:
    """By the shapes of the parameters, in any order; a script's own name stays."""
    one, same, other = (torch.optim.SGD(torch.nn.Linear(n, 2).parameters()) for n in (3, 3, 4))
    assert _roles.role_of(one) == _roles.role_of(same) != _roles.role_of(other)
    assert _roles.role_of(object()) == ""


def test_a_declared_role_stays(reader: page.PageReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is declared before the first step or after it."""
    counter = _progress.ProgressCounter(page.PageWriter(reader.fd))  # type: ignore[attr-defined]
    monkeypatch.setattr(_progress, "_opened", counter)
    monkeypatch.setattr(_boundary, "_of_process", None)
    counter.works_as("2 tensors, 0")
    assert reader.role() == ("2 tensors, 0", False)
    _roles.role("stage 1")
    counter.works_as("2 tensors, 0")
    assert reader.role() == ("stage 1", True)
    for wrong in ("", "x" * 49):
        with pytest.raises(ValueError, match="1 to 48 bytes"):
            _roles.role(wrong)


def test_constants_of_devices_and_blocks_fit() -> None:
    """A block of ten steps has a measured one on a device."""
    assert _device_phases.SAMPLE_EVERY < BLOCK_STEPS
