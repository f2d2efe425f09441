"""Tests of reading faulthandler's stacks: place and collective."""

import pytest

from ftcore.faults.frames import place_of

LIB = "/v/lib/python3.11/site-packages/torch"


def dump(*frames: str, other: str = "") -> str:
    head = f"Thread 0x00007f01 (most recent call first):\n{other}\n" if other else ""
    body = "".join(f'  File "{frame}\n' for frame in frames)
    return f"{head}Current thread 0x00007f02 (most recent call first):\n{body}"


@pytest.mark.parametrize(
    ("frames", "op"),
    [
        ((f'{LIB}/distributed/distributed_c10d.py", line 9 in all_reduce',), "all_reduce"),
        (
            (
                f'{LIB}/distributed/distributed_c10d.py", line 9 in all_gather',
                f'{LIB}/distributed/c10d_logger.py", line 8 in wrapper',
                f'{LIB}/distributed/distributed_c10d.py", line 7 in all_gather_object',
            ),
            "all_gather_object",
        ),
        ((f'{LIB}/autograd/graph.py", line 1 in _engine_run_backward',), "backward"),
        ((f'{LIB}/nn/parallel/distributed.py", line 1 in _sync_buffers',), "_sync_buffers (data parallel)"),
        ((f'{LIB}/utils/data/dataloader.py", line 1 in _next_data',), ""),
        ((f'{LIB}/distributed/distributed_c10d.py", line 9 in get_rank',), ""),
        ((), ""),
    ],
)
def test_a_collective_is_known_by_its_frames(frames: tuple[str, ...], op: str) -> None:
    """The outermost call into torch; the place is the script's own line, not torch's."""
    found = place_of(dump(*frames, '/home/u/train.py", line 42 in main', '/home/u/train.py", line 50 in <module>'))
    assert (found.op, found.where) == (op, "/home/u/train.py:42 (main)")
    assert found.stack.splitlines()[-1] == "/home/u/train.py:50 (<module>)"


def test_a_thread_that_waits_for_a_socket_is_noticed() -> None:
    """The main thread is the last one; of the others it counts whether they wait for something external."""
    talks = '  File "/usr/lib/python3.11/ssl.py", line 1 in read'
    idle = '  File "/usr/lib/python3.11/threading.py", line 1 in wait'
    assert place_of(dump('t.py", line 1 in f', other=talks)).talks
    assert not place_of(dump('t.py", line 1 in f', other=idle)).talks
    assert place_of(dump('t.py", line 1 in f', other=idle)).where == "t.py:1 (f)"


@pytest.mark.parametrize(
    "text", ["", "nothing of the kind", "Current thread 0x1 (most recent call first):\n  <none>\n"]
)
def test_an_empty_dump_has_no_place(text: str) -> None:
    """A worker that has not answered, or has no Python frame any more."""
    assert (place_of(text).where, place_of(text).op) == ("", "")
