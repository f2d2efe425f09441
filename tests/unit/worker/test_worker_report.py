"""Tests of a script's reports as its agent reads them: findings, checkpoints, and no harm to the training."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import ftcore.worker
from ftcore.faults.detectors import loss, norm
from ftcore.shm import page
from ftcore.worker import _environment, _progress, _watch

CURVE = [3.0 + 0.01 * (step % 7) for step in range(200)]


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[page.PageReader]:
    """The agent's side of this process's page."""
    fd = page.create()
    monkeypatch.setattr(_progress, "_opened", _progress.ProgressCounter(page.PageWriter(fd)))
    made = page.PageReader(fd)
    yield made
    made.close()
    os.close(fd)


def report(losses: list[float], first: int = 1) -> None:
    for step, value in enumerate(losses, start=first):
        ftcore.worker.report(step, loss=value)


def test_a_spike_is_left_on_the_page(reader: page.PageReader) -> None:
    """The finding has the step, the value and the usual value; ordinary steps cause none."""
    report(CURVE)
    assert reader.findings() == ()
    report([30.0], first=201)
    (found,) = reader.findings()
    assert (found.number, found.kind, found.step, found.since, found.value) == (1, "loss-spike", 201, 201, 30.0)
    assert found.usual == pytest.approx(3.03, abs=0.01)
    assert found.score > found.limit == loss.LIMIT


def test_what_is_not_a_number_is_told_from_the_first_step_on(reader: page.PageReader) -> None:
    """A NaN is a finding before anything is learned, and all of its steps belong to one episode."""
    report([math.nan, math.inf])
    assert [(found.kind, found.step, found.since) for found in reader.findings()] == [
        ("loss-nan", 1, 1),
        ("loss-nan", 2, 1),
    ]
    sample = reader.read()
    assert sample is not None
    assert sample.step == 2


def test_norms_have_no_threshold_unless_one_is_set(reader: page.PageReader) -> None:
    """By default a large norm is compared with earlier ones only; a threshold finds it at once, and NaN is over it."""
    ftcore.worker.report(1, grad_norm=50.0)
    assert reader.findings() == ()
    ftcore.worker.watch(norm_threshold=3.0, norm_limit=None)
    ftcore.worker.report(2, grad_norm=2.9)
    ftcore.worker.report(3, grad_norm=3.0)
    ftcore.worker.report(4, grad_norm=math.nan)
    assert [(found.kind, found.step, found.usual) for found in reader.findings()] == [
        ("norm", 3, 3.0),
        ("norm", 4, 3.0),
    ]


def test_a_step_that_is_computed_again_is_told_once(reader: page.PageReader) -> None:
    """The same step over the threshold again is tolerated."""
    ftcore.worker.watch(norm_threshold=3.0)
    for _ in range(3):
        ftcore.worker.report(5, grad_norm=4.0)
    assert len(reader.findings()) == 1


def test_a_loss_that_is_known_before_the_end_of_the_step_stays(reader: page.PageReader) -> None:
    """The same step again without a loss neither counts a step nor removes the loss; the next step has none."""
    ftcore.worker.report(7, loss=1.5, grad_norm=2.0)
    ftcore.worker.report(7)
    sample = reader.read()
    assert sample is not None
    assert (sample.steps, sample.step, sample.loss) == (1, 7, 1.5)
    ftcore.worker.report(8)
    sample = reader.read()
    assert sample is not None
    assert (sample.steps, sample.step, sample.loss) == (2, 8, None)


def test_losses_can_be_left_unwatched(reader: page.PageReader) -> None:
    """``loss_limit=None`` switches off the check for NaN, too."""
    ftcore.worker.watch(loss_limit=None)
    report([*CURVE, 300.0, math.nan])
    assert reader.findings() == ()


def test_another_limit_and_warm_up(reader: page.PageReader) -> None:
    """With a higher limit a small spike is not reported; with a shorter start-up samples are judged earlier."""
    ftcore.worker.watch(loss_limit=1000.0)
    report([*CURVE, 6.0])
    assert reader.findings() == ()
    ftcore.worker.watch(warmup_steps=0)
    report([*CURVE[:50], 6.0])
    assert [found.step for found in reader.findings()] == [51]


def test_detectors_forget_what_a_rollback_has_undone(reader: page.PageReader) -> None:
    """Settings stay. A loss that fell meanwhile is no spike when it is what it was before."""
    ftcore.worker.watch(warmup_steps=0)
    report([value / 10 for value in CURVE])
    _progress.progress().resumed_at(100)
    report(CURVE, first=101)
    assert reader.findings() == ()
    report([30.0], first=301)
    assert [found.step for found in reader.findings()] == [301]
    _progress.progress().resumed_at(301)  # the step that failed is the next one: nothing is undone
    report([30.0], first=302)
    assert [found.step for found in reader.findings()] == [301, 302]


@pytest.mark.parametrize("wrong", [{"loss_limit": 0.0}, {"norm_limit": -1.0}, {"norm_threshold": 0.0}])
def test_a_setting_that_makes_no_sense_is_refused(reader: page.PageReader, wrong: dict[str, float]) -> None:
    """A limit that is not over 0 is refused at once."""
    with pytest.raises(ValueError, match=r"threshold|expected"):
        ftcore.worker.watch(**wrong)  # type: ignore[arg-type]


def test_a_watch_that_fails_is_switched_off(reader: page.PageReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in a detector costs its findings, never the training; steps are still counted."""

    def fail(self: object, step: int, value: float) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(_watch.LossDetector, "observe", fail)
    report([1.0, 2.0, 3.0])
    sample = reader.read()
    assert sample is not None
    assert (sample.step, sample.loss) == (3, 3.0)


