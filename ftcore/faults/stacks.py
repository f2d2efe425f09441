"""Reads stacks of hung processes, as py-spy and faulthandler print them.

Most ranks of a hung job wait in a collective, for a rank that is elsewhere.
"""

import re

import attrs

THREADS_MAX = 4096

_THREAD = re.compile(
    r"[Tt]hread (?:0x)?([0-9a-f]{1,20}) \((?:active|idle|most recent call first)[^)]{0,40}\):?\s?(.{0,80})"
)
_WAITING_FRAME = re.compile(
    r"^\s{0,8}#\d{1,3}\s{1,4}(?:0x[0-9a-f]{1,16} in )?(?:futex_\w{1,20}|__?futex\w{0,20}|(?:__)?poll"
    r"|epoll_wait|pthread_cond_\w{0,12}wait"
    r"|__lll_lock_wait|cu(?:da)?(?:Stream|Event|Ctx|Device)Synchronize|__pthread_cond_wait|sem_wait|__GI___poll)\b"
)
"""A debugger's frame inside a wait."""
_FRAME = re.compile(
    r"^\s{0,12}(?:#\d{1,3}\s{1,4}0x[0-9a-f]{1,16} in |\[<[0-9a-f]{0,16}>\] \w{1,60}\+0x"
    r"|\S.{0,160} \([\w./+<>-]{1,200}(?:\.(?:py|pyx|cpp|cc|c):\d{1,6}|\.so[.\d]{0,12})\)\s*$)"
)
"""A frame of py-spy, of a debugger or of the kernel; PyTorch's own begin with ``frame #``."""
FRAMES_MIN = 3
"""Least frames without a thread's header for a stack dump."""
_COLLECTIVE = re.compile(
    r"^\s{0,12}(?:File .{0,200} in )?"
    r"(?:broadcast|all_?reduce|all_?gather\w{0,20}|reduce_?scatter\w{0,20}|barrier|all_to_all\w{0,12}"
    r"|monitored_barrier|recv|send|reduce|wait_for_work|_coalescing_manager)\b"
)


@attrs.define
class Stack:
    """One thread.

    Args:
        name: its ID, as printed.
        main: it is its process's main thread, as far as known.
        lines: number of its frames.
        collective: it waits in a collective.
    """

    name: str
    main: bool = True
    lines: int = 0
    collective: bool = False


@attrs.define
class Stacks:
    """Collects stacks, line by line."""

    threads: list[Stack] = attrs.field(factory=list)
    waits: int = 0
    frames: int = 0
    _open: list[Stack] = attrs.field(factory=list)

    def add(self, line: str) -> None:
        """Read a line: the header of a thread, or a frame of the preceding threads."""
        if _WAITING_FRAME.match(line[:HEAD]) is not None:
            self.waits += 1
        self.frames += 1 if _FRAME.match(line[:HEAD]) is not None else 0
        if "hread " in line[:60]:
            found = _THREAD.search(line[:HEAD])
            if found is not None:
                if len(self.threads) < THREADS_MAX:
                    if self._open and self._open[-1].lines:
                        self._open.clear()
                    self._open.append(Stack(found[1], "MainThread" in found[2] or not found[2]))
                    self.threads.append(self._open[-1])
                return
        if not self._open:
            return
        if not line.startswith((" ", "\t")):
            if line.strip():
                self._open.clear()
            return
        for stack in self._open:
            stack.lines += 1
            stack.collective = stack.collective or _COLLECTIVE.match(line[:HEAD]) is not None

    def read(self) -> tuple[bool, tuple[str, ...]]:
        """Return whether there are stacks, and the main threads that the others wait for."""
        whole = [stack for stack in self.threads if stack.lines and stack.main]
        elsewhere = tuple(stack.name for stack in whole if not stack.collective)
        is_stack = bool(self.threads) or self.waits > 0 or self.frames >= FRAMES_MIN
        return is_stack, elsewhere if len(elsewhere) < len(whole) else ()


HEAD = 400
