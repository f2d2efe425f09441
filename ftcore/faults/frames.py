"""Reads faulthandler's stacks: a worker's place in its script, and the collective that it is inside of. Pure."""

import re
from collections.abc import Sequence

import attrs

_MAIN_ALONE = "Stack (most recent"
_THREAD = re.compile(r"^(?:(?:Current thread|Thread) 0x|Stack \(most recent)", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.{1,1000})", line (\d{1,9}|\?\?\?) in (.{1,300})$', re.MULTILINE)
FRAMES_MAX = 12
BACKWARD = "backward"
"""The collective of a rank in a backward pass, which computes and waits for the collectives of its gradients."""

_LIBRARY = re.compile(r"(?:^<|/(?:site|dist)-packages/|/lib(?:64)?/python3[^/]*/|/ftcore/(?:runtime|worker)/)")
_C10D = "/torch/distributed/distributed_c10d.py"
_COLLECTIVE = re.compile(
    r"^(?:all_|_all_|reduce|_reduce|broadcast|gather|scatter|barrier|monitored_barrier|send|recv|isend|irecv"
    r"|batch_isend_irecv|init_process_group|new_group|split_group|destroy_process_group|_store_based_barrier)"
)
_INSIDE = ("/torch/nn/parallel/distributed.py", "/torch/distributed/fsdp/", "/torch/distributed/_composable/")
_ENGINE = ("/torch/autograd/graph.py", "_engine_run_backward")
_LOADER = ("/torch/utils/data/dataloader.py", "_try_get_data")
_HANDLER = "/ftcore/runtime/warm/stacks.py"
_OUTSIDE = ("socket.py", "ssl.py", "subprocess.py", "selectors.py", "http/client.py", "urllib3/connection.py")
"""Files of a thread that waits for a socket, a file or a process."""


@attrs.frozen
class Frame:
    """One Python frame."""

    file: str
    line: str
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"


@attrs.frozen
class StackPosition:
    """The place of a worker's main thread.

    Args:
        frames: of the main thread, innermost first.
        op: the collective that it is inside of; empty: none is known.
        talks: another thread of the worker waits for a socket, a file or a process; None: the other threads are not
            known.
        loads: it waits for a worker process of a data loader of torch. That wait wakes up every few seconds to see
            whether the process lives, so the frames below it are left out.
    """

    frames: tuple[Frame, ...] = ()
    op: str = ""
    talks: bool | None = False
    loads: bool = False

    @property
    def where(self) -> str:
        """The innermost line of the script itself, else the innermost line."""
        own = [frame for frame in self.frames if _LIBRARY.search(frame.file) is None]
        return str((own or self.frames)[0]) if self.frames else ""

    @property
    def stack(self) -> str:
        """The innermost frames, one per line."""
        return "\n".join(map(str, self.frames[:FRAMES_MAX]))


def place_of(dump: str) -> StackPosition:
    """Read faulthandler's output for the main thread or for all threads; the main thread is last."""
    starts = [found.start() for found in _THREAD.finditer(dump)]
    if not starts:
        return StackPosition()
    threads = [dump[begin:end] for begin, end in zip(starts, [*starts[1:], len(dump)], strict=True)]
    frames = _frames(threads[-1])
    at = next((n for n, f in enumerate(frames) if f.file.endswith(_LOADER[0]) and f.function == _LOADER[1]), None)
    frames = frames[at:] if at is not None else frames
    if threads[-1].startswith(_MAIN_ALONE):
        return StackPosition(frames, _op(frames), None, at is not None)
    talks = any(_innermost(thread).endswith(_OUTSIDE) for thread in threads[:-1])
    return StackPosition(frames, _op(frames), talks, at is not None)


def _frames(thread: str) -> tuple[Frame, ...]:
    """Return the frames of a thread, without the frame of the handler that printed them."""
    frames = (Frame(*found.groups()) for found in _FRAME.finditer(thread))
    return tuple(frame for frame in frames if not frame.file.endswith(_HANDLER))


def _innermost(thread: str) -> str:
    found = _FRAME.search(thread)
    return found[1] if found is not None else ""


def _op(frames: Sequence[Frame]) -> str:
    """Return the collective: the outermost call into torch, so that ``all_gather_object`` is not ``all_gather``."""
    for frame in reversed(frames):
        if frame.file.endswith(_C10D) and _COLLECTIVE.match(frame.function):
            return frame.function
    if frames and any(part in frames[0].file for part in _INSIDE):
        return f"{frames[0].function} (data parallel)"
    if frames and frames[0].file.endswith(_ENGINE[0]) and frames[0].function == _ENGINE[1]:
        return BACKWARD
    return ""
