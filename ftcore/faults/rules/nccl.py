"""NCCL and the links below it: which rank timed out, whose peer ended, which link failed.

A timeout names its victims; a closed connection names the peer; an InfiniBand completion error names the path between
the two. House rule: only a port's or a completion's message is evidence for a link; NCCL's result codes alone are not.
"""

from collections.abc import Iterator

from ftcore.faults.codes import IB_STATUS, Wc
from ftcore.faults.rule import COLLATERAL, UNSURE, Rule
from ftcore.faults.taxonomy import FaultClass, Remedy

T, R, E, X = FaultClass.NCCL_TIMEOUT, FaultClass.NCCL_REMOTE_ERROR, FaultClass.CONFIG_ENV, FaultClass.COLLATERAL


def _completions() -> Iterator[Rule]:
    """One rule for each kind of failed completion."""
    readings = {
        Wc.LINK: (R, 78, UNSURE, None, None, "no answer from the peer: this host, the peer or the link between them"),
        Wc.PEER: (
            R,
            77,
            UNSURE,
            Remedy.RESTART_PROCESSES,
            False,
            "the peer refused or could not answer: check the peer",
        ),
        Wc.LOCAL: (R, 79, "root", None, None, "memory registration or queue pair failed on the host that prints this"),
        Wc.FOLLOW: (X, 20, COLLATERAL, None, False, "the queue pair was already in error: check the peer"),
        Wc.PROGRAM: (
            R,
            70,
            "root",
            Remedy.RESTART_PROCESSES,
            False,
            "sizes or operations of the two sides do not match",
        ),
    }
    for kind, (cls, weight, role, action, node, reason) in readings.items():
        codes = [code for code, (_, of) in IB_STATUS.items() if of is kind]
        any_of = "|".join(map(str, codes))
        yield Rule(
            name=f"ib-completion-{kind}",
            pattern=rf"Got completion (?:from|with).{{0,120}}(?:error|status)[ =](?:{any_of})\b",
            cls=cls,
            detail=f"ib-{kind}",
            role=role,
            weight=weight,
            reason=reason,
            example=f"transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.1<32049> with error "
            f"{codes[-1]}, opcode 0, len 0, vendor err 129",
            action=action,
            node=node,
            live=True,
        )


EARLY: tuple[Rule, ...] = (
    Rule(
        name="ib-memlock",
        pattern=r"ibv_(?:reg_mr|create_cq|create_qp)\S* failed.{0,60}(?:Cannot allocate memory|error 12)"
        r"|memlock.{0,40}(?:too|insufficient|fail|low|limit)",
        cls=E,
        detail="memlock",
        weight=83,
        reason="the limit of locked memory (memlock) is too small for InfiniBand",
        example="NCCL WARN Call to ibv_create_qp failed with error Cannot allocate memory",
    ),
    Rule(
        name="ucx-cuda",
        pattern=r"UCX +ERROR .{0,120}(?:cuCtx|cuda|device context)",
        cls=E,
        detail="ucx",
        weight=84,
        reason="UCX found a CUDA set-up that it was not built or configured for",
        example="cuda_ipc_md.c:62   UCX  ERROR cuCtxGetDevice(&cu_device) is failed. ret:invalid device context",
    ),
    Rule(
        name="ucx",
        pattern=r"UCX +ERROR ",
        cls=R,
        detail="ucx",
        role=UNSURE,
        weight=58,
        action=Remedy.RESTART_PROCESSES,
        node=False,
        reason="UCX lost a peer or a transport; its message resembles a disk error",
        example="ucp_rkey.c:250  UCX  ERROR Failed to unpack remote key from remote md[4]: Input/output error",
    ),
    Rule(
        name="ofi-set-up",
        pattern=r"Could not find any optimal provider|NET/OFI .{0,80}(?:Couldn't open"
        r"|Creating new endpoint .{0,60}failed)"
        r"|fi_getinfo.{0,60}empty list",
        cls=E,
        detail="ofi",
        weight=84,
        reason="the network plug-in finds no usable provider; a restart fails in the same way",
        example="get_ofi_provider:312 NCCL WARN NET/OFI Could not find any optimal provider",
    ),
    Rule(
        name="nccl-cuda",
        pattern=r"ncclUnhandledCudaError|unhandled cuda error",
        cls=FaultClass.CUDA_STICKY,
        detail="seen-by-nccl",
        weight=48,
        reason="NCCL's result 1: NCCL passes on a CUDA error",
        example="RuntimeError: NCCL error in: ../ProcessGroupNCCL.cpp:1275, unhandled cuda error, NCCL version 2.18.5",
    ),
)
"""Read before the rules on memory and CUDA, whose terms these lines repeat."""

