"""``ftctl samples``: what a person and a program read."""

import json
from pathlib import Path

from ftctl_logs import archive
from sample_story import Story

from ftcore.cli.ftctl import main
from ftcore.events.job import DataSkipped
from ftcore.testing.driver import JobDriver


def shown(path: Path, job: JobDriver, capsys, *argv: str, code: int = 0) -> str:
    assert main(["--store", archive(path, job.events), "samples", *argv]) == code
    return capsys.readouterr().out


def test_what_was_used_and_left_out(tmp_path, capsys):
    story = Story()
    story.positioned(0, 0)
    story.progressed(25)
    [skipped] = story.job.own(DataSkipped(step=20, amount=3, unit="batches", reason="the loss jumped"))
    story.again()
    story.positioned(20, 200, (200, 230))
    story.progressed(25)
    text = shown(tmp_path / "a.ftlog", story.job, capsys)
    assert "100 samples, shuffled with seed 1; 10 samples a step" in text
    assert ["3", "50", "30", "20"] in [line.split() for line in text.splitlines()]
    assert f"  30 samples from place 0 of epoch 3 on: event {skipped.seq}: the loss jumped" in text
    assert "each of the others was used once" in text

    story.again()
    seq = story.positioned(25, 300, (200, 230))
    text = shown(tmp_path / "b.ftlog", story.job, capsys, code=1)
    assert "each of the others" not in text
    assert f"(event {seq}): no step trained on 20 samples from place 80 of epoch 3 on" in text
    found = json.loads(shown(tmp_path / "b.ftlog", story.job, capsys, "--format", "json", code=1))
    assert [each["kind"] for each in found["discrepancies"]] == ["lost"]


def test_a_job_without_such_data(tmp_path, capsys):
    assert "has reported no position" in shown(tmp_path / "a.ftlog", Story().job, capsys)
