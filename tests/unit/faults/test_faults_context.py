"""Tests of the context of lines: places of exceptions, earlier lines, numbers and time stamps."""

import pytest

from ftcore.faults.context import SETTINGS, ExceptionOrigin
from ftcore.faults.progress import ProgressCollector
from ftcore.faults.rules import RULES
from ftcore.faults.series import Series
from ftcore.faults.taxonomy import FaultClass, Remedy
from ftcore.faults.text import classify_text


def traceback(path: str, function: str, source: str, line: str) -> str:
    """Return a traceback of one frame, as Python prints it."""
    frame = [f'  File "{path}", line 7, in {function}', *([f"    {source}"] if source else [])]
    return "\n".join(["Traceback (most recent call last):", *frame, line])


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_place_matches_its_own_example(setting):
    """Each place has a reason and an example that no earlier place matches."""
    path, function, source, line = setting.example
    assert setting.reason
    assert next(s.name for s in SETTINGS if s.reads(ExceptionOrigin(path, function, source), line)) == setting.name
    diagnosis = classify_text(traceback(*setting.example))
    assert (diagnosis.rule, diagnosis.cls, diagnosis.detail) == (setting.name, setting.cls, setting.detail)


def test_no_place_costs_a_node():
    """The place of an exception never makes a node suspect."""
    assert all(s.action is not Remedy.REPLACE_NODE and s.cls is not FaultClass.GPU_HW for s in SETTINGS)
    assert not {s.name for s in SETTINGS} & {r.name for r in RULES}


def test_the_place_of_another_rank_is_ignored():
    """The traceback of one rank is not the place of another's exception."""
    text = '[rank0]:   File "/w/config.py", line 7, in load\n[rank1]: ValueError: x'
    assert classify_text(text).cls is FaultClass.USER_CODE


@pytest.mark.parametrize(
    ("text", "cls"),
    [
        pytest.param(
            "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4) ran for 600044 ms\n"
            "[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered",
            FaultClass.NCCL_TIMEOUT,
            id="a context lost after the watchdog gave up",
        ),
        pytest.param(
            "[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
            "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4) ran for 600044 ms",
            FaultClass.CUDA_STICKY,
            id="a context lost before the others gave up",
        ),
        pytest.param(
            "failed (exitcode: -6) local_rank: 0 (pid: 11)\nfailed (exitcode: -6) local_rank: 1 (pid: 12)",
            FaultClass.COLLATERAL,
            id="several abort together",
        ),
        pytest.param("failed (exitcode: -6) local_rank: 0 (pid: 11)", FaultClass.UNKNOWN, id="one aborts"),
        pytest.param(
            "CUDA error: uncorrectable ECC error encountered. For debugging consider passing CUDA_LAUNCH_BLOCKING=1.",
            FaultClass.GPU_HW,
            id="advice on the same line",
        ),
        pytest.param(
            "Exception raised from checkForNCCLErrors at ProcessGroupNCCL.cpp:1 (most recent call first):",
            FaultClass.UNKNOWN,
            id="where C++ raised is no exception of the program",
        ),
    ],
)
def test_context_changes_the_diagnosis(text, cls):
    """Earlier lines of the same process, and lines beside it, decide."""
    assert classify_text(text).cls is cls


