"""The program itself: data loader, numbers, hangs, crashes, imports and arguments, and its own exceptions."""

import attrs

from ftcore.faults.rule import COLLATERAL, ROOT, UNSURE, Rule
from ftcore.faults.taxonomy import FaultClass, Remedy

D, M, E, U, H = (
    FaultClass.DATA_LOADER,
    FaultClass.NUMERIC,
    FaultClass.CONFIG_ENV,
    FaultClass.USER_CODE,
    FaultClass.HANG,
)

LOADER: tuple[Rule, ...] = (
    Rule(
        name="loader-shm",
        pattern=r"(?i)killed by signal: bus error|insufficient shared memory|out of shared memory"
        r"|unable to (?:open|allocate|mmap|resize|stretch|write).{0,60}"
        r"(?:shared memory|/torch_|shm)|shm_open.{0,40}fail|received 0 items of ancdata"
        r"|Communication with the workers is no longer possible",
        cls=D,
        detail="shared-memory",
        weight=83,
        action=Remedy.STOP_AND_REPORT,
        reason="shared memory is too small for the data loader's batches; a restart fails in the same way",
        example="RuntimeError: DataLoader worker (pid 1219) is killed by signal: Bus error.",
        live=True,
    ),
    Rule(
        name="loader-terminated",
        pattern=r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Terminated",
        cls=FaultClass.COLLATERAL,
        detail="terminated",
        role=COLLATERAL,
        weight=17,
        reason="an agent ended the worker together with its rank, after another rank had ended",
        example="RuntimeError: DataLoader worker (pid 3121) is killed by signal: Terminated.",
    ),
    Rule(
        name="loader-killed",
        pattern=r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (?:is killed by signal|exited unexpectedly)"
        r"|dataloader worker.{0,40}(?:killed|died|exited)"
        r"|(?i:\b(?:minddata|webdataset|dali|mp\.dataset)\b.{0,60}worker.{0,40}(?:died|killed|exited))"
        r"|Critical error in pipeline",
        cls=D,
        detail="worker-killed",
        weight=81,
        reason="a worker of the data loader was killed, usually for memory",
        example="RuntimeError: DataLoader worker (pid 30882) is killed by signal: Killed.",
        live=True,
    ),
    Rule(
        name="loader-timeout",
        pattern=r"DataLoader timed out after|Pin memory thread exited unexpectedly",
        cls=D,
        detail="stalled",
        weight=74,
        reason="the data loader's workers delivered no batch in time",
        example="RuntimeError: DataLoader timed out after 120 seconds",
        live=True,
    ),
    Rule(
        name="loader-messenger",
        pattern=r"Caught \w+(?:\.\w+)* in (?:pin memory thread|DataLoader worker process)",
        cls=D,
        detail="messenger",
        role=UNSURE,
        weight=40,
        reason="the data loader passes on another error: a lost device, or an exception of the data set",
        example="RuntimeError: Caught RuntimeError in pin memory thread for device 4.",
    ),
)

