"""Devices, boards and links that report their own failure: CUDA, NVML, the kernel, health checks, Xids.

House rule: a rule here may cost a healthy node, so it reads the message of a driver or a check, never a consequence.
Zero counters and corrected errors have rules of their own.
"""

from collections.abc import Iterator

from ftcore.faults.codes import XIDS, Xid, XidKind
from ftcore.faults.rule import COLLATERAL, UNSURE, Rule
from ftcore.faults.taxonomy import FaultClass, Remedy

G = FaultClass.GPU_HW

RULES: tuple[Rule, ...] = (
    Rule(
        name="check-passed",
        pattern=r"(?i)(?:check|diag\w*|test)s?\b.{0,40}\b(?:passed|succeeded|ok|healthy)\b"
        r"|\b0 (?:failed|failures|errors|faulty|unhealthy)\b|\berrors?\s*[:=]?\s*0\s*$",
        cls=FaultClass.UNKNOWN,
        weight=0,
        reason="a check that passed",
        example="health check passed on node-3: 8 GPUs, ECC errors 0",
    ),
    Rule(
        name="ecc-count-zero",
        pattern=r"(?i)uncorrect\w*(?: \w+){0,3}\s*[:=]\s*0\s*$",
        cls=FaultClass.UNKNOWN,
        weight=0,
        reason="an error counter is zero",
        example="        SRAM Uncorrectable : 0",
    ),
    Rule(
        name="ecc-count",
        pattern=r"(?i)uncorrect\w*(?: \w+){0,3}\s*[:=]\s*[1-9]\d*\s*$",
        cls=G,
        detail="ecc",
        weight=94,
        reason="the counter of uncorrectable errors is not zero",
        example="        SRAM Uncorrectable : 3",
    ),
    Rule(
        name="nvlink-uncorrectable",
        pattern=r"(?i)uncorrectable NVLink|cudaErrorNvlinkUncorrectable|CUDA_ERROR_NVLINK_UNCORRECTABLE"
        r"|NVLink\S*.{0,60}(?:fatal error|link (?:is )?down|training failed)"
        r"|HCCS LINK ERROR|\blink \d+ is down on GPU|NVSwitch(?:es)? (?:failure|failed|fault)",
        cls=G,
        detail="nvlink",
        weight=100,
        reason="CUDA read the error from the link's registers",
        example="RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
        live=True,
    ),
    Rule(
        name="ecc-uncorrectable",
        pattern=r"(?i)uncorrectable (?:volatile |aggregate )?(?:ECC|memory error)|ECCUncorrectable|ECC_UNCORRECTABLE"
        r"|ECCNotCorrectable|(?:SRAM|DRAM|HBM) uncorrectable|double[- ]bit ECC|multi[- ]bit ECC"
        r"|ECC errors?.{0,30}uncorrect|\bUCE (?:error|fault)|uncorrectable errors? .{0,40}\bGPU"
        r"|double[- ]bit(?: ECC)?(?: errors?)?\s*:\s*[1-9]|SUSPECT (?:REMOTE|MEM) ERROR"
        r"|error code(?: is|:) ?50705[34]\b"
        r"|uncorrect(?:ed|able)\b.{0,30}\b(?:ecc|gpu memory|hbm|dram|sram)\b|\becc\b.{0,30}\buncorrect"
        r"|\buncorr\w{0,6}\.? ecc\D{0,6}[1-9]",
        cls=G,
        detail="ecc",
        weight=100,
        reason="the device's memory lost data; a mention of ECC means hardware even in a CUDA error",
        example="RuntimeError: CUDA error: uncorrectable ECC error encountered",
        live=True,
    ),
    Rule(
        name="off-the-bus",
        pattern=r"(?i)fallen off the bus|\bGPU is lost\b|GPU_IS_LOST|unable to determine the device handle for gpu"
        r"|reboot the system to recover this GPU|GPU at PCI:\S+ .{0,40}lost|GPU (?:device )?(?:is )?not responding"
        r"|(?:has|have) lost (?:a|one|\d+) GPUs?\b"
        r"|^No devices were found|\bGPU lost\b|pciehp.{0,40}(?:link down|card not present)|GPU has fallen",
        cls=G,
        detail="off-the-bus",
        weight=100,
        reason="the device no longer answers on PCIe",
        example="NVRM: fallen off the bus and is not responding to commands.",
        live=True,
    ),
    Rule(
        name="firmware-silent",
        pattern=r"kgspIsHeartbeatTimedOut|GSP RM heartbeat timed out|_kgspRpcRecvPoll: .{0,60}timed? ?out"
        r"|(?:RmInitAdapter|rm_init_adapter) failed",
        cls=G,
        detail="gsp-firmware",
        weight=98,
        reason="the driver waits for the device's firmware, which no longer answers",
        example="NVRM: GPU0 _kgspRpcRecvPoll: GSP RM heartbeat timed out",
        live=True,
    ),
    Rule(
        name="fabric",
        pattern=r"error in the Fabric Manager or NVSwitch|Failed to bind NVLink SHARP.{0,60}Multicast"
        r"|nv-fabricmanager.{0,80}(?:fatal|failed to (?:initialize|train))",
        cls=G,
        detail="fabric",
        weight=94,
        reason="NCCL or the fabric manager reports that the NVSwitches of this node are not set up",
        example="This is usually caused by a system or configuration error in the Fabric Manager or NVSwitches.",
        live=True,
    ),
    Rule(
        name="wrong-result-persistent",
        pattern=r"(?i)persistent (?:hardware )?error on (?:this|that|the first) GPU"
        r"|silent data corruption (?:detected|found)"
        r"|GPU \d+: FAULTY",
        cls=G,
        detail="wrong-result",
        weight=94,
        reason="the same computation gives a wrong result on this device again",
        example="Rank 4, node a-1, device 2: possible persistent error on this GPU",
        live=True,
    ),
    Rule(
        name="wrong-result-once",
        pattern=r"unexpected result is not reproducible|transient error on this GPU",
        cls=G,
        detail="wrong-result-once",
        weight=84,
        action=Remedy.RESTART_PROCESSES,
        reason="the same computation gave two different results: watch the device",
        example="First rerun: unexpected result is not reproducible within the tolerance (7.1 != 2.2)",
        live=True,
    ),
    Rule(
        name="cuda-hardware",
        pattern=r"(?i)cuda\w* (?:error|failure)\b.{0,120}(?:\bor a |: )hardware error|peer GPU memory over nvlink",
        cls=G,
        detail="nvlink-access",
        weight=84,
        action=Remedy.RESTART_PROCESSES,
        reason="CUDA reports a failed access over NVLink or a hardware error, without saying which",
        example="RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
        live=True,
    ),
    Rule(
        name="row-remap-failed",
        pattern=r"(?i)row[- ]?remap\w* fail|remapping failure occurred\s*:\s*yes|page retirement.{0,20}fail",
        cls=G,
        detail="ecc",
        weight=100,
        reason="a bad row of the device's memory could not be remapped",
        example="NVRM: GPU0 Row Remapper: row remapping failure, no spare rows left",
        live=True,
    ),
    Rule(
        name="gpu-needs-reset",
        pattern=r"(?i)GPU requires? (?:a )?reset|GPU recovery action\S* (?:changed )?.{0,40}(?:reset|reboot|drain)"
        r"|GPU_REQUIRES_RESET|recovery action.{0,20}: (?:GPU Reset|Node Reboot|Drain)"
        r"|Xid[^:]*:? ?\(?[^)]*\)?: 154\b.{0,80}(?:reset|reboot|drain)",
        cls=G,
        detail="needs-reset",
        weight=100,
        reason="the driver states the recovery action that the device needs",
        example="NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset "
        "Required)",
        live=True,
    ),
    Rule(
        name="nvlink5-fatal",
        pattern=r"\bX(?:id|ID)(?: \([^)]*\))?[ :]*(?:14[4-9]|150)\b.{0,60}\bFatal\b",
        cls=G,
        detail="nvlink",
        weight=100,
        reason="the driver marks this NVLink 5 error as fatal",
        example="NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)",
        live=True,
    ),
    Rule(
        name="nvlink5",
        pattern=r"\bX(?:id|ID)(?: \([^)]*\))?[ :]*(?:14[4-9]|150)\b",
        cls=G,
        detail="nvlink-early",
        weight=10,
        action=Remedy.WAIT,
        node=False,
        reason="a non-fatal NVLink 5 error",
        example="NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Nonfatal XC0 i0 Link 08",
        live=True,
    ),
    Rule(
        name="switch-fatal",
        pattern=r"\bSXid\b.{0,80}\bFatal\b",
        cls=G,
        detail="nvswitch",
        weight=95,
        reason="a link of the NVSwitch went down",
        example="nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
        live=True,
    ),
    Rule(
        name="switch-report",
        pattern=r"\bSXid\b",
        cls=G,
        detail="nvswitch-early",
        weight=10,
        action=Remedy.WAIT,
        node=False,
        reason="a non-fatal NVSwitch report, or the data that follows a fatal one",
        example="nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 22013, Non-fatal, Link 37 minion link DLREQ interrupt",
    ),
    Rule(
        name="machine-check",
        pattern=r"(?i)mce: .*(?:uncorrected|fatal|panic)|EDAC .{0,40}\b(?:UE|uncorrected)\b|Uncorrected hardware"
        r"|severity=(?:Uncorrected \()?Fatal|AER: .{0,60}\((?:Uncorrected, )?Fatal\)"
        r"|Hardware Error\S*.{0,40}(?:fatal|uncorrect)"
        r"|\bIERR\b|PCI SERR|event severity: fatal",
        cls=G,
        detail="host-hardware",
        weight=95,
        reason="processor, memory or bus of the host reported an uncorrected error",
        example="pcieport 0000:80:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
        live=True,
    ),
    Rule(
        name="machine-check-corrected",
        pattern=r"(?i)\bmce: |EDAC .{0,40}\bCE\b"
        r"|severity=(?:Corrected|Uncorrected \(Non)|AER: .{0,60}(?:Corrected|Non-Fatal)|machine check events logged",
        cls=G,
        detail="host-hardware-early",
        weight=10,
        action=Remedy.WAIT,
        node=False,
        reason="a corrected or non-fatal error of the host",
        example="EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0",
    ),
    Rule(
        name="health-check-gpu",
        pattern=r"(?i)(?:health.?check|nhc|dcgm\w?(?: diag)?"
        r"|(?:gpu|node|hardware) diag\w*)\b.{0,120}(?:fail|error).{0,120}"
        r"(?:\bgpu|ecc|nvlink|xid|pcie|device \d|bandwidth|bus bw)",
        cls=G,
        detail="health-check",
        weight=95,
        reason="a check of the node's devices failed",
        example="ERROR: nhc: Health check failed: Bandwidth is low on device 1. Reported bandwidth is 7 GB/s.",
        live=True,
    ),
    Rule(
        name="node-check",
        pattern=r"(?i)(?:GPU|device|node|accelerator)s?(?: \S{1,24})? (?:is |are |was |marked )(?:as )?(?:faulty"
        r"|unhealthy|broken|in (?:an )?error state)"
        r"|fault(?:y)? nodes? (?:are|is)?:? ?\[ ?['\"\d]|nvidia-smi.{0,60}(?:ERR!|No devices were found"
        r"|has failed)|\| *ERR! |\bERR! *\|"
        r"|expected \d+ GPUs?,? (?:but )?(?:found|got|only|saw)|only \d+ (?:of|out of) \d+ GPUs"
        r"|GPU.{0,30}(?:disappeared|dropped off|not detected)"
        r"|\bthis node is down\b|NodeCheckFailedError"
        r"|GPU\w*(?:Unhealthy|Error|Failure)\S* .{0,20}\bTrue\b"
        r"|node [\w.-]{0,40}\d\S{0,10} (?:is )?(?:breakdown|broken down)|exit[_ ]?reason\S* ['\"]?hardware"
        r"|gres/gpu count .{0,40}(?:lower|too low|less)|nvidia-smi\S* .{0,30}(?:timed? ?out|hangs?\b|hung)"
        r"|硬件故障|掉卡"
        r"|\[Unknown Error\]|GPU access blocked",
        cls=G,
        detail="unhealthy",
        weight=94,
        reason="a check or a driver tool reports that a device is missing or broken",
        example="Fault nodes are: [3]  and stragglers are: [].",
    ),
    Rule(
        name="check-failed",
        pattern=r"(?i)\b(?:gpu|nvlink|ecc|dcgm|memtest|pcie)[-_ ]?(?:check|test|burn"
        r"|diag\w*)\S{0,2} (?:has )?fail(?:ed|ure)?\b"
        r"|page (?:blacklist|retirement)\w*\s*:\s*yes|\bpending page \w+\s*:\s*yes",
        cls=G,
        detail="health-check",
        weight=94,
        reason="a check of the node's devices failed",
        example="preflight: nvlink check FAILED",
        live=True,
    ),
    Rule(
        name="heat",
        pattern=r"(?i)thermal (?:shutdown|violation)|HW (?:thermal )?slowdown\s*:\s*active|gpu.{0,40}overheat"
        r"|power brake slowdown\s*:\s*active"
        r"|gpu.{0,40}temperature.{0,60}(?:above|exceed|critical)",
        cls=G,
        detail="heat-or-power",
        weight=70,
        reason="the device throttles itself",
        example="            HW Slowdown                   : Active",
        live=True,
    ),
    Rule(
        name="device-plugin",
        pattern=r"UnexpectedAdmissionError|device plugin.{0,80}(?:unhealthy|no longer healthy)"
        r"|requires? healthy devices",
        cls=G,
        detail="unhealthy",
        weight=90,
        reason="the node's device plug-in could not allocate a healthy GPU",
        example="Reason: UnexpectedAdmissionError  Message: Allocate failed due to no healthy devices present",
    ),
    Rule(
        name="gpu-reset",
        pattern=r"(?i)amdgpu.{0,60}(?:GPU reset|ring \S+ timeout|uncorrectable|RAS .{0,30}error)"
        r"|HBM .{0,20}ECC.{0,20}error"
        r"|xpu.{0,40}(?:wedged|hw error)"
        r"|amdgpu_job_timedout|GPU HANG: ecode|habanalabs.{0,60}(?:heartbeat|hard.?reset|uncorrect|fatal)"
        r"|npu.{0,40}health.{0,20}(?:alarm|critical)",
        cls=G,
        detail="device",
        weight=95,
        reason="the driver of another vendor's device reports a failure of the device",
        example="amdgpu 0000:83:00.0: amdgpu: GPU reset begin!",
        live=True,
    ),
)