def test_a_checkpoint_is_left_on_the_page(reader: page.PageReader) -> None:
    """The note has step, path, seconds and the number of kept checkpoints."""
    ftcore.worker.saved(100, "s3://bucket/100", seconds=2.5, kept=3)
    ftcore.worker.saved(200)
    assert [(saved.step, saved.path, saved.seconds, saved.kept) for saved in reader.saves()] == [
        (100, "s3://bucket/100", 2.5, 3),
        (200, "", 0.0, 0),
    ]


@pytest.mark.parametrize("wrong", [{"step": -1}, {"kept": -1}, {"seconds": math.nan}, {"seconds": math.inf}])
def test_a_checkpoint_of_nonsense_is_refused(wrong: dict[str, float]) -> None:
    """Numbers below 0 are refused under ``ftrun`` and outside of it."""
    with pytest.raises(ValueError, match="of at least 0"):
        ftcore.worker.saved(**{"step": 1, **wrong})  # type: ignore[arg-type]


def test_the_defaults_are_the_detectors_own() -> None:
    """The defaults of ``watch`` are those of ``ftctl spikes``."""
    assert (_progress.LOSS_LIMIT, _progress.NORM_LIMIT) == (loss.LIMIT, norm.SPIKE_LIMIT)
    assert _progress.WARMUP_STEPS == loss.WARMUP_STEPS == norm.WARMUP_STEPS


def test_outside_ftrun_nothing_is_loaded_and_nothing_happens() -> None:
    """All calls return, and ``report`` does not import the detectors."""
    code = (
        "import sys, ftcore.worker as w; w.report(1, loss=float('nan'), grad_norm=1.0); w.saved(1); "
        "print('ftcore.faults' in sys.modules); w.watch(norm_threshold=3.0); w.report(2, loss=1.0)"
    )
    env = {name: value for name, value in os.environ.items() if name != page.PAGE_FD_ENV}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("False\n", "", 0)


def test_without_storage_the_end_waits_for_no_checkpoint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job without ``--checkpoints`` writes none: ``flush`` waits for the copy in memory, and says nothing."""

    class Double:
        flushed = False

        def flush(self) -> None:
            self.flushed = True

        def written(self, within_s: float) -> list[str]:
            return ["rank 0: no path for checkpoints"]

    double: Any = Double()
    job = ftcore.worker.TrainingJob("")
    job._stager = job._keeper = double
    monkeypatch.delenv(_environment.CHECKPOINTS_ENV, raising=False)
    job.flush()
    assert double.flushed and capsys.readouterr().err == ""
    monkeypatch.setenv(_environment.CHECKPOINTS_ENV, "s3://bucket")
    job.flush()
    assert "the last checkpoint was not written: rank 0" in capsys.readouterr().err