NUMERIC: tuple[Rule, ...] = (
    Rule(
        name="loss-scale-minimum",
        pattern=r"(?i)loss scale already at minimum|loss scale.{0,40}(?:minimum|below|too small|reached 0)"
        r"|Minimum loss scale reached",
        cls=M,
        detail="loss-scale",
        weight=83,
        reason="half precision overflows at every loss scale",
        example="Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        live=True,
    ),
    Rule(
        name="not-finite",
        pattern=r"(?i)(?:\b|_)loss(?:es)?\w*['\"]?(?: value)?(?: is|\s*[=:,])?\s*(?:tensor\()?[+-]?(?:nan|inf)\b"
        r"|\bgrad(?:ient)?[_ ]?norm['\"]?\s*[=:]?\s*(?:nan|inf)\b"
        r"|\b(?:nan|inf)s?(?: or infs?)?(?: values?)? (?:were |was |is )?(?:detected|found|encountered"
        r"|loss|gradients?)\b|found (?:a )?(?:nan|inf)\b"
        r"|non-?finite (?:loss|grad|norm|check)|loss (?:became|went|is|was) (?:nan|inf|not finite)"
        r"|returned nan values in its"
        r"|number of nan iterations:\s+[1-9]|contains? (?:nan|inf)s?\b|loss (?:diverged|explod)"
        r"|not finite.{0,20}(?:loss|grad)|\b(?:gnorm|grads?|gradients?)['\"]?\s*(?:[=:]|is|are|contain)\s*(?:nan|inf)\b"
        r"|tensor contains either `?inf|FloatingPointError"
        r"|\b(?:ppl|perplexity|bpb|bpc|nll|loss)['\"]?\s*[:=|]\s*['\"]?nan\b|but found invalid values"
        r"|(?:detected|has|have|with) (?:an? )?(?:nan|inf)s?\b",
        cls=M,
        detail="not-finite",
        weight=80,
        reason="loss or gradients are not finite",
        example="step 0003 | loss = nan",
        live=True,
    ),
    Rule(
        name="not-computable",
        pattern=r"(?i)(?:svd|eigh?|cholesky|linalg)\S* .{0,80}(?:did not converge|not positive[- ]definite|failed to"
        r" converge|ill-conditioned)|cannot convert float (?:nan|infinity)|OverflowError: math range error"
        r"|(?:non-finite|infs? or nans?|nans? or infs?) (?:values?|entries)"
        r"|loss (?:value )?(?:is |was )?(?:too (?:large|high)|exceed(?:s|ed))",
        cls=M,
        detail="not-finite",
        weight=78,
        reason="a computation failed on values that are not finite or far out of range",
        example="torch._C._LinAlgError: linalg.svd: The algorithm failed to converge",
        live=True,
    ),
    Rule(
        name="diverged",
        pattern=r"(?i)(?:loss|training|model|run) (?:has |have |is )?(?:spik(?:ed|es|ing)|diverg(?:ed|es|ing)"
        r"|explod(?:ed|es|ing)"
        r"|blew up)|loss[ _-]spike|spikes? in (?:the )?(?:train\w* )?loss|divergence detected|(?:grad\w*"
        r"|norm) explo\w+"
        r"|loss (?:has |have )?(?:jump(?:s|ed)|shot up|rose|increased|climbed|went up|explodes) "
        r"(?:from|to|by|sharply|suddenly)"
        r"|grad\w*[_ ]norm .{0,30}(?:exceed(?:s|ed)|is above|is over|too (?:high|large))"
        r"|梯度爆炸|损失发散",
        cls=M,
        detail="spike",
        weight=58,
        reason="a monitor reports that the loss diverges",
        example="[watch] loss spike at step 4100: 2.31 -> 7.92",
    ),
    Rule(
        name="numeric-words",
        pattern=r"\bNaNs?\b|\bNAN\b|(?i:\bdiverg(?:e|es|ed|ence|ing|ent)\b|\bloss (?:goes|went|is going|shoots) up\b)"
        r"|\bspik(?:ed|es|ing) (?:at|in|to|from)\b",
        cls=M,
        detail="words",
        role=UNSURE,
        weight=23,
        reason="the line mentions diverging or non-finite values, without details",
        example="step 4100: the run seems to diverge",
    ),
    Rule(
        name="overflow-skip",
        pattern=r"(?i)gradient overflow|overflow!? .{0,40}(?:skipping|reducing|attempted loss scale)|\bOVERFLOW!",
        cls=M,
        detail="overflow",
        weight=13,
        action=Remedy.WAIT,
        reason="one step was skipped and the loss scale lowered: normal now and then",
        example="Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0",
    ),
)

