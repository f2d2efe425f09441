"""Takes the memory of a mapped slot, and maps its pages, before the first copy into it.

A copy into pages that do not exist, or that another process has made but this one has not mapped, takes several times
longer. So the process that copies populates its own mapping, in a thread: the interpreter lock is not held, and
pages are not written.
"""

import ctypes
from typing import Final

from ftcore.shm.staging import StagingSlot

CHUNK: Final = 4 << 20
"""Bytes per system call: other threads of the process can map memory between two of them."""

_MADV_POPULATE_WRITE: Final = 23
"""Since Linux 5.14; Python's ``mmap`` has no name for it, and would hold the interpreter lock."""


def populate(slot: StagingSlot) -> bool:
    """Populate a slot's pages, and wait for it.

    Args:
        slot: a slot that is mapped for writing; it stays mapped until this returns.

    Returns:
        Whether all pages are populated; False: the kernel is older, or has no memory. Then copies populate them.
    """
    libc = ctypes.CDLL(None)
    pages = (ctypes.c_char * slot.size).from_buffer(slot.view)
    start = ctypes.addressof(pages)
    for at in range(0, slot.size, CHUNK):
        count = min(CHUNK, slot.size - at)
        if libc.madvise(ctypes.c_void_p(start + at), ctypes.c_size_t(count), _MADV_POPULATE_WRITE):
            return False
    return True