RULES: tuple[Rule, ...] = (
    Rule(
        name="nccl-returns",
        pattern=r"NCCL INFO \S{1,60}:\d+ -> [26]\b",
        cls=R,
        detail="system-error",
        role=UNSURE,
        weight=7,
        action=Remedy.RESTART_PROCESSES,
        node=False,
        reason="NCCL's calls return result 2 or 6: a system call failed, or a peer is unreachable",
        example="gpu-1:51:90 [3] NCCL INFO transport/net.cc:1302 -> 6",
    ),
    Rule(
        name="nccl-info",
        pattern=r"NCCL INFO ",
        cls=FaultClass.UNKNOWN,
        weight=0,
        reason="NCCL's set-up messages, including optional plug-ins that were not found",
        example="n:1:2 [0] NCCL INFO NET/Plugin : libnccl-net.so: cannot open shared object file",
    ),
    *_completions(),
    Rule(
        name="ib-port",
        pattern=r"Got async (?:fatal )?event ?: (?:port error|device fatal|local catastrophic|link down)"
        r"|mlx5?_\S+.{0,60}(?:[Ll]ink down|port \d+ (?:is )?down|state changed to Down)|No IB port .{0,60}is ACTIVE"
        r"|check_hw_ib|IB port .{0,40}\b(?:down|DOWN|inactive)",
        cls=R,
        detail="link",
        weight=80,
        reason="the port reports that its link is down; repeated reports mean a flapping link",
        example="transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error",
        live=True,
    ),
    Rule(
        name="nic",
        pattern=r"mlx\d_core.{0,80}(?:health compromised|syndrome|FW error|device (?:is )?not responding|fatal"
        r"|cable|module)"
        r"|(?:NIC|Copper|Fibre)? ?[Ll]ink is [Dd]own|[Ll]ink (?:flap|failure|DOWN)|lost carrier"
        r"|LinkDowned|IBV_WC_(?:RETRY_EXC|RNR_RETRY)\w*"
        r"|carrier lost|link status definitely down",
        cls=R,
        detail="link",
        weight=77,
        reason="the network card or its driver reports that the link is lost",
        example="mlx5_core 0000:1a:00.0: device's health compromised - reached miss count",
        live=True,
    ),
    Rule(
        name="ofi-peer",
        pattern=r"(?i)unresponsive (?:receiver|remote|peer)|NET/OFI .{0,200}reachable by EFA device",
        cls=R,
        detail="link",
        weight=77,
        reason="the peer does not answer: its host or the network path failed",
        example="efa_rdm_txe_handle_error():755<warn> err: 113, message: Unresponsive remote My EFA addr: fi_addr_efa://[a]",
        live=True,
    ),
    Rule(
        name="ofi-completion",
        pattern=r"NET/OFI .{0,120}completed with error|efa_rdm_\w{1,30}error\w*\(\)",
        cls=R,
        detail="ofi",
        role=UNSURE,
        weight=58,
        action=Remedy.RESTART_PROCESSES,
        node=False,
        reason="a fabric request failed; the line does not say on which side",
        example="NCCL WARN NET/OFI Request 0x7f1 completed with error. RC: 21. Error: unknown error",
    ),
    Rule(
        name="ib-event",
        pattern=r"Got async event ?:",
        cls=R,
        detail="link-event",
        weight=10,
        action=Remedy.WAIT,
        node=False,
        reason="a link came up again, or the subnet manager changed",
        example="NCCL WARN NET/IB : Got async event : client reregistration",
    ),
    Rule(
        name="ib-call",
        pattern=r"Call to ibv_\w+ failed|NET/IB : .{0,60}(?:failed|Unable to open device)|ibv_poll_cq.{0,20}fail",
        cls=R,
        detail="ib-call",
        role=UNSURE,
        weight=70,
        action=Remedy.RESTART_PROCESSES,
        node=False,
        reason="a call to the InfiniBand device failed: the device, a peer that ended, or a wrong index",
        example="NCCL WARN Call to ibv_modify_qp failed with error Connection timed out",
        live=True,
    ),
    Rule(
        name="collective-mismatch",
        pattern=r"Detected mismatch between collectives|Collectives differ in the following|collective\S* mismatch",
        cls=FaultClass.USER_CODE,
        detail="collective-mismatch",
        weight=88,
        reason="ranks called different collectives: a branch that not all of them take",
        example="RuntimeError: Detected mismatch between collectives on ranks. Rank 3 is running collective: BROADCAST",
    ),
    Rule(
        name="desync",
        pattern=r"ranks that caused the desync|but didn't join collective|Timeout at collective:"
        r"|Not all ranks joining collective|[Mm]ismatched collective",
        cls=T,
        detail="desync",
        role=UNSURE,
        weight=52,
        reason="the desync report names the rank that did not join",
        example="    [1] finished collective #2, but didn't join collective #3 (count from 1)",
    ),
    Rule(
        name="nccl-async",
        pattern=r"Some NCCL operations have failed or timed out"
        r"|what\(\):\s+\[?(?:PG|Rank).{0,300}(?:timeout|timed out)",
        cls=T,
        detail="take-down",
        role=UNSURE,
        weight=9,
        reason="PyTorch ends the process because a collective failed or timed out; an earlier line reports that",
        example="Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, "
        "subsequent GPU operations might run on corrupted data.",
    ),
    Rule(
        name="watchdog-timeout",
        pattern=r"Watchdog caught collective operation timeout|WorkNCCL::checkTimeout|(?:NCCL|collective|all-?reduce)"
        r".{0,60}\btime(?:d out|out(?:$|[.!,;)\"']| (?:after|error|exceeded|occurred|reached|detected|expired|fired)))"
        r"|[Tt]imeout (?:waiting|while|at|during|in|on) .{0,30}(?:NCCL|collective|all-?reduce)|watchdog.{0,40}timeout"
        r"(?:$|[.!,;)]| (?:after|error|exceeded|reached|detected|expired|fired))"
        r"|HCCL.{0,60}(?:timeout|timed out)|notify wait timeout|Exception raised from ncclCommWatchdog"
        r"|\bEI000[26]\b|Notify register times out|Getting socket times out|stream sync timeout"
        r"|\bHccl\w{1,30}, error code"
        r"|(?i:all_?gather|all_?to_?all|reduce_?scatter)\w*.{0,60}\btimed out\b|Timeout at NCCL work",
        cls=T,
        detail="watchdog",
        role=UNSURE,
        weight=50,
        reason="a collective timed out; the line names the rank that waited, not the rank that is missing",
        example="[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE) "
        "ran for 1800745",
        live=True,
    ),
    Rule(
        name="watchdog-stuck",
        pattern=r"watchdog (?:thread )?(?:got|is|has been) stuck|watchdog.{0,40}without making progress"
        r"|HeartbeatMonitor.{0,80}(?:stuck|no heartbeat|Could not)"
        r"|Heartbeat monitor timed out",
        cls=FaultClass.HANG,
        detail="watchdog-stuck",
        role=UNSURE,
        weight=49,
        reason="the NCCL watchdog thread itself is stuck: a CUDA call or the interpreter's lock does not return",
        example="ProcessGroupNCCL's watchdog got stuck for 600 seconds without making progress in monitoring "
        "enqueued collectives.",
        live=True,
    ),
    Rule(
        name="peer-closed",
        pattern=r"(?:socketProgress|socketRecv|socketSend|socketFinalize"
        r"|ncclSocket\w*).{0,60}(?:[Cc]onnection closed|reset|Broken)"
        r"|Call to (?:recv|send|connect|write|read)\w* (?:from|to)? ?\S* ?failed ?: (?:Connection reset"
        r"|Broken pipe)"
        r"|Net : Connection closed by remote peer|[Cc]onnection closed by remote peer",
        cls=X,
        detail="peer-gone",
        role=COLLATERAL,
        weight=20,
        reason="the peer closed the connection: it ended first",
        example="misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer node-09<55912>",
    ),
    Rule(
        name="remote-error",
        pattern=r"ncclRemoteError|remote process exited|NCCL communicator (?:was|has been) aborted"
        r"|remote process has failed"
        r"|Received a dump signal|Observed flight recorder dump signal"
        r"|received a? ?(?:dump|abort) signal (?:from|due)|ncclCommAbort",
        cls=X,
        detail="peer-gone",
        role=COLLATERAL,
        weight=20,
        reason="NCCL's result 6, or the abort that follows: usually the end of a peer, reported by the other ranks",
        example="ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
        "prematurely.",
    ),
    Rule(
        name="nccl-connect",
        pattern=r"socket\w*Connect: Connect to .{0,80}failed|Call to connect .{0,60}(?:failed|timed out)"
        r"|Call to \w+ .{0,60}failed ?: (?:Connection timed out|No route to host|Network is unreachable)"
        r"|exceeded error retry count"
        r"|NCCL WARN .{0,120}[Cc]onnect\w* .{0,80}(?:refused|timed out|No route|unreachable|failed)",
        cls=R,
        detail="system-error",
        role=UNSURE,
        weight=45,
        action=Remedy.RESTART_PROCESSES,
        node=False,
        reason="NCCL could not reach a peer's socket: the peer, an interface, a firewall",
        example="misc/socket.cc:480 NCCL WARN socketStartConnect: Connect to 10.0.0.1<38007> failed : Software caused "
        "connection abort",
    ),
    Rule(
        name="nccl-network-set-up",
        pattern=r"no socket interface found|No (?:usable )?(?:listening )?interface|Duplicate GPU detected"
        r"|Mismatched NCCL version"
        r"|NCCL version .{0,30}mismatch|different NCCL versions"
        r"|NCCL_\w+ set by environment .{0,40}(?:invalid|not found)",
        cls=E,
        detail="nccl-set-up",
        weight=86,
        reason="interfaces, versions or devices do not meet NCCL's requirements; a restart fails in the same way",
        example="NCCL WARN Bootstrap : no socket interface found",
    ),
    Rule(
        name="nccl-usage",
        pattern=r"ncclInvalidUsage|invalid usage\b.{0,60}NCCL|NCCL error.{0,120}invalid usage",
        cls=E,
        detail="nccl-usage",
        weight=58,
        reason="NCCL's result 5: usually two ranks on one device",
        example="ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
    ),
    Rule(
        name="nccl-argument",
        pattern=r"ncclInvalidArgument|NCCL error.{0,120}invalid argument",
        cls=FaultClass.USER_CODE,
        detail="nccl-argument",
        weight=62,
        reason="NCCL's result 4: a programming error",
        example="ncclInvalidArgument: Invalid value for an argument.",
    ),
    Rule(
        name="nccl-system",
        pattern=r"ncclSystemError|unhandled system error|System call \(e\.g\. socket, malloc\)",
        cls=R,
        detail="system-error",
        role=UNSURE,
        weight=44,
        action=Remedy.RESTART_PROCESSES,
        node=False,
        reason="NCCL's result 2: a socket or device call failed; often because the peer ended",
        example="RuntimeError: NCCL error in: ../ProcessGroupNCCL.cpp:1275, unhandled system error, NCCL "
        "version 2.18.5",
    ),
    Rule(
        name="nccl-internal",
        pattern=r"ncclInternalError|NCCL error.{0,120}internal error|Internal check failed\.",
        cls=R,
        detail="internal-error",
        role=UNSURE,
        weight=44,
        action=Remedy.RESTART_PROCESSES,
        node=False,
        reason="NCCL's result 3: set-up, versions, a bug, or in older versions a closed peer",
        example="ncclInternalError: Internal check failed.",
    ),
    Rule(
        name="store-frames",
        pattern=r"Exception raised from (?:recv|send)\w{0,20} at|frame #\d+: c10d::(?:TCPStore|detail::)",
        cls=X,
        detail="store-gone",
        role=COLLATERAL,
        weight=6,
        reason="stack of a call that lost its connection to the store",
        example="Exception raised from recvBytes at ../torch/csrc/distributed/c10d/Utils.hpp:670",
    ),
)
