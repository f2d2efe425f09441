"""Output of workers: always to their log files, optionally to the console; the end of it is kept in memory.

House rules: nothing here blocks the event loop or kills a worker. The loop reads pipes in bounded chunks. A thread
writes log files (a loaded disk stalls writers for seconds); a slow file blocks only its own worker, as if the worker
wrote it. Bytes that the disk refuses are dropped, with one note per file. Another thread writes the console from a
bounded queue; output beyond the limit is dropped and counted, and a note shows the number.
"""

import asyncio
import collections
import contextlib
import errno
import fcntl
import os
import queue
import select
import string
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import attrs

from ftcore.runtime.agent.workers.log_watch import Tap
from ftcore.wording import plural

STDOUT, STDERR = 1, 2
LINE_PREFIX: Final = "[${role_name}${local_rank}]:"
PIPE_BYTES = 1 << 20
CHUNK_BYTES = 1 << 18
LINE_BYTES_MAX = 1 << 16
TAIL_BYTES = 1 << 16
FILE_LAG_BYTES_MAX = 4 << 20
CONSOLE_LAG_BYTES_MAX = 1 << 20
PARTIAL_LINE_S = 0.2
"""An incomplete line (a prompt) is shown after this many seconds."""


@attrs.frozen(kw_only=True)
class Output:
    """Which output of workers is shown on the console; log files always have all of it.

    Values as in torchrun: 0 none, 1 stdout, 2 stderr, 3 both; for all local ranks, or by local rank.

    Args:
        redirects: streams that are not shown.
        tee: streams that are shown with a prefix.
        local_ranks_filter: the local ranks whose output is shown; None: all.
        line_prefix: template of the prefix, with ``role_name``, ``rank`` and ``local_rank``.
        copied: texts by stream: lines that contain one of them are copied to a file of the round, with the prefix.
        stdout: descriptor of the console for standard output.
        stderr: descriptor of the console for standard error, and for notes.
    """

    redirects: int | Mapping[int, int] = 0
    tee: int | Mapping[int, int] = 0
    local_ranks_filter: Collection[int] | None = None
    line_prefix: str = LINE_PREFIX
    copied: Mapping[int, Sequence[str]] = attrs.field(factory=dict)
    stdout: int = STDOUT
    stderr: int = STDERR

    def shown(self, stream: int, env: Mapping[str, str], local_rank: int) -> tuple[bool, str]:
        """Whether a worker's stream is shown, and the prefix of its lines."""
        if self.local_ranks_filter is not None and local_rank not in self.local_ranks_filter:
            return False, ""
        if _streams(self.tee, local_rank) & stream:
            return True, self.prefix(env, local_rank)
        return not _streams(self.redirects, local_rank) & stream, ""

    def prefix(self, env: Mapping[str, str], local_rank: int) -> str:
        """The prefix of a worker's lines."""
        names = {"role_name": env.get("ROLE_NAME", "default"), "rank": env.get("RANK", local_rank)}
        return string.Template(self.line_prefix).safe_substitute(names, local_rank=local_rank)


def _streams(value: int | Mapping[int, int], local_rank: int) -> int:
    return value if isinstance(value, int) else value.get(local_rank, 0)


class Console:
    """A console, written by a thread; ``put`` never waits.

    Args:
        fd: descriptor of the console; not closed.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._changed = threading.Condition()
        self._chunks: collections.deque[bytes] = collections.deque()
        self._size = 0
        self._dropped = 0
        self._mid_line = False
        self._busy = False
        self._broken = False
        self._thread: threading.Thread | None = None

    def put(self, data: bytes) -> None:
        """Queue output, or drop it if the console lags."""
        with self._changed:
            if self._broken:
                return
            if self._size + len(data) > CONSOLE_LAG_BYTES_MAX and self._chunks:
                self._dropped += len(data)
                return
            data = self._note() + data
            self._mid_line = not data.endswith(b"\n")
            self._chunks.append(data)
            self._size += len(data)
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ftcore-console", daemon=True)
            self._thread.start()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all output is written, at most ``timeout_s`` seconds; returns whether it is."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._broken or not (self._chunks or self._dropped or self._busy), timeout_s
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._chunks or self._dropped))
                if self._chunks:
                    data = self._chunks.popleft()
                    self._size -= len(data)
                else:
                    data = self._note()
                self._busy = True
            if not self._write(data):
                with self._changed:
                    self._broken = True
                    self._chunks.clear()
                    self._dropped = 0
                    self._changed.notify_all()
                return

    def _note(self) -> bytes:
        """A note about bytes dropped since the last accepted chunk; empty if there are none."""
        dropped, self._dropped = self._dropped, 0
        if not dropped:
            return b""
        start, self._mid_line = "\n" if self._mid_line else "", False
        missing = plural(dropped, "byte of output is", "bytes of output are")
        return f"{start}ftcore: {missing} missing here: the console was too slow; see the log files\n".encode()

    def _write(self, data: bytes) -> bool:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                select.select([], [self._fd], [])
            except OSError:
                return False
        return True


class OutputFile:
    """One log file of a worker.

    Args:
        path: the file; replaced if it exists.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd: int | None = None
        self.lag = 0
        self.noted = False
        self.resume: Callable[[], None] | None = None


