"""Slurm, Kubernetes and clouds: which process was ended, by what and why; then unexplained exits."""

import signal

from ftcore.faults.codes import SIGNAL_MEANINGS, exit_patterns
from ftcore.faults.rule import COLLATERAL, UNSURE, Rule
from ftcore.faults.taxonomy import FaultClass, Remedy

P, E, U = FaultClass.SIGNAL_PREEMPTION, FaultClass.CONFIG_ENV, FaultClass.USER_CODE

RULES: tuple[Rule, ...] = (
    Rule(
        name="time-limit",
        pattern=r"(?i)due to time limit|(?:^|[^=] )DeadlineExceeded\b|exceeded (?:its )?(?:wall[- ]?(?:clock|time)"
        r"|time) limit|activeDeadlineSeconds"
        r"|TERM_RUNLIMIT|walltime \d+ exceeded|\bState[:=] ?TIMEOUT\b|job .{0,40}exceeded .{0,20}walltime",
        cls=P,
        detail="time-limit",
        weight=94,
        action=Remedy.WAIT,
        reason="the scheduler ended the job at its time limit",
        example="slurmstepd: error: *** JOB 3665238 ON node-01 CANCELLED AT 2023-06-10T09:59:21 DUE TO TIME LIMIT ***",
    ),
    Rule(
        name="node-failure",
        pattern=r"(?i)due to node failure|\bNODE_FAIL\b|node failure on|\bNodeLost\b|\bNodeNotReady\b"
        r"|NodeShutdown|node .{0,40}(?:is )?not responding"
        r"|TerminationByKubelet|DeletionByTaintManager|node\.kubernetes\.io/(?:unreachable|not-ready)|Kernel panic"
        r"|node is (?:being )?shut(?:ting)? down|imminent node shutdown",
        cls=P,
        detail="node-failure",
        weight=93,
        action=Remedy.REPLACE_NODE,
        node=True,
        reason="the scheduler or the platform lost the node",
        example="slurmstepd: error: *** JOB 7 ON node-01 CANCELLED AT 2024-01-01T00:00:00 DUE TO NODE FAILURE, "
        "SEE SLURMCTLD LOG ***",
    ),
    Rule(
        name="daemon-lost",
        pattern=r"RTE has lost communication with a remote daemon|[Ll]ost connection to (?:the )?(?:orted|prted|hydra)",
        cls=P,
        detail="daemon-lost",
        weight=59,
        action=Remedy.RESTART_PROCESSES,
        reason="the launcher's daemon on a node ended or is unreachable",
        example="ORTE has lost communication with a remote daemon.",
    ),
    Rule(
        name="preempted",
        pattern=r"(?i)due to preemption|\bPREEMPTED\b|\bpreempt(?:ed|ing|ion)\b.{0,60}(?:pod|job|instance|notice"
        r"|workload|higher|by|accommodate)"
        r"|(?:spot|preemptible).{0,60}(?:interrupt|terminat|reclaim|preempt)|interruption (?:notice"
        r"|warning)|rebalance recommendation"
        r"|(?:instance|node|vm) .{0,30}will be (?:terminated|stopped|preempted|reclaimed)"
        r"|TERMINATE_ON_HOST_MAINTENANCE"
        r"|PreemptionByScheduler"
        r"|maintenance[- ]event\S*\s*[:=]\s*['\"]?(?:terminate|migrate)|(?:upcoming|scheduled) (?:host )?maintenance"
        r"|TERM_PREEMPT|scheduled[ -]?event.{0,40}(?:preempt|terminate)|spot instance \S+ (?:was )?removed",
        cls=P,
        detail="preempted",
        weight=94,
        action=Remedy.WAIT,
        reason="the node was preempted: by a job of higher priority, or by the cloud provider",
        example="slurmstepd: error: *** STEP 7.0 ON node-01 CANCELLED AT 2024-01-01T00:00:00 DUE TO PREEMPTION ***",
    ),
    Rule(
        name="planned-exit",
        pattern=r"\[exiting program after \S+ minutes\]|\[exiting program at iteration \d+\]"
        r"|exiting program after receiving SIGTERM",
        cls=P,
        detail="planned-exit",
        weight=66,
        action=Remedy.WAIT,
        reason="the program ended at its configured time, usually with a checkpoint",
        example="[exiting program after 1190.0357275923093 minutes] datetime: 2021-08-08 01:00:51",
    ),
    Rule(
        name="evicted",
        pattern=r"\bEvicted\b|pod was evicted|EvictionByEvictionAPI"
        r"|\b[Ee]victing pod |\bpod/\S+ evicted|node/\S+ (?:drained|cordoned)"
        r"|\b(?:was |being )?drained by\b|drain requested",
        cls=P,
        detail="evicted",
        weight=64,
        action=Remedy.WAIT,
        reason="the platform evicted the pod; the message gives the reason",
        example="agents-ppo-master-0   0/1   Evicted   0   19h",
    ),
    Rule(
        name="container-set-up",
        pattern=r"ImagePullBackOff|ErrImagePull|InvalidImageName|CreateContainerConfigError|CreateContainerError"
        r"|ContainerCannotRun|RunContainerError"
        r"|\bStartError\b|FailedMount|MountVolume\.\S+ failed|OCI runtime create failed|exec format error"
        r"|pull access denied"
        r"|(?:sbatch|srun): error: (?:Invalid|Unable to (?:allocate|create)|Batch job submission failed)|execve\(\)"
        r"|nvidia-container-cli: |modprobe: FATAL",
        cls=E,
        detail="container-set-up",
        weight=86,
        reason="image, volume or job description is wrong; a restart fails in the same way",
        example="trainer-worker-0   0/1   ImagePullBackOff   0   3m",
    ),
    Rule(
        name="no-capacity",
        pattern=r"FailedScheduling|Insufficient nvidia\.com/gpu|\d+/\d+ nodes are available|Requested nodes are busy",
        cls=P,
        detail="no-capacity",
        weight=45,
        action=Remedy.WAIT,
        reason="not enough free resources; the scheduler starts the job when there are",
        example="Warning  FailedScheduling  0/12 nodes are available: 12 Insufficient nvidia.com/gpu.",
    ),
    Rule(
        name="cancelled",
        pattern=r"\bCANCELLED AT\b|\bCANCELLED by \d+|scancel\b|TERM_OWNER|job (?:was )?cancelled by"
        r"|(?:step|job) cancelled by user",
        cls=P,
        detail="cancelled",
        role=UNSURE,
        weight=36,
        action=Remedy.WAIT,
        reason="a user cancelled the job, or Slurm ended the step after a task's failure",
        example="slurmstepd: error: *** STEP 405737.0 ON node-01 CANCELLED AT 2020-01-16T23:05:49 ***",
    ),
    Rule(
        name="task-crashed",
        pattern=r"(?:task|tasks) [\d,-]+: (?:Segmentation fault|Aborted|Bus error|Illegal instruction"
        r"|Floating point exception)",
        cls=U,
        detail="crash",
        weight=64,
        action=Remedy.RESTART_PROCESSES,
        reason="srun names the task that crashed",
        example="srun: error: node-01: task 0: Segmentation fault",
    ),
    Rule(
        name="task-killed",
        pattern=r"(?:task|tasks) [\d,-]+: (?:Out Of Memory|Killed)",
        cls=P,
        detail="sigkill",
        role=UNSURE,
        weight=34,
        action=Remedy.RESTART_PROCESSES,
        reason="SIGKILL: " + SIGNAL_MEANINGS[signal.SIGKILL],
        example="srun: error: node-01: task 3: Killed",
    ),
    Rule(
        name="task-terminated",
        pattern=r"(?:task|tasks) [\d,-]+: Terminated",
        cls=FaultClass.COLLATERAL,
        detail="terminated",
        role=COLLATERAL,
        weight=16,
        reason="srun ended this task after another one",
        example="srun: error: node-01: task 1: Terminated",
    ),
)

