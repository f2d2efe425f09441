"""Tests of the diagnosis of texts: the root cause among many victims."""

import pytest

from ftcore.faults.text import TextReader, classify_text

WATCHDOG = (
    "[Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1}, OpType=ALLREDUCE) ran for 600044 ms"
)
PEER_GONE = "[rank{0}]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:33177"
GPU_LOST = "NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def lines(*parts: str) -> str:
    return "\n".join(parts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            lines('{"exitcode": -6, "message": "CUDA error: uncorrectable NVLink error detected during the '
                  'execution\\nCUDA kernel errors might be asynchronously reported"}'),
            ("gpu-hw", "root", "replace-node", ""),
            id="NVLink error in the job master's JSON",
        ),
        pytest.param(
            "node-11:1:2 [2] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error",
            ("nccl-remote-error", "root", "replace-node", "node-11"),
            id="port error",
        ),
        pytest.param(
            lines("RuntimeError: Caught RuntimeError in pin memory thread for device 4.", GPU_LOST),
            ("gpu-hw", "root", "replace-node", ""),
            id="pin memory beside a GPU lost",
        ),
        pytest.param(
            lines(PEER_GONE.format(1), "[rank3]: KeyError: 'x'", PEER_GONE.format(2)),
            ("user-code", "multi", "stop-and-report", "3"),
            id="the exception among victims",
        ),
        pytest.param(
            lines(*(WATCHDOG.format(rank, 7) for rank in (0, 1, 3))),
            ("nccl-timeout", "multi", "restart-processes", "a rank not listed"),
            id="all wait for somebody else",
        ),
        pytest.param(
            lines(WATCHDOG.format(0, 9), WATCHDOG.format(1, 9), WATCHDOG.format(2, 4)),
            ("nccl-timeout", "multi", "restart-processes", "2"),
            id="one is behind",
        ),
        pytest.param(WATCHDOG.format(0, 9), ("nccl-timeout", "root", "restart-processes", ""), id="one victim alone"),
        pytest.param(PEER_GONE.format(1), ("collateral", "collateral", "restart-processes", ""), id="a victim alone"),
        pytest.param(
            lines(
                "Traceback (most recent call last):",
                '  File "train.py", line 7, in <module>',
                '    raise RuntimeError("uncorrectable ECC error")',
                "    ^^^^^^^^^^^^^^^",
                "ValueError: x",
            ),
            ("user-code", "root", "stop-and-report", ""),
            id="source in a traceback is no evidence",
        ),
        pytest.param(
            lines("[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited",
                  "During handling of the above exception, another exception occurred:", "[rank0]: TrainError: x"),
            ("collateral", "collateral", "restart-processes", ""),
            id="an exception that hands on another",
        ),
        pytest.param(
            lines("CUDA out of memory. Tried to allocate 304.00 MiB (GPU 0; 8.00 GiB total capacity; 6.32 GiB free)"),
            ("oom-gpu", "root", "restart-processes", ""),
            id="fragmented memory",
        ),
        pytest.param(
            lines("CUDA out of memory. Tried to allocate 9.00 GiB (GPU 0; 8.00 GiB total capacity; 6.32 GiB free)"),
            ("oom-gpu", "root", "stop-and-report", ""),
            id="too large",
        ),
        pytest.param(
            lines(*(f"step {n} | loss {loss}" for n, loss in enumerate((2.3, 2.2, 2.3, 7.9, 8.4)))),
            ("numeric", "root", "rollback-skip-data", ""),
            id="a loss that leaves",
        ),
        pytest.param(
            lines(*(f"step {n} | loss {loss}" for n, loss in enumerate((2.3, 2.2, 7.9, 2.3, 2.2)))),
            ("numeric", "root", "wait", ""),
            id="a loss that comes back",
        ),
        pytest.param(
            lines('Thread 12 (idle): "MainThread"', "    wait (threading.py:306)", "    get (queue.py:179)", "",
                  'Thread 13 (active): "MainThread"', "    broadcast (torch/distributed/distributed_c10d.py:1191)"),
            ("hang", "multi", "restart-processes", "process 12"),
            id="stacks",
        ),
        pytest.param(
            "\x1b[31mModuleNotFoundError\x1b[0m: No module named 'x'",
            ("config-env", "root", "stop-and-report", ""),
            id="colours",
        ),
        pytest.param("step 1\nstep 2", ("unknown", "root", "none", ""), id="nothing"),
        pytest.param("", ("unknown", "root", "none", ""), id="no text"),
        pytest.param("        SRAM Uncorrectable : 0", ("unknown", "root", "none", ""), id="a zero"),
    ],
)  # fmt: skip
def test_texts(text, expected):
    """Class, role, action and root cause."""
    found = classify_text(text)
    assert (found.cls, found.role, found.action, found.root_rank) == expected


def test_unknown_shows_lines_that_resemble_a_failure():
    """If no rule matches, the report shows lines to look at."""
    found = classify_text("step 1\nsomething failed badly\nstep 2")
    assert found.evidence[0] == "something failed badly"


def test_memory_is_bounded():
    """A log of any length keeps a bounded number of lines."""
    reader = TextReader()
    for number in range(20_000):
        reader.add(f"[rank{number}]: ValueError: {number}")
    assert len(reader._found) <= 4096
    assert len(reader._speakers) <= 4096
    assert len(reader.result().evidence) <= 6


@pytest.mark.parametrize(
    ("line", "faultless"),
    [
        ("step 7 error_rate=0.3 val_error 0.12", True),
        ("no errors found; saved without error", True),
        ("failures: 0, restarts=0, errors 0.001", True),
        ("NCCL_TIMEOUT=1800 timeout=1800 max_restarts=3", True),
        ("UserWarning: this will fail in a later version", True),
        ("rank 3 failed", False),
        ("FrobnicationError: x", False),
        ("ERROR: it broke", False),
        ("Killed", False),
        ("", False),
    ],
)
def test_a_text_without_a_fault(line, faultless):
    """Counts of errors, metrics, options and warnings are not signs of a failure; an empty text is not faultless."""
    assert classify_text(line).faultless is faultless