GLOO_PEER_GONE = Rule(
    name="gloo-peer-gone",
    pattern=r"(?i)(?:closed|reset|aborted) by peer.{0,80}typically caused by a remote worker hanging",
    cls=FaultClass.COLLATERAL,
    detail="peer-gone",
    role=COLLATERAL,
    weight=20,
    reason="the peer closed the connection: it ended first",
    example="RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:5786: Connection reset by peer. "
    "This is typically caused by a remote worker hanging or bugs in the application.",
)
"""Gloo's advice on a lost connection names a hang, so this rule is read before that of hangs."""

GLOO_PEER_HANGS = attrs.evolve(GLOO_PEER_GONE, name="hang-told", cls=H, detail="no-progress", role=ROOT, weight=57)
"""How masters before revision 4 read that line."""

HANGS: tuple[Rule, ...] = (
    Rule(
        name="verdict-straggler",
        pattern=r"(?i)node is a straggler and exits|node .{0,30}exits? .{0,30}straggler",
        cls=FaultClass.COLLATERAL,
        detail="straggler",
        role=COLLATERAL,
        weight=66,
        action=Remedy.REPLACE_NODE,
        node=True,
        reason="an agent leaves because a check found its node slow",
        example="RuntimeError: The node is a straggler and exits.",
    ),
    Rule(
        name="straggler",
        pattern=r"(?i)straggler\S{0,3}(?: (?:are|is|detected|found))?[: ]*"
        r"(?:\[\s*['\"]?\d|(?:rank|node)\S{0,3} ?[\d'\"])|slow (?:rank|node"
        r"|gpu)s?\b.{0,30}(?:detected|found)"
        r"|straggler detection warning|worse (?:relative|individual) performance|performance score .{0,20}below",
        cls=H,
        detail="straggler",
        weight=57,
        action=Remedy.REPLACE_NODE,
        node=True,
        reason="a check names the slow ranks or nodes",
        example="Fault nodes are: []  and stragglers are: [1].",
        live=True,
    ),
    GLOO_PEER_GONE,
    Rule(
        name="hang-told",
        pattern=r"(?i)\bhang (?:is |was )?detected|training (?:is |has )?(?:hung|stuck|hang)"
        r"|no (?:training )?progress (?:for|in|since)|job (?:is )?hang(?:ing|s)?\b"
        r"|Timeout \(\d+:\d\d:\d\d\)!|step .{0,30}stuck for"
        r"|deadlock (?:detected|suspected)|hang for \d+|\bno (?:log |console )?output (?:for|in|since)\b"
        r"|(?:step|iteration|counter|progress)\S{0,3} (?:has |have |is |was )?(?:not (?:advanced|changed|moved"
        r"|increased)"
        r"|unchanged|stalled)|heartbeat (?:from|of) (?:the )?(?:trainer|worker|rank|process)\b.{0,30}(?:stale"
        r"|missing|lost|timed)"
        r"|not (?:made|making) (?:any )?progress|stopped making progress|no (?:gpu )?activity (?:for|in|since)"
        r"|detected (?:a )?hang\b|hang(?:ing)? detected|no heartbeat (?:for|in|from any|since)"
        r"|(?:time |seconds )?since (?:the )?last (?:step|iteration|update|log|batch|progress|output)\D{0,20}\d"
        r"|last (?:step|progress|log|iteration)\b.{0,30} \d+ ?(?:s|sec|min|minutes|h|hours)\b.{0,10} ago"
        r"|卡住|卡死|无进展"
        r"|(?:process|worker|node|rank)s? (?:\d+ )?(?:is |are |has |have )?hang(?:ed|ing|s)?\b",
        cls=H,
        detail="no-progress",
        weight=57,
        reason="a monitor reports that steps are no longer completed",
        example="Timeout (0:10:00)!",
        live=True,
    ),
    Rule(
        name="stalled-tensors",
        pattern=r"waiting for remainder of ranks|Stalled ops:|\[missing ranks: |^Missing ranks:",
        cls=H,
        detail="no-progress",
        role=UNSURE,
        weight=57,
        reason="some ranks have not joined a collective for a long time",
        example="W horovod/common/stall_inspector.cc:107] are waiting for remainder of ranks for more than 60 seconds.",
        live=True,
    ),
    Rule(
        name="soft-lockup",
        pattern=r"(?i)soft lockup|rcu\S* .{0,40}(?:stall|detected)|hard LOCKUP",
        cls=H,
        detail="lockup",
        weight=60,
        reason="a CPU of the host is stuck",
        example="watchdog: BUG: soft lockup - CPU#17 stuck for 22s! [python:4711]",
        live=True,
    ),
    Rule(
        name="slowdown",
        pattern=r"(?i)(?:throughput|tflop\S*|tokens/s(?:ec)?|samples/s(?:ec)?|mfu|training) (?:has |have |was |is )?"
        r"(?:dropped|fell|decreased|degraded|collapsed|slowed down)|slowdown detected"
        r"|(?:step|iteration) time (?:has )?(?:increased|rose|regressed|doubled)|rank \d+ is (?:slow|lagging)",
        cls=H,
        detail="slow",
        role=UNSURE,
        weight=47,
        action=Remedy.WAIT,
        reason="a monitor reports lower throughput; the line may not identify the slow rank",
        example="[watch] throughput dropped from 150 to 90 TFLOPs",
    ),
    Rule(
        name="trace-waits",
        pattern=r"(?:futex|poll|ppoll|epoll_wait|select|wait4|read|restart_syscall)\(.{0,120}(?:FUTEX_WAIT"
        r"|resuming interrupted|<unfinished)|^State:\s+D \(disk sleep\)",
        cls=H,
        detail="stacks",
        role=UNSURE,
        weight=25,
        reason="a system call trace shows a process that waits",
        example="futex(0x7f1c6c0, FUTEX_WAIT_PRIVATE, 0, NULL",
    ),
    Rule(
        name="hang-words",
        pattern=r"(?i)\bhung(?: at| in| on| for|[.,!;)]|$)"
        r"|\b(?:hang|hangs|hanged|hanging|stuck|frozen|freezes|dead-?lock(?:ed|s)?|stalled|not progressing)\b",
        cls=H,
        detail="no-progress",
        role=UNSURE,
        weight=24,
        reason="the line mentions a hang, without details",
        example="[monitor] worker 3 seems stuck at step 812",
    ),
)