EXITS: tuple[Rule, ...] = (
    Rule(
        name="exit-sigsegv",
        pattern=f"{exit_patterns(signal.SIGSEGV)}|{exit_patterns(signal.SIGILL)}",
        cls=U,
        detail="sigsegv",
        weight=55,
        action=Remedy.RESTART_PROCESSES,
        reason="SIGSEGV: " + SIGNAL_MEANINGS[signal.SIGSEGV],
        example="failed (exitcode: -11) local_rank: 3 (pid: 886) of binary: /usr/bin/python",
    ),
    Rule(
        name="exit-sigbus",
        pattern=exit_patterns(signal.SIGBUS),
        cls=FaultClass.DATA_LOADER,
        detail="sigbus",
        role=UNSURE,
        weight=54,
        action=Remedy.STOP_AND_REPORT,
        reason="SIGBUS: " + SIGNAL_MEANINGS[signal.SIGBUS],
        example="failed (exitcode: -7) local_rank: 3 (pid: 886) of binary: /usr/bin/python",
    ),
    Rule(
        name="exit-sigkill-alone",
        pattern=r"failed \(exitcode: -9\)|^\s*exitcode\s*: -9\b|Signal 9 \(SIGKILL\) received by PID"
        r"|died with <Signals\.SIGKILL|return code = -9\b|exited on signal 9\b"
        r"|^(?:\S{0,40} )?(?:line \d+: *)?\d* *Killed\b",
        cls=FaultClass.OOM_HOST,
        detail="sigkill",
        role=UNSURE,
        weight=34,
        action=Remedy.RESTART_PROCESSES,
        reason="one process was killed, its launcher was not: a scheduler ends both and sends SIGTERM first, the OOM "
        "killer ends the largest process only",
        example="failed (exitcode: -9) local_rank: 3 (pid: 886) of binary: /usr/bin/python",
    ),
    Rule(
        name="exit-sigkill",
        pattern=exit_patterns(signal.SIGKILL),
        cls=P,
        detail="sigkill",
        role=UNSURE,
        weight=34,
        action=Remedy.RESTART_PROCESSES,
        reason="SIGKILL: " + SIGNAL_MEANINGS[signal.SIGKILL],
        example="container trainer: Error, exit code 137",
    ),
    Rule(
        name="exit-timeout",
        pattern=r"exit ?code\"?\s*[:=]?\s*124\b|exit (?:status|code):? 124\b|exited with (?:code|status) 124\b",
        cls=P,
        detail="time-limit",
        weight=36,
        action=Remedy.WAIT,
        reason="exit code 124: the command `timeout` ended the process",
        example="process exited with code 124",
    ),
    Rule(
        name="signal-received",
        pattern=r"(?i)(?:received|caught|got) (?:a )?(?:signal:? )?(?:SIGTERM|SIGUSR[12]|SIGINT|SIGHUP|signal 15"
        r"|15\b)"
        r"|SignalException: Process \d+ got signal|KeyboardInterrupt|Received \d+ death signal"
        r"|^(?:\S{1,60} )?User defined signal [12]\b",
        cls=P,
        detail="sigterm",
        role=UNSURE,
        weight=32,
        action=Remedy.WAIT,
        reason="an external request to end: from the scheduler, an operator, or an agent after another rank ended",
        example="torch.distributed.elastic.multiprocessing.api.SignalException: Process 8186 got signal: 15",
    ),
    Rule(
        name="exit-sigterm",
        pattern=exit_patterns(signal.SIGTERM) + r"|^(?:\S{1,60} )?Terminated\s*$",
        cls=P,
        detail="sigterm",
        role=UNSURE,
        weight=18,
        action=Remedy.WAIT,
        reason="SIGTERM: " + SIGNAL_MEANINGS[signal.SIGTERM],
        example="failed (exitcode: -15) local_rank: 3 (pid: 886) of binary: /usr/bin/python",
    ),
    Rule(
        name="exit-sigabrt",
        pattern=exit_patterns(signal.SIGABRT),
        cls=FaultClass.UNKNOWN,
        detail="sigabrt",
        role=UNSURE,
        weight=14,
        reason="SIGABRT: " + SIGNAL_MEANINGS[signal.SIGABRT],
        example="failed (exitcode: -6) local_rank: 3 (pid: 886) of binary: /usr/bin/python",
    ),
    Rule(
        name="pool-worker",
        pattern=r"BrokenProcessPool|process in the process pool was terminated abruptly|TerminatedWorkerError"
        r"|worker process managed by the executor was unexpectedly terminated",
        cls=FaultClass.OOM_HOST,
        detail="sigkill",
        role=UNSURE,
        weight=61,
        action=Remedy.RESTART_PROCESSES,
        reason="one process of a pool was killed and the others were not: usually the OOM killer",
        example="concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly",
    ),
    Rule(
        name="exit-127",
        pattern=r"exit ?code\"?\s*[:=]?\s*12[67]\b|exit (?:status|code):? 12[67]\b"
        r"|exited with (?:code|status) 12[67]\b",
        cls=E,
        detail="command",
        weight=36,
        reason="exit code 126 or 127: a shell could not run or find the command",
        example="process exited with code 127",
    ),
    Rule(
        name="exit-2",
        pattern=r"failed \(exitcode: 2\)|^\s*exitcode\s*: 2\b|exited with (?:code|status) 2\b|exit status 2\b",
        cls=E,
        detail="arguments",
        role=UNSURE,
        weight=14,
        reason="exit code 2: Python did not find the script, or the program rejected its arguments",
        example="failed (exitcode: 2) local_rank: 0 (pid: 886) of binary: /usr/bin/python",
    ),
    Rule(
        name="exit-1",
        pattern=r"exit ?code\"?\s*[:=]?\s*1\b|[Ee]xited with exit code 1\b|exited with (?:code|status) 1\b"
        r"|non-zero exit status 1\b|return code = 1\b",
        cls=U,
        detail="exit",
        role=UNSURE,
        weight=12,
        reason="exit code 1: Python ended after an exception that is not in the text",
        example="failed (exitcode: 1) local_rank: 0 (pid: 886) of binary: /usr/bin/python",
    ),
    Rule(
        name="exit-other",
        pattern=r"exit ?code\"?\s*[:=]?\s*[1-9]\d*\b|[Ee]xited with exit code [1-9]|exited with (?:code|status) [1-9]"
        r"|non-zero exit status [1-9]",
        cls=FaultClass.UNKNOWN,
        detail="exit",
        role=UNSURE,
        weight=12,
        reason="a non-zero exit code says only that an earlier failure occurred",
        example="failed (exitcode: 3) local_rank: 0 (pid: 886) of binary: /usr/bin/python",
    ),
    Rule(
        name="launcher-wraps",
        pattern=r"CalledProcessError|ProcessExitedException",
        cls=FaultClass.UNKNOWN,
        weight=0,
        reason="the launcher's own exception about a failed child; other rules read the exit codes and signals in it",
        example="subprocess.CalledProcessError: Command '['python', 'train.py']' returned an exit status",
    ),
)
