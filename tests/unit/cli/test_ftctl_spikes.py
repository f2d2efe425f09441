"""``ftctl spikes``: curves good and bad, for people and for programs."""

import io
import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ftcore.cli.ctl_spikes import LINE_BYTES_MAX, read_curve
from ftcore.cli.ftctl import main

SPIKE, BACK = 200, 150


def losses(count: int = 300, seed: int = 3) -> list[str]:
    source = random.Random(seed)
    return [f"{step}\t{source.gauss(3.0, 0.05):.4f}" for step in range(1, count + 1)]


def write(tmp_path: Path, lines: list[str], header: str = "step\tloss") -> str:
    path = tmp_path / "run.tsv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return str(path)


@pytest.fixture
def spiked(tmp_path: Path) -> str:
    lines = losses()
    lines[SPIKE - 1] = f"{SPIKE}\t5.5"
    lines[249] = "250\tNaN"
    return write(tmp_path, lines)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["spikes", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_flagged_steps_as_json(spiked, capsys):
    """One object on stdout alone; what is no number is null there, and its kind says so."""
    code, out, err = run(capsys, spiked, "--format", "json")
    made = json.loads(out)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert (made["samples"], made["steps"], made["went_back"]) == (300, [SPIKE, 250], 0)
    assert [(one["kind"], one["value"]) for one in made["flagged"]] == [("loss-spike", 5.5), ("loss-nan", None)]


def test_flagged_steps_as_a_table(spiked, capsys):
    """Rows on stdout, the count on stderr."""
    code, out, err = run(capsys, spiked)
    assert code == 0
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [
        ["200", "loss-spike", "5.5"],
        ["250", "loss-nan", "nan"],
    ]
    assert "300 samples, 2 flagged in 2 episodes" in err


def test_commas_do_as_well(tmp_path, capsys):
    """Where the header has no tab."""
    lines = [line.replace("\t", ",x,") for line in losses()]
    assert run(capsys, write(tmp_path, lines, "step,time,loss")) == (
        0,
        "",
        "ftctl: 300 samples, 0 flagged in 0 episodes\n",
    )


def test_a_quiet_run_is_no_error(tmp_path, capsys):
    """Nothing flagged: nothing on stdout, exit 0."""
    code, out, err = run(capsys, write(tmp_path, losses()))
    assert (code, out) == (0, "")
    assert "0 flagged" in err


def test_the_gradient_norm_is_looked_at(tmp_path, capsys):
    """Its spikes by default, a threshold where one is given: at it or over it."""
    lines = [f"{line}\t{1.0 + n % 3 / 10:g}" for n, line in enumerate(losses())]
    lines[199] = lines[199].rpartition("\t")[0] + "\t9"
    path = write(tmp_path, lines, "step\tloss\tgrad_norm")
    made = json.loads(run(capsys, path, "--format", "json")[1])
    assert [(one["step"], one["kind"]) for one in made["flagged"]] == [(200, "norm-spike")]
    made = json.loads(run(capsys, path, "--norm-threshold", "9", "--format", "json")[1])
    assert [(one["step"], one["kind"]) for one in made["flagged"]] == [(200, "norm-spike"), (200, "norm")]


def test_a_suggestion_leaves_its_run_alone(tmp_path, capsys):
    """Thresholds suggested from a normal run flag nothing in it, and the limit can be given back."""
    lines = [f"{line}\t{0.3 + n % 7 / 10:g}" for n, line in enumerate(losses())]
    path = write(tmp_path, lines, "step\tloss\tgrad_norm")
    made = json.loads(run(capsys, path, "--suggest", "--format", "json")[1])["suggest"]
    assert made["normal"] is True
    assert (made["limit"], made["norm_max"], made["norm_threshold"]) == (6.0, 0.9, 1.4)
    limits = ("--limit", str(made["limit"]), "--norm-threshold", str(made["norm_threshold"]))
    assert json.loads(run(capsys, path, *limits, "--format", "json")[1])["flagged"] == []
    _, out, err = run(capsys, path, "--suggest")
    assert out.startswith("loss limit 6: the largest of ")
    assert "gradient norm threshold 1.4" in out
    assert "does not flag this run either" in err


def test_a_suggestion_from_a_bad_run_is_warned_of(spiked, capsys):
    """A run with NaN in it is no example."""
    _, out, err = run(capsys, spiked, "--suggest")
    assert "loss limit" in out
    assert "this run is not normal (1 loss-nan)" in err
    assert f"ignores 1 spike, the first at step {SPIKE}" in err


def test_too_short_a_run_suggests_nothing(tmp_path, capsys):
    """One point: handled, with what is missing."""
    code, out, err = run(capsys, write(tmp_path, ["7\t3.5"]), "--suggest")
    assert (code, out) == (0, "")
    assert "no limit for the loss" in err
    assert run(capsys, write(tmp_path, ["7\t3.5"]))[0] == 0


def test_gaps_and_steps_that_go_back_are_handled(tmp_path, capsys):
    """A resumed run repeats steps, another leaves some out, a cell may be empty: all read, and told."""
    lines = losses()
    lines = [*lines[:120], *lines[140:], *lines[BACK:], "301\t", ""]
    made = json.loads(run(capsys, write(tmp_path, lines), "--format", "json")[1])
    assert (made["samples"], made["went_back"], made["flagged"]) == (300 - 20 + 150 + 1, 1, [])
    assert "went back 1 time" in run(capsys, write(tmp_path, lines))[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "run.tsv: it is empty"),
        (b"step\tloss\n", "run.tsv: it has a header and no samples"),
        (b"step\tloss\n\n\n", "run.tsv: it has a header and no samples"),
        (b"1\t2.5\n2\t2.4\n", "run.tsv:1: no column step and loss in the header: found '1', '2.5'"),
        (b"step loss\n1 2.5\n", "run.tsv:1: no column step and loss in the header: found 'step loss'; columns are"),
        (b"step,loss\n1,2.5\n2,oops\n", "run.tsv:3: column loss: expected a number, found 'oops'"),
        (b"step\tacc\n1\t2.5\n", "run.tsv:1: no column loss"),
        (b"step\tloss\tloss\n1\t2\t2\n", "run.tsv:1: column loss occurs twice"),
        (b"step\tloss\n1\t2.5\n2\toops\n", "run.tsv:3: column loss: expected a number, found 'oops'"),
        (b"step\tloss\n1\t1_0\n", "run.tsv:2: column loss: expected a number, found '1_0'"),
        (b"step\tloss\n1.5\t2.5\n", "run.tsv:2: column step: expected a whole number from 0, found '1.5'"),
        (b"step\tloss\n-3\t2.5\n", "run.tsv:2: column step"),
        (b"step\tloss\nnan\t2.5\n", "run.tsv:2: column step"),
        (b"step\tloss\n\t2.5\n", "run.tsv:2: column step: expected a whole number from 0, found ''"),
        (b"step\tloss\n99999999999999999999999\t2.5\n", "run.tsv:2: column step"),
        (b"step\tloss\n5\n", "run.tsv:2: 1 columns, none for loss; expected at least 2"),
        (b"step\tloss\n\x00\xff\xfe\t1\n", "run.tsv:2: not UTF-8 text"),
        (b"step\tloss\n1\t2\n\x00\x01\t1\n", "run.tsv:3: column step: expected a number, found '\\x00\\x01'"),
        (b"x" * (LINE_BYTES_MAX + 1), f"run.tsv:1: a line of more than {LINE_BYTES_MAX} bytes"),
    ],
)
def test_what_is_no_curve_is_told_with_its_line(tmp_path, capsys, text: bytes, message: str):
    """File, line, what was found and what was expected, in one line; exit 2."""
    path = tmp_path / "run.tsv"
    path.write_bytes(text)
    code, out, err = run(capsys, str(path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_file_that_cannot_be_read(tmp_path, capsys):
    """Missing, or a directory: exit 2 with the reason."""
    assert run(capsys, str(tmp_path / "none.tsv"))[2].endswith("none.tsv: No such file or directory\n")
    code, _, err = run(capsys, str(tmp_path))
    assert (code, "Is a directory" in err) == (2, True)


@pytest.mark.parametrize("argv", [("--limit", "0"), ("--limit", "x"), ("--norm-threshold", "nan")])
def test_a_wrong_threshold_is_refused(spiked, capsys, argv: tuple[str, str]):
    """Thresholds are numbers over 0."""
    with pytest.raises(SystemExit) as ended:
        main(["spikes", spiked, *argv])
    assert ended.value.code == 2
    assert "expected a number over 0" in capsys.readouterr().err


def test_other_peoples_files_are_read(tmp_path):
    """Byte order mark, CRLF, blanks, other columns in another order, floats that are whole, words for infinity."""
    text = "\ufeff loss \tlr\tstep\r\n 2.5 \t1e-3\t 10.0\r\n-Inf\t\t20\r\n+.5e1\tx\t030\r\n"
    found = list(read_curve(io.BytesIO(text.encode()), "it"))
    assert [(sample.step, sample.loss) for sample in found] == [(10, 2.5), (20, -math.inf), (30, 5.0)]


def test_a_curve_comes_through_a_pipe():
    """A dash reads standard input; a reader that has seen enough is no error."""
    text = "step\tloss\n" + "".join(f"{step}\tnan\n" for step in range(20000))
    done = subprocess.run(
        [sys.executable, "-m", "ftcore.cli.ftctl", "spikes", "-", "--format", "json"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(json.loads(done.stdout)["steps"]) == 20000
