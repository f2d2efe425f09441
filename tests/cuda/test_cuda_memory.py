"""Memory of the host that a CUDA device reads and writes directly."""

import mmap
import os

import torch

from ftcore.worker.state import copying
from ftcore.worker.state.filling import SENT_BYTES, CopyThreads


def test_a_refused_registration_leaves_no_error() -> None:
    """CUDA would report it at the thread's next kernel."""
    torch.zeros(1, device="cuda")
    fd = os.memfd_create("test")
    os.ftruncate(fd, 1 << 20)
    view = memoryview(mmap.mmap(fd, 1 << 20))
    os.close(fd)
    assert copying.pin(view, 0)
    assert not copying.pin(view, 0)
    assert float((torch.ones(3, device="cuda") * 2).sum()) == 6
    copying.unpin(view, 0)
    assert copying.pin(view, 0)
    copying.unpin(view, 0)


def test_large_tensors_reach_the_device_whole() -> None:
    """Parts of one buffer, several buffers, and a last part that does not fill one."""
    draw = torch.Generator().manual_seed(1)
    sizes = (SENT_BYTES // 4, SENT_BYTES - 8, 3 * SENT_BYTES + 12_345 * 4)
    sources = [torch.randint(0, 256, (size,), dtype=torch.uint8, generator=draw) for size in sizes]
    targets = [torch.zeros_like(source, device="cuda") for source in sources]
    with CopyThreads(4) as threads:
        for target, source in zip(targets, sources, strict=True):
            threads.copy(target.view(torch.float32), source.view(torch.float32))
    assert all(torch.equal(target.cpu(), source) for target, source in zip(targets, sources, strict=True))