SET_UP: tuple[Rule, ...] = (
    Rule(
        name="import",
        pattern=r"ModuleNotFoundError|ImportError|cannot open shared object file|undefined symbol"
        r"|GLIBC\S* not found|version `\S+' not found"
        r"|No module named|DLL load failed|incompatible with this Python",
        cls=E,
        detail="import",
        weight=84,
        reason="a package, module or library is missing or has the wrong version",
        example="ModuleNotFoundError: No module named 'flash_attn'",
    ),
    Rule(
        name="arguments",
        pattern=r"unrecognized arguments|the following arguments are required|error: argument \S+: "
        r"|invalid choice: |No such option|unexpected extra argument"
        r"|(?i:can't open file|environment variable \S+ expected, but not set|must be set (?:in|as|to)"
        r"|is not set in the environment)"
        r"|KeyError: '(?:RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'"
        r"|(?:ConfigAttributeError|MissingConfigException|ConfigKeyError)"
        r"|(?i:unknown (?:argument|option|config key)|invalid (?:config|argument value|configuration))"
        r"|command not found"
        r"|(?:^|/)(?:ba)?sh: .{0,80}: not found|No such file or directory: '?(?:nvcc|ninja|gcc|g\+\+|c\+\+|cc|git"
        r"|nvidia-smi|mpirun|srun|ldconfig|numactl|ibstat|rocm-smi|hipcc|torchrun|deepspeed)'",
        cls=E,
        detail="arguments",
        weight=83,
        reason="the program does not accept its command line or environment",
        example="train.py: error: unrecognized arguments: --lrr 0.1",
    ),
    Rule(
        name="versions",
        pattern=r"(?i)AttributeError: (?:partially initialized )?module '|is not installed|please (?:re)?install"
        r"|(?:['\"\x60]|(?:run|try|using|with|via|do|by):? )pip3? install "
        r"|requires? (?:python|torch|pytorch|cuda|transformers|flash|version|a newer)|version (?:mismatch|conflict)"
        r"|incompatible versions?|only supports? (?:Ampere|Hopper|CUDA|GPUs|sm_)|only supported on"
        r"|numpy\.dtype size changed"
        r"|pkg_resources\.\w+|VersionConflict|DistributionNotFound|unsupported (?:dtype|device|gpu|option|backend)"
        r"|is not currently imported|Could not find a version that satisfies|No matching distribution found",
        cls=E,
        detail="versions",
        weight=79,
        reason="packages, device and program are incompatible",
        example="AttributeError: module 'torch.distributed' has no attribute '_tensor'",
    ),
    Rule(
        name="configuration",
        pattern=r"(?:Misconfiguration|Config\w*|Validation)(?:Exception|Error)"
        r"|AssertionError: .{0,200}(?:\bmust\b|should be|specify|--\w"
        r"|requires|not supported|args\.)|ValueError: .{0,200}(?:must be set|should be one of"
        r"|is not a valid|not supported|not recognized|Invalid value for|incompatible with|only supports?"
        r"|cannot be used|--\w)"
        r"|(?:Assertion|Value)Error: .{0,200}(?:should|must) be (?:a |an )?(?:positive|non-negative|greater|less|larger"
        r"|smaller|at least|at most|between|either|in \[|>=? ?\d|power of)"
        r"|Error: .{0,300}\b[Pp]lease (?:set|specify|provide|upgrade|downgrade|install)\b"
        r"|(?:Distributed package|PyTorch|Torch) doesn't have|Unable to initialize backend '"
        r"|yaml\.\w+\.\w+Error|^usage: |TOMLDecodeError|omegaconf\.errors|hydra\.errors",
        cls=E,
        detail="configuration",
        weight=62,
        reason="the program rejects its configuration",
        example="AssertionError: --micro-batch-size must be given",
    ),
    Rule(
        name="sizes",
        pattern=r"(?i)(?:must be|is not|not|be) (?:evenly )?divisible by|world[ _]size .{0,60}(?:must|does not"
        r"|doesn't|not)|\S+parallel\S* .{0,60}(?:must|exceeds|greater than)|check batch related parameters"
        r"|is not equal to .{0,80}world_size"
        r"|mismatch in world[ _]size|world[ _]size mismatch",
        cls=E,
        detail="sizes",
        weight=78,
        reason="world size, parallelism and batch size do not match",
        example="AssertionError: world size (6) is not divisible by tensor model parallel size (4)",
    ),
    Rule(
        name="permission",
        pattern=r"PermissionError|Permission denied|EACCES|Operation not permitted|GatedRepoError"
        r"|401 (?:Client Error|Unauthorized)|403 Forbidden"
        r"|No API key configured|is not a valid model identifier|HFValidationError"
        r"|RepositoryNotFoundError|AuthenticationError"
        r"|Host key verification failed|Permission denied \(publickey",
        cls=E,
        detail="permission",
        weight=82,
        reason="the job lacks the permission for an operation",
        example="PermissionError: [Errno 13] Permission denied: '/mnt/shared/outputs/run17'",
    ),
    Rule(
        name="limits",
        pattern=r"(?i)too many open files|EMFILE|resource temporarily unavailable|can't start new thread"
        r"|pthread_create.{0,20}fail|max user processes"
        r"|ulimit: ",
        cls=E,
        detail="limits",
        weight=76,
        reason="a system limit (open files, threads) is too low",
        example="OSError: [Errno 24] Too many open files",
    ),
    Rule(
        name="build",
        pattern=r"Error building extension|nvcc (?:fatal|not found)|ninja: build stopped"
        r"|CUDA_HOME (?:environment variable )?is not set|fatal error: \S+\.h: No such file"
        r"|RuntimeError: Ninja is required"
        r"|Unable to JIT load the|CUDAMismatchException|Unsupported (?:GPU|gpu) architecture",
        cls=E,
        detail="build",
        weight=84,
        reason="an extension cannot be built on this host",
        example="RuntimeError: Error building extension 'fused_adam'",
    ),
)

