"""A lost CUDA context: nothing can be computed in it any more, and the process must end."""

from ftcore.faults.rule import Rule
from ftcore.faults.taxonomy import FaultClass, Remedy

C, E = FaultClass.CUDA_STICKY, FaultClass.CONFIG_ENV

RULES: tuple[Rule, ...] = (
    Rule(
        name="device-assert",
        pattern=r"device-side assert(?: triggered|\W|$)|CUDA_ERROR_ASSERT|\.cuh?:\d+: .{0,200}block: \[.{0,80}Assertion"
        r"|Cuda failure 710",
        cls=C,
        detail="device-assert",
        weight=86,
        reason="a kernel's assertion on its input failed, usually for an index out of range",
        example="RuntimeError: CUDA error: device-side assert triggered",
        live=True,
    ),
    Rule(
        name="illegal-access",
        pattern=r"(?i)illegal memory access|CUDA_ERROR_ILLEGAL_ADDRESS|misaligned address|MISALIGNED_ADDRESS"
        r"|invalid program counter|invalid address space|Memory access fault by GPU|Cuda failure 700\b",
        cls=C,
        detail="illegal-access",
        weight=85,
        reason="a kernel accessed memory outside of its allocations",
        example="RuntimeError: CUDA error: an illegal memory access was encountered",
        live=True,
    ),
    Rule(
        name="launch-failure",
        pattern=r"(?i)unspecified launch failure|CUDA_ERROR_LAUNCH_(?:FAILED|TIMEOUT)"
        r"|launch timed out and was terminated"
        r"|an illegal instruction was encountered|CUDA_ERROR_ILLEGAL_INSTRUCTION|hardware stack error"
        r"|HARDWARE_STACK_ERROR|Cuda failure 7(?:0[2-9]|1[4-9])\b|CUDA_EXCEPTION_|HSA_STATUS_ERROR"
        r"|exception mode: hsa",
        cls=C,
        detail="launch-failure",
        weight=85,
        reason="a kernel was aborted",
        example="RuntimeError: CUDA error: unspecified launch failure",
        live=True,
    ),
    Rule(
        name="npu-kernel",
        pattern=r"(?i)\bai(?:core|vec|cpu) (?:execution|exception|error|timeout)|error code ?(?:is|:) ?5070(?:11|14"
        r"|15|17|18)\b",
        cls=C,
        detail="launch-failure",
        weight=84,
        reason="a kernel of an NPU was aborted",
        example="RuntimeError: ACL stream synchronize failed, error code:507015",
        live=True,
    ),
    Rule(
        name="cuda-library",
        pattern=r"CU(?:BLAS|DNN|FFT|SOLVER|SPARSE)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR"
        r"|NOT_INITIALIZED)"
        r"|CUFFT_INTERNAL_ERROR|CUFFT_EXEC_FAILED",
        cls=C,
        detail="library",
        weight=72,
        reason="a library's kernel did not complete; the CUDA context is usually lost",
        example="RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`",
        live=True,
    ),
    Rule(
        name="crash-in-cuda",
        pattern=r"segfault at \S+ ip .{0,120} in lib(?:nccl|cuda|cublas|cudnn|nvidia|rccl|hip)",
        cls=C,
        detail="crash-in-library",
        weight=76,
        reason="the kernel names the library that crashed: memory was freed or unmapped under it",
        example="pt_main_thread[25]: segfault at 7f797fe0 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 4 in "
        "libnccl.so.2[7f7c]",
        live=True,
    ),
    Rule(
        name="cuda-set-up",
        pattern=r"(?i)CUDA driver version is insufficient|no CUDA-capable device|invalid device ordinal"
        r"|no kernel image is available|device kernel image is invalid|driver/library version mismatch"
        r"|Found no NVIDIA driver|not compiled with CUDA enabled|NVIDIA driver on your system is too old"
        r"|forward compatibility was attempted|CUDA_ERROR_(?:NO_DEVICE|INVALID_DEVICE|NO_BINARY"
        r"|SYSTEM_DRIVER_MISMATCH)"
        r"|is not compatible with the current PyTorch installation|provided PTX was compiled with an unsupported"
        r"|unsupported toolchain|Failed to initialize NVML|CUDA-capable device\(s\) is/are busy"
        r"|system not yet initialized"
        r"|CUDA_ERROR_SYSTEM_NOT_READY|peer mapping resources exhausted|could not select device driver"
        r"|API mismatch: the client",
        cls=E,
        detail="cuda-set-up",
        weight=84,
        reason="driver, toolkit, build and visible devices are incompatible; a restart fails in the same way",
        example="RuntimeError: CUDA error: no kernel image is available for execution on the device",
    ),
    Rule(
        name="no-device",
        pattern=r"torch\.cuda\.is_available\(\) is False|No (?:CUDA|HIP) GPUs are available"
        r"|No devices? (?:of type )?(?:GPU|TPU)"
        r" found|may be due to an incorrectly set up environment|NCCL is only supported with GPUs|no GPUs found",
        cls=E,
        detail="no-device",
        weight=82,
        reason="the process sees no device",
        example="RuntimeError: No CUDA GPUs are available",
    ),
    Rule(
        name="cuda-unknown",
        pattern=r"(?i)CUDA(?: runtime| driver)? error\b|Cuda failure \S|cudaError[A-Z]|CUDA_ERROR_[A-Z]"
        r"|HIP error\b|hipError[A-Z]",
        cls=C,
        detail="other",
        weight=56,
        action=Remedy.RESTART_PROCESSES,
        reason="another CUDA error; the context is usually lost",
        example="RuntimeError: CUDA error: unknown error",
        live=True,
    ),
)
