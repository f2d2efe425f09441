"""Tables of numeric codes: InfiniBand completion statuses, Xids of the NVIDIA driver, exit codes.

Sources: libibverbs' ``ibv_wc_status``, NVIDIA's Xid catalogue and ``nverror.h`` of its open kernel
modules, POSIX. The meanings for a job are ftcore's own.
"""

import signal
from enum import StrEnum

import msgspec


class Wc(StrEnum):
    """The probable cause of a failed InfiniBand completion, by its status."""

    LINK = "link"
    """The path to the peer: cable, port, switch; or the peer itself."""
    PEER = "peer"
    """The peer refused or failed: its memory, its process, or the configuration of the two."""
    LOCAL = "local"
    """The host that prints the line."""
    FOLLOW = "follow"
    """An earlier error of the same queue pair."""
    PROGRAM = "program"
    """Sizes or operations that do not match."""


IB_STATUS: dict[int, tuple[str, Wc]] = {
    1: ("local length error", Wc.PROGRAM),
    2: ("local queue pair operation error", Wc.LOCAL),
    4: ("local protection error: memory registration (GPUDirect) is broken", Wc.LOCAL),
    5: ("flushed: the queue pair was in error already", Wc.FOLLOW),
    6: ("memory window bind error", Wc.LOCAL),
    7: ("bad response", Wc.PEER),
    8: ("local access error", Wc.LOCAL),
    9: ("remote invalid request", Wc.PROGRAM),
    10: ("remote access error: the peer refused", Wc.PEER),
    11: ("remote operation error", Wc.PEER),
    12: ("retries exceeded: no acknowledgement from the peer", Wc.LINK),
    13: ("receiver not ready, retries exceeded", Wc.LINK),
    14: ("local end-to-end violation", Wc.LOCAL),
    21: ("general error", Wc.LOCAL),
    22: ("response timed out", Wc.LINK),
}


class XidKind(StrEnum):
    """What to do about an Xid."""

    APP = "app"
    """The program caused it: restart it."""
    UNCLEAR = "unclear"
    """Program or device: restart the program, and watch the device."""
    DEVICE = "device"
    """The device needs a reset, or its node a reboot: take it out."""
    CONTAINED = "contained"
    """A memory error that hit one process only: restart it, reset the device when it is idle."""
    EARLY = "early"
    """Recorded or corrected; watch the device."""
    FOLLOW = "follow"
    """A consequence of another error, or internal to the driver."""
    CONFIG = "config"
    """Set up wrongly."""


class Xid(msgspec.Struct, frozen=True):
    """Xids with one meaning.

    Args:
        codes: their numbers.
        name: a short name.
        kind: what to do about them.
    """

    codes: tuple[int, ...]
    name: str
    kind: XidKind


XIDS = (
    Xid((48,), "double-bit-ecc", XidKind.DEVICE),
    Xid((57, 58), "frame-buffer", XidKind.DEVICE),
    Xid((64,), "row-remap-failed", XidKind.DEVICE),
    Xid((95, 140), "uncontained-ecc", XidKind.DEVICE),
    Xid((168, 171, 172), "memory-lost", XidKind.DEVICE),
    Xid((74, 136, 155, 173), "nvlink", XidKind.DEVICE),
    Xid((79, 167), "off-the-bus", XidKind.DEVICE),
    Xid((119, 120), "gsp-firmware", XidKind.DEVICE),
    Xid((46, 109, 110, 143, 156, 157, 158), "gpu-stopped", XidKind.DEVICE),
    Xid((61, 62), "micro-controller", XidKind.DEVICE),
    Xid((54,), "power-cable", XidKind.DEVICE),
    Xid((94,), "contained-ecc", XidKind.CONTAINED),
    Xid((63, 92, 160, 161), "ecc-early", XidKind.EARLY),
    Xid((93, 121, 122, 123, 124, 125), "board-early", XidKind.EARLY),
    Xid((13,), "sm-exception", XidKind.APP),
    Xid((31,), "mmu-fault", XidKind.APP),
    Xid((11, 25, 69), "bad-commands", XidKind.APP),
    Xid((43,), "channel-reset", XidKind.APP),
    Xid((65, 68, 83, 84, 88, 89, 96, 97, 98, 142), "video-engine", XidKind.UNCLEAR),
    Xid((8, 32, 80), "command-stream", XidKind.UNCLEAR),
    Xid((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "copy-engine", XidKind.UNCLEAR),
    Xid((45, 137), "after-another", XidKind.FOLLOW),
    Xid((37, 38, 44, 66, 67, 141), "driver", XidKind.FOLLOW),
    Xid((78, 151), "set-up", XidKind.CONFIG),
)
"""By what to do about them; the text of 144 to 150 and 154 says it, and they have rules of their own."""

SIGNAL_MEANINGS = {
    signal.SIGABRT: "a watchdog ended the process, or C++ aborted",
    signal.SIGBUS: "shared memory is full, or a mapped file was truncated",
    signal.SIGKILL: "the OOM killer, a scheduler, or an agent after its grace period",
    signal.SIGSEGV: "a crash",
    signal.SIGTERM: "a scheduler or an agent requested the end",
}


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9, and ``signal 99`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


SHELL_TIMEOUT = 124
"""Exit code of the command ``timeout`` when the time limit is reached."""


def exit_patterns(number: int) -> str:
    """A pattern for how launchers, shells and Kubernetes report the end of a process by a signal: -n, 128 + n, a name.

    Args:
        number: the signal.

    Returns:
        An alternation for a pattern, without a group around it.
    """
    name = signal_name(number)
    return (
        rf"exit ?code\"?\s*[:=]?\s*(?:-{number}|{128 + number})\b|exit (?:status|code)s?:? (?:-{number}"
        rf"|{128 + number})\b"
        rf"|exited with (?:code|status) (?:-{number}|{128 + number})\b|died with <Signals\.{name}\b"
        rf"|(?:Signal|signal) {number} \({name}\)|terminated (?:by|with) (?:signal )?(?:{name}\b|{number}\b)"
        rf"|exited due to signal {name}\b|return code = -{number}\b|exited on signal {number}\b"
        rf"|KILLED BY SIGNAL: {number}\b|terminated with signal {name}\b"
    )