CRASHES: tuple[Rule, ...] = (
    Rule(
        name="abort",
        pattern=r"Fatal Python error: Aborted|Signal: Aborted \(6\)|Process received signal.{0,20}Aborted",
        cls=FaultClass.UNKNOWN,
        detail="abort",
        role=UNSURE,
        weight=14,
        reason="a watchdog ended the process, or C++ aborted; earlier lines give the cause",
        example="Fatal Python error: Aborted",
    ),
    Rule(
        name="crash",
        pattern=r"(?i)fatal python error: [^a]|segmentation fault|caught signal (?:11|7|8|4)\b|\(core dumped\)"
        r"|general protection fault|segfault at|double free or corruption"
        r"|free\(\): |malloc\S*: .{0,30}(?:corrupt|invalid)|corrupted (?:size|double-linked|unsorted)"
        r"|stack smashing|pure virtual method|received signal SIG(?:SEGV|BUS|ILL|FPE)"
        r"|Illegal instruction",
        cls=U,
        detail="crash",
        weight=70,
        action=Remedy.RESTART_PROCESSES,
        reason="the interpreter or an extension crashed; only the process is lost",
        example="Fatal Python error: Segmentation fault",
        live=True,
    ),
    Rule(
        name="frame",
        pattern=r"\bframe #\d+: |^#\d+ 0x[0-9a-f]+ in |Exception raised from \S+ at",
        cls=FaultClass.UNKNOWN,
        weight=0,
        reason="a frame of a C++ stack",
        example="frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x57 (0x7f in libc10.so)",
    ),
    Rule(
        name="exception",
        pattern=r"(?:^|[\s\]:|>\"'])(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|StopIteration|Unreachable|NotFound"
        r"|Failure|OutOfResources)\s*(?:: |:$|$|\()|torch\._dynamo\.exc\.[A-Z]\w+: ",
        cls=U,
        detail="exception",
        weight=60,
        reason="the program raised an exception, and no line attributes it to another process",
        example="ValueError: x",
    ),
    Rule(
        name="watchdog-what",
        pattern=r"^\s*what\(\):\s+\[?(?:PG|Rank)",
        cls=FaultClass.UNKNOWN,
        weight=0,
        reason="C++ ends after an exception of the watchdog that an earlier line reports",
        example="  what():  [PG 0 Rank 3] Process group watchdog thread terminated with exception: x",
    ),
    Rule(
        name="exception-c",
        pattern=r"^\s*what\(\):|panicked at|^panic: |terminate called after throwing an instance of 'std::"
        r"|Assertion .{0,200} failed",
        cls=U,
        detail="exception",
        weight=57,
        reason="an exception or assertion in compiled code",
        example="  what():  basic_string::_M_construct null not valid",
    ),
    Rule(
        name="traceback",
        pattern=r"^.{0,80}Traceback \(most recent call last\)",
        cls=U,
        detail="traceback",
        role=UNSURE,
        weight=13,
        reason="an exception was raised; its line is not in the text",
        example="Traceback (most recent call last):",
    ),
    Rule(
        name="exception-short",
        pattern=r"^\s*(?:\[\S+\]:?\s*)?(?:raise )?(?:Exception|AssertionError|NotImplementedError)\s*$",
        cls=U,
        detail="exception",
        weight=59,
        reason="an exception without a message",
        example="Exception",
    ),
)