def kind(*lines: str) -> str:
    series = Series()
    for line in lines:
        series.add(line)
    return series.read().kind


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("step,loss,lr", "1,2.30,1e-4", "2,2.31,1e-4", "3,2.29,1e-4", "4,7.70,1e-4"), "spike"),
        (("| step | train loss |", "|---|---|", "| 1 | 2.30 |", "| 2 | 2.31 |", "| 3 | nan |"), "not-finite"),
        (("1 2.30", "2 2.31", "3 2.29", "4 2.30", "5 7.70", "6 8.10"), "spike"),
        (("loss: 2.30", "loss: 2.31", "loss: 2.29", "loss: 2.32"), ""),
        (("loss: 2.30 grad norm: 0.3", "loss: 2.31 grad norm: 0.3", "loss: 2.40 grad norm: 1.9"), "spike"),
        (("loss: 2.60 grad norm: 9.1", "loss: 2.41 grad norm: 2.3", "loss: 2.31 grad norm: 0.3"), "recovered"),
        (("loss: 2.0", "loss: 2.1", "loss: 2.15", "loss: 2.2", "loss: 2.25"), "spike"),
        (("{'loss': 1.9}", "{'loss': 0.0}", "{'loss': 0.0}"), "not-finite"),
        (("lm loss:", " 2.30 |", "lm loss:", " 2.31 |", "lm loss:", " 7.70 |"), "spike"),
        (tuple(f"loss scale: {2**n}" for n in (16, 15, 14, 13)), "scale"),
        (("loss scale: 65536", "loss scale: 32768"), "overflow"),
        (("number of skipped iterations:  1 |",) * 3, "skipped"),
        (("number of skipped iterations:  1 |",), "overflow"),
        (("number of skipped iterations: 40 |",), "skipped"),
        (("step time: 1.00", "step time: 1.01", "step time: 1.00", "step time: 1.20", "step time: 1.21"), "slower"),
        (("step time: 1.00", "step time: 1.30", "step time: 1.10", "step time: 1.35", "step time: 1.40"), ""),
        (("TFLOPs: 150", "TFLOPs: 149.9", "TFLOPs: 150.1", "TFLOPs: 120", "TFLOPs: 121"), "slower"),
        (("elapsed time of nodes: {0: 12.1, 1: 12.4, 2: 40.3}",), "slower"),
        (("actv_norm: 90.1 loss: 2.0 gnorm: 0.3",) * 3, ""),
    ],
)
def test_numbers(lines, expected):
    """Loss, norm, scale, skipped iterations and times, as programs and tables print them."""
    assert kind(*lines) == expected


def standstill(*lines: str) -> str:
    progress = ProgressCollector()
    for line in lines:
        progress.add(line, "")
    return progress.read()[0]


@pytest.mark.parametrize(
    ("lines", "is_hung"),
    [
        (tuple(f"[hb] step=7 elapsed={t}" for t in (60, 120, 180)), True),
        (tuple(f"[hb] step={t} elapsed={t}" for t in (60, 120, 180)), False),
        (("step=7 loss", "step=7 accuracy", "step=7 memory"), False),
        ((*(f"10:00:{s:02} step {s}" for s in range(5)), "10:40:00 still here"), True),
        ((*(f"10:00:{s:02} step {s}" for s in range(5)), "10:00:09 done"), False),
        ((*(f"10:00:{s:02} message" for s in range(6)), "10:40:00 message", "10:40:01 message"), True),
        ((*(f"10:00:{s:02} message" for s in range(6)), *(f"10:40:{s:02} message" for s in range(6))), False),
        (tuple(f"50%|##  | 5/10 [0{m}:00<00:10,  2.00s/it]" for m in (1, 3, 5, 7)), True),
        (tuple(f"n:1:2 [{r}] NCCL INFO comm 0x1 rank {r} Init START" for r in range(4)), True),
        (tuple(f"n:1:2 [0] NCCL INFO comm 0x1 rank 0 Init {w}" for w in ("START", "COMPLETE")), False),
        (("2024-99-99 10:00:00 step 1",) * 3, False),
    ],
)
def test_a_hang_is_found_without_an_error_line(lines, is_hung):
    """By a repeated step, by time that passes without lines, or by a set-up that is not completed."""
    assert bool(standstill(*lines)) is is_hung


def test_the_rank_behind_is_named():
    """If all ranks hang, the others wait for the one at the lowest step."""
    lines = [f"rank={r} step={6 if r == 2 else 7} elapsed={t}" for t in (60, 120, 180) for r in range(4)]
    diagnosis = classify_text("\n".join(lines))
    assert (diagnosis.cls, diagnosis.role, diagnosis.root_rank) == (FaultClass.HANG, "multi", "2")