class FileWriter:
    """The thread that writes all log files of the node.

    Args:
        loop: the agent's event loop.
        note: called in the loop with a message about a file that cannot be written, once per file.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, note: Callable[[str], None]) -> None:
        self._loop = loop
        self._note = note
        self._jobs: queue.SimpleQueue[tuple[OutputFile, bytes | None] | asyncio.Event | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="ftcore-logs", daemon=True)
        self._thread.start()

    def open(self, path: str) -> OutputFile:
        """Create a log file; if that fails, a note is made and its output is dropped."""
        log = OutputFile(path)
        try:
            log.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._refused(log, error)
        return log

    def write(self, log: OutputFile, data: bytes, resume: Callable[[], None]) -> bool:
        """Queue bytes for a file. False: the file lags; do not write until ``resume`` is called in the loop."""
        with self._lock:
            log.lag += len(data)
            held = log.lag > FILE_LAG_BYTES_MAX
            if held:
                log.resume = resume
        self._jobs.put((log, data))
        return not held

    def close_file(self, log: OutputFile) -> None:
        """Close a file after its queued output."""
        self._jobs.put((log, None))

    async def flush(self, timeout_s: float) -> None:
        """Wait until queued output is in the files, at most ``timeout_s`` seconds."""
        done = asyncio.Event()
        self._jobs.put(done)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await done.wait()

    def close(self) -> None:
        """End the thread after queued output."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if isinstance(job, asyncio.Event):
                self._call(job.set)
                continue
            log, data = job
            if data is not None:
                self._append(log, data)
            elif log.fd is not None:
                os.close(log.fd)
                log.fd = None

    def _append(self, log: OutputFile, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view and log.fd is not None:
                view = view[os.write(log.fd, view) :]
        except OSError as error:
            self._refused(log, error)
        with self._lock:
            log.lag -= len(data)
            resume = log.resume if log.lag <= FILE_LAG_BYTES_MAX // 2 else None
            if resume is not None:
                log.resume = None
        if resume is not None:
            self._call(resume)

    def _refused(self, log: OutputFile, error: OSError) -> None:
        if not log.noted:
            log.noted = True
            reason = errno.errorcode.get(error.errno or 0, "")
            self._call(
                self._note,
                f"{log.path}: {error.strerror} ({reason}); this worker's output is dropped until writing succeeds",
            )

    def _call(self, function: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *args)


class LineCopies:
    """A file per round with the lines of all workers that contain one of several texts.

    Args:
        writer: writes the file.
        path: the file; its directory is created.
        texts: a line with one of them is copied.
    """

    def __init__(self, writer: FileWriter, path: str, texts: Sequence[str]) -> None:
        with contextlib.suppress(OSError):  # opening the file then fails, which is noted
            os.makedirs(os.path.dirname(path), exist_ok=True)
        self._writer = writer
        self._log = writer.open(path)
        self._texts = [text.encode() for text in texts]

    def of(self, prefix: str) -> "LineCopy":
        """A copier for one worker's stream.

        Args:
            prefix: prefix of each of its lines.
        """
        return LineCopy(self, prefix.encode())

    def put(self, prefix: bytes, lines: Sequence[bytes]) -> None:
        """Copy the lines that contain one of the texts."""
        found = [prefix + line + b"\n" for line in lines if any(text in line for text in self._texts)]
        if found:
            # No back-pressure here: the worker's own file, written by the same thread, has it.
            self._writer.write(self._log, b"".join(found), lambda: None)

    def close(self) -> None:
        """Close the file after its queued output."""
        self._writer.close_file(self._log)


class LineCopy:
    """One worker's stream, split into lines for ``LineCopies``.

    Args:
        copies: receives the lines.
        prefix: prefix of each line.
    """

    def __init__(self, copies: LineCopies, prefix: bytes) -> None:
        self._copies = copies
        self._prefix = prefix
        self._partial = b""

    def put(self, data: bytes) -> None:
        """Process output; an incomplete line is cut at ``LINE_BYTES_MAX``."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._copies.put(self._prefix, lines)
        if len(self._partial) > LINE_BYTES_MAX:
            self.end()

    def end(self) -> None:
        """Process the last, incomplete line."""
        if self._partial:
            self._copies.put(self._prefix, [self._partial])
            self._partial = b""


class OutputPipe:
    """One pipe from a worker, read until its end.

    Args:
        loop: the agent's event loop.
        writer: writes the log file.
        path: the log file.
        console: shows the lines; None: they are not shown.
        prefix: prefix of each line on the console.
        tap: receives the output for the scan; None: no scan.
        copy: receives the output for the user's filtered file; None: no such file.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        writer: FileWriter,
        path: str,
        console: Console | None,
        prefix: str,
        tap: Tap | None = None,
        copy: LineCopy | None = None,
    ) -> None:
        self._loop = loop
        self._writer = writer
        self._log = writer.open(path)
        self._console = console
        self._prefix = prefix.encode()
        self._tap = tap
        self._copy = copy
        self._tail = bytearray()
        self._partial = bytearray()
        self._in_line = False
        self._timer: asyncio.TimerHandle | None = None
        self._fd, self.worker_end = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # beyond the user's pipe quota; the default size works, too
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(self._fd, False)
        loop.add_reader(self._fd, self._readable)

    @property
    def ended(self) -> bool:
        """Whether all of the output was read: nobody can write any more."""
        return self._fd < 0

    def close_worker_end(self) -> None:
        """Close the agent's copy of the writing end, once the worker has its own."""
        if self.worker_end >= 0:
            os.close(self.worker_end)
            self.worker_end = -1

    def tail(self) -> bytes:
        """The end of the output, at most ``TAIL_BYTES``."""
        return bytes(self._tail[-TAIL_BYTES:])

    def drain(self) -> None:
        """Read the contents of the pipe, at most its capacity."""
        for _ in range(2 * PIPE_BYTES // CHUNK_BYTES):
            if self._fd < 0 or not self._read():
                return

    def close(self) -> None:
        """Read the contents of the pipe and stop reading."""
        self.drain()
        self._end()

    def _readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._end()
            return False
        self._tail += data
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]
        if self._console is not None:
            self._show(data)
        if not self._writer.write(self._log, data, self._resume):
            self._loop.remove_reader(self._fd)
        if self._copy is not None:
            self._copy.put(data)
        if self._tap is not None:
            self._tap.put(data)
        return True

    def _resume(self) -> None:
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._readable)

    def _end(self) -> None:
        if self._fd < 0:
            return
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1
        self.close_worker_end()
        self._show_partial()
        if self._copy is not None:
            self._copy.end()
        self._writer.close_file(self._log)
        if self._tap is not None:
            self._tap.end()

    def _show(self, data: bytes) -> None:
        """Show complete lines; keep the rest, up to ``LINE_BYTES_MAX``."""
        assert self._console is not None
        self._partial += data
        cut = max(self._partial.rfind(b"\n"), self._partial.rfind(b"\r") if not self._prefix else -1) + 1
        if len(self._partial) - cut > LINE_BYTES_MAX:
            cut = len(self._partial)
        if cut:
            whole = bytes(self._partial[:cut])
            del self._partial[:cut]
            self._console.put(self._prefixed(whole))
        if self._partial and self._timer is None and not self._prefix:
            self._timer = self._loop.call_later(PARTIAL_LINE_S, self._show_partial)

    def _show_partial(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._partial and self._console is not None:
            rest = bytes(self._partial)
            self._partial.clear()
            self._console.put(self._prefixed(rest))

    def _prefixed(self, data: bytes) -> bytes:
        if not self._prefix:
            return data
        head = b"" if self._in_line else self._prefix
        self._in_line = not data.endswith(b"\n")
        body = data if self._in_line else data[:-1]
        return head + body.replace(b"\n", b"\n" + self._prefix) + (b"" if self._in_line else b"\n")
