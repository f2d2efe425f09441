"""Out of memory on device or host: allocators, the kernel's OOM killer, containers, Slurm."""

from ftcore.faults.rule import Rule
from ftcore.faults.taxonomy import FaultClass, Remedy

H, G = FaultClass.OOM_HOST, FaultClass.OOM_GPU

RULES: tuple[Rule, ...] = (
    Rule(
        name="pinned-memory",
        pattern=r"(?i)(?:cudaHostAlloc|cudaMallocHost|cuMemHostAlloc|cudaHostRegister|pinned memory).{0,80}"
        r"(?:out of memory|fail|cannot|unable)|RESOURCE_EXHAUSTED.{0,120}\b(?:host|cpu|pinned)\b",
        cls=H,
        detail="pinned",
        weight=86,
        reason="pinned host memory is used up; the message resembles one about device memory",
        example="RuntimeError: cudaHostAlloc failed: out of memory",
        live=True,
    ),
    Rule(
        name="cuda-oom",
        pattern=r"(?:CUDA|HIP|NPU|XPU|MPS backend) out of memory|OutOfMemoryError: (?:CUDA|HIP|Allocation on device)"
        r"|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CUDNN_STATUS_ALLOC_FAILED"
        r"|CUBLAS_STATUS_ALLOC_FAILED|Cuda failure (?:2 )?'out of memory'|torch\.(?:cuda\.)?OutOfMemoryError"
        r"|(?:CUDA|cuda|GPU|hip)\w*.{0,60}(?:failed to allocate|bad_alloc)|HBM out of memory|CUDA malloc failed"
        r"|OOM when allocating tensor|No available memory for the cache blocks"
        r"|CudaError: out of memory|device memory not enough|rmm::out_of_memory"
        r"|CUBLAS_STATUS_NOT_INITIALIZED.{0,40}cublasCreate|[Uu]nable to find (?:a valid cuDNN algorithm"
        r"|an engine to execute)|GPU_\d+_bfc|ran out of memory trying to allocate|less than desired GPU memory",
        cls=G,
        detail="allocation",
        weight=85,
        reason="the device's allocator is out of memory",
        example="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        live=True,
    ),
    Rule(
        name="xla-oom",
        pattern=r"RESOURCE_EXHAUSTED.{0,80}(?:memory|allocat)",
        cls=G,
        detail="allocation",
        weight=85,
        reason="XLA's allocator is out of memory",
        example="RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
        live=True,
    ),
    Rule(
        name="oom-killer-container",
        pattern=r"Memory cgroup out of memory|CONSTRAINT_MEMCG|Task in \S+ killed as a result of limit",
        cls=H,
        detail="container",
        weight=92,
        reason="the kernel names the container or job whose limit was reached",
        example="Memory cgroup out of memory: Killed process 19289 (python) total-vm:9kB, anon-rss:9kB",
        live=True,
    ),
    Rule(
        name="oom-killer",
        pattern=r"Out of memory: Kill(?:ed)? process|invoked oom-killer|oom-kill:constraint|global_oom"
        r"|Killed process \d+ \(",
        cls=H,
        detail="host",
        weight=92,
        reason="the kernel names the process that it ended to free memory",
        example="[ 4821.553190] Out of memory: Killed process 60462 (python) total-vm:8923144kB, anon-rss:511920kB",
        live=True,
    ),
    Rule(
        name="oom-daemon",
        pattern=r"systemd-oomd.{0,60}Killed |due to memory pressure for|earlyoom.{0,60}(?:sending|low memory)"
        r"|oomd: .{0,60}[Kk]illed",
        cls=H,
        detail="host",
        weight=91,
        reason="a daemon of the host (systemd-oomd, earlyoom) ended processes before the kernel's OOM killer did",
        example="systemd-oomd[812]: Killed /a.slice/run-1.scope due to memory pressure for /a.slice being 71% > 50%",
        live=True,
    ),
    Rule(
        name="oom-reaper",
        pattern=r"oom_reaper: reaped process",
        cls=H,
        detail="reaped",
        weight=10,
        reason="a process was killed for memory; it may not belong to the job",
        example="oom_reaper: reaped process 19289 (python), now anon-rss:0kB, file-rss:0kB, shmem-rss:4kB",
    ),
    Rule(
        name="oom-killed-slurm",
        pattern=r"(?i)oom[-_ ]kill event|task\S* .{0,30}out of memory|exceeded (?:job|step|its)? ?memory limit"
        r"|StepId=\S+ .{0,30}exceeded memory|\bOUT_OF_MEMORY\b|OOM Killed",
        cls=H,
        detail="slurm",
        weight=92,
        reason="Slurm reports OOM kills in the job's own cgroup",
        example="slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4711.0. Some of your processes may "
        "have been killed",
    ),
    Rule(
        name="oom-killed-pod",
        pattern=r"\bOOMKilled\b",
        cls=H,
        detail="pod",
        weight=92,
        action=Remedy.RESTART_PROCESSES,
        reason="the container exceeded its memory limit; its pod is started again, and may need a higher limit",
        example="trainer-worker-1   0/1   OOMKilled   0   8m53s",
    ),
    Rule(
        name="evicted-memory",
        pattern=r"(?i)low on resource: memory|node running low on memory"
        r"|MemoryPressure(?:\]|\s*[:=]?\s*True)|ray\S*OutOfMemoryError",
        cls=H,
        detail="node-pressure",
        weight=91,
        action=Remedy.RESTART_PROCESSES,
        reason="the node ran low on memory and evicted the pod",
        example="Message: The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi.",
    ),
    Rule(
        name="host-allocation",
        pattern=r"\bMemoryError\b|_ArrayMemoryError|Cannot allocate memory|DefaultCPUAllocator: (?:can't|not enough)"
        r"|DefaultCPUAllocator.{0,40}memory|\bstd::bad_alloc|mmap\S* failed.{0,40}[Mm]emory"
        r"|java\.lang\.OutOfMemoryError"
        r"|ArrowMemoryError|ENOMEM",
        cls=H,
        detail="allocation",
        weight=82,
        reason="the host is out of memory",
        example="numpy.core._exceptions._ArrayMemoryError: Unable to allocate 14.9 GiB for an array",
        live=True,
    ),
)