def _xid_rules() -> Iterator[Rule]:
    for xid in XIDS:
        codes = "|".join(map(str, xid.codes))
        yield _xid_rule(xid, rf"(?i)\bXid(?: error| errors?:| code| event)?(?: \([^)]*\))?[ :=#]{{0,3}}(?:{codes})\b")


def _xid_rule(xid: Xid, pattern: str) -> Rule:
    example = f"NVRM: Xid (PCI:0000:38:00): {xid.codes[0]}, pid='<unknown>', name=<unknown>, Ch 00000008"
    cls, weight, action, node, role, reason = {
        XidKind.DEVICE: (G, 100, None, None, "root", "the device needs a reset, or its node a reboot"),
        XidKind.CONTAINED: (
            G,
            98,
            Remedy.RESTART_PROCESSES,
            True,
            "root",
            "the error hit one process only; the device continues and is reset when it is idle",
        ),
        XidKind.EARLY: (G, 10, Remedy.WAIT, True, "root", "recorded or corrected; watch the device"),
        XidKind.APP: (FaultClass.CUDA_STICKY, 75, None, False, "root", "usually a bug of the program"),
        XidKind.UNCLEAR: (FaultClass.CUDA_STICKY, 72, None, False, "root", "the program or the device"),
        XidKind.FOLLOW: (
            FaultClass.COLLATERAL,
            15,
            None,
            False,
            COLLATERAL,
            "never a cause: look for what came before",
        ),
        XidKind.CONFIG: (FaultClass.CONFIG_ENV, 75, None, False, "root", "the device is set up wrongly"),
    }[xid.kind]
    return Rule(
        name=f"xid-{xid.name}",
        pattern=pattern,
        cls=cls,
        detail=f"xid-{xid.name}",
        role=role,
        weight=weight,
        reason=reason,
        example=example,
        action=action,
        node=node,
        live=True,
    )


XID_RULES: tuple[Rule, ...] = tuple(_xid_rules())

WORDS: tuple[Rule, ...] = (
    Rule(
        name="xid-other",
        pattern=r"(?i)\bXid\b(?: \([^)]*\))?\D{0,20}[1-9]",
        cls=G,
        detail="xid-other",
        role=UNSURE,
        weight=30,
        action=Remedy.RESTART_PROCESSES,
        reason="the driver reports a device error with an Xid that is not in the table",
        example="NVRM: Xid (PCI:0000:38:00): 999, pid=1, name=python",
    ),
    Rule(
        name="hardware-words",
        pattern=r"(?i)\bhardware[ _](?:failure|fault|error|issue|problem)|\b(?:bad|faulty|broken|dead|defective) "
        r"(?:gpu|card|host|dimm|nic|device)s?\b|\bGPU (?:failure|fault|crash)",
        cls=G,
        detail="words",
        role=UNSURE,
        weight=26,
        action=Remedy.RESTART_PROCESSES,
        reason="the line mentions broken hardware without details: not enough to take a node out",
        example="[ops] suspected hardware failure on node-17",
    ),
)
"""Read after every more definite rule."""
