"""Tests of the classification of single reports, and of the root among several."""

import itertools

import attrs
import pytest

from ftcore.faults.classify import classify, signal_name
from ftcore.faults.correlate import correlate
from ftcore.faults.extra import extra_rules
from ftcore.faults.rules import RULES
from ftcore.faults.taxonomy import CLASSES, SETTINGS, FaultClass
from ftcore.states.evidence import Report

NVLINK = "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"
WATCHDOG = (
    "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600044 ms"
)
OOM_KILLER = "[ 4821.5] Out of memory: Killed process 60462 (python) total-vm:8923144kB, anon-rss:511920kB"
OFF_THE_BUS = "NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
PIN_MEMORY = "RuntimeError: Caught RuntimeError in pin memory thread for device 4."
PEER_GONE = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:52710"


def report(seq: int = 1, type_: str = "worker.failed", **fields) -> Report:
    known = {
        "node": "node0",
        "rank": 0,
        "round": 1,
        "time": seq * 10**6,
        "mono": 0,
        "boot": "",
        "exitcode": 1,
        "message": "",
        "tail": "",
        "step": 7,
        "absolute": True,
    }
    return Report(seq=seq, type=type_, **{**known, **fields})


def test_every_class_has_its_facts():
    """Each class has a meaning, what is at fault, and advice."""
    assert set(CLASSES) == set(FaultClass)
    for facts in CLASSES.values():
        assert facts.at_fault in ("process", "node", "data", "user", "none")
        assert facts.meaning.endswith(".")
        assert facts.advice


@pytest.mark.parametrize(
    ("fields", "cls", "detail", "role"),
    [
        ({"exitcode": -9}, "signal-preemption", "sigkill", "root"),
        ({"exitcode": -15}, "signal-preemption", "sigterm", "root"),
        ({"exitcode": -11}, "user-code", "sigsegv", "root"),
        ({"exitcode": -6}, "user-code", "sigabrt", "root"),
        ({"exitcode": -6, "message": PEER_GONE}, "collateral", "peer-gone", "collateral"),
        ({"message": "ValueError: x"}, "user-code", "exception", "root"),
        ({"exitcode": 3}, "user-code", "exit", "unknown"),
        ({"exitcode": 137}, "signal-preemption", "sigkill", "root"),
        ({"exitcode": 139}, "user-code", "sigsegv", "root"),
        ({"exitcode": 124}, "signal-preemption", "time-limit", "root"),
        ({"exitcode": -6, "tail": NVLINK}, "gpu-hw", "nvlink", "root"),
        ({"exitcode": -6, "message": NVLINK}, "gpu-hw", "nvlink", "root"),
        ({"exitcode": -6, "tail": WATCHDOG}, "nccl-timeout", "watchdog", "unknown"),
        ({"exitcode": -9, "tail": "ValueError: handled long ago"}, "signal-preemption", "sigkill", "root"),
        ({"exitcode": -9, "tail": OOM_KILLER}, "oom-host", "host", "root"),
        ({"exitcode": -11, "tail": "ValueError: x"}, "user-code", "sigsegv", "root"),
        ({"exitcode": -11, "tail": OFF_THE_BUS}, "gpu-hw", "off-the-bus", "root"),
        ({"message": PIN_MEMORY}, "data-loader", "messenger", "unknown"),
        ({"message": PIN_MEMORY, "tail": f"{OFF_THE_BUS}\n{PIN_MEMORY}"}, "gpu-hw", "off-the-bus", "root"),
        ({"message": "KeyError: 'x'", "tail": PEER_GONE}, "user-code", "exception", "root"),
        ({"tail": "NET/IB : Got async event : port error"}, "nccl-remote-error", "link", "root"),
        ({"type_": "node.lost", "exitcode": None, "rank": -1, "message": "silent"}, "node-lost", "silent", "root"),
        ({"type_": "store.failed", "exitcode": None, "message": "gone"}, "network-rendezvous", "store-lost", "root"),
        ({"type_": "workers.unstartable", "exitcode": None, "message": "no file"}, "config-env", "unstartable", "root"),
    ],
)
def test_readings_of_single_reports(fields, cls, detail, role):
    """Class, detail and role follow from exit code, message and kind of report."""
    reading = classify(report(**fields))
    assert (reading.cls, reading.detail, reading.role) == (cls, detail, role)


def test_signals_without_a_name():
    """A signal number without a name here is reported as a number."""
    assert (signal_name(9), signal_name(99)) == ("SIGKILL", "signal 99")


CULPRITS = {
    "killed": {"exitcode": -9},
    "crashed": {"exitcode": -11},
    "raised": {"message": "ValueError: x"},
    "lost": {"type_": "node.lost", "exitcode": None, "rank": -1, "message": "silent"},
}
VICTIMS = {"peer gone": {"message": PEER_GONE}, "says nothing": {"exitcode": 1}}


@pytest.mark.parametrize("culprit", CULPRITS)
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("culprit_first", [True, False])
@pytest.mark.parametrize("same_node", [True, False])
def test_the_root_cause_does_not_depend_on_the_order_of_reports(culprit, victim, culprit_first, same_node):
    """The kind of a report counts more than its time, on one node and on two."""
    first, second = (1, 2) if culprit_first else (2, 1)
    guilty = report(first, node="node0", **CULPRITS[culprit])
    hurt = report(second, **{"node": "node0" if same_node else "node1", "rank": 3, **VICTIMS[victim]})
    for reports in itertools.permutations([guilty, hurt]):
        fault = correlate(reports)
        assert fault.root == guilty.seq
        assert fault.collateral == (hurt.seq,)
        assert fault.nodes[0] == "node0"


def test_among_equals_the_earliest_by_the_boots_clock_is_the_root():
    """Two equal reports from one boot: the monotonic clock decides, not the order of arrival."""
    late = report(1, node="a", mono=200, boot="b", exitcode=-9)
    early = report(2, node="b", mono=100, boot="b", exitcode=-9)
    assert correlate([late, early]).root == 2
    other_boot = attrs.evolve(early, boot="c")
    assert correlate([late, other_boot]).root == 1


def test_only_the_newest_round_counts():
    """Reports of an earlier round do not affect the classification of the next."""
    old, new = report(1, round=1, exitcode=-9), report(2, round=2, message="ValueError: x")
    fault = correlate([old, new])
    assert (fault.root, fault.collateral) == (2, ())


def test_the_names_in_a_fault_are_bounded():
    """A thousand victims do not make an event with a thousand names."""
    reports = [report(seq, node=f"n{seq}", rank=seq, message=PEER_GONE) for seq in range(1, 1000)]
    fault = correlate(reports)
    assert max(len(fault.nodes), len(fault.ranks), len(fault.collateral)) <= 16


OBSERVED = {
    "uce": ("gpu-hw", "uce"),
    "collective": ("nccl-remote-error", "collective"),
    "hang": ("hang", ""),
    "straggler": ("hang", "straggler"),
    "loss-spike": ("numeric", "loss-spike"),
    "loss-nan": ("numeric", "loss-nan"),
    "norm": ("numeric", "norm"),
    "norm-spike": ("numeric", "norm-spike"),
    "preemption-notice": ("signal-preemption", "preemption-notice"),
}


def observed(seq: int = 1, **fields) -> Report:
    return report(seq, "fault.observed", **{"exitcode": None, **fields})


@pytest.mark.parametrize("kind", OBSERVED)
def test_an_observation_is_classified_by_its_kind(kind):
    """The kind gives class and detail, whatever the message is."""
    reading = classify(observed(kind=kind, source="detector", message="ValueError: x"))
    assert (reading.cls, reading.detail) == OBSERVED[kind]


@pytest.mark.parametrize(
    ("fields", "cls"),
    [
        ({"source": "kernel", "message": OFF_THE_BUS}, "gpu-hw"),
        ({"source": "health", "message": "bandwidth of device 3 is 27 GB/s"}, "gpu-hw"),
        ({"source": "storage", "message": "slow"}, "storage"),
        ({"source": "worker", "message": "it hurts"}, "unknown"),
    ],
)
def test_an_observation_without_a_kind_is_classified_by_message_then_source(fields, cls):
    """A rule that matches the message takes precedence over the source."""
    assert classify(observed(**fields)).cls == cls


def test_hardware_goes_before_a_signal():
    """A device that reports its own failure is the root even if a peer crashed first."""
    crash = report(1, node="a", rank=0, exitcode=-11)
    broken = report(2, node="b", rank=1, message=NVLINK)
    fault = correlate([crash, broken])
    assert (fault.cls, fault.root, fault.nodes[0]) == ("gpu-hw", 2, "b")


def test_a_timeout_is_not_the_root_if_there_is_an_exception():
    """Watchdogs name victims: the rank that raised is the root, in any order of reports."""
    waits = [report(seq, node=f"n{seq}", rank=seq, exitcode=-6, tail=WATCHDOG) for seq in (1, 2)]
    raised = report(3, node="n3", rank=3, message="KeyError: 'x'")
    assert correlate([*waits, raised]).root == 3


def test_the_rank_behind_the_others_is_the_suspect():
    """If all ranks wait, the one with the oldest completed work comes first."""

    def waiting(rank: int, completed: int) -> Report:
        tail = f"[Rank {rank}] Watchdog caught collective operation timeout, last completed NCCL work: {completed}."
        return report(rank + 1, node=f"n{rank}", rank=rank, exitcode=-6, tail=tail)

    fault = correlate([waiting(0, 8), waiting(1, 8), waiting(2, 5)])
    assert (fault.ranks[0], fault.nodes[0], fault.cls) == (2, "n2", "nccl-timeout")


def test_a_silent_rank_that_others_name_is_the_suspect():
    """A suspect without a report is named first, and its node too if the world is known."""
    text = "Rank {} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 2."
    reports = [report(rank + 1, node=f"n{rank}", rank=rank, message=text.format(rank)) for rank in (0, 1)]
    assert correlate(reports).ranks[0] == 2
    fault = correlate(reports, node_of={0: "n0", 1: "n1", 2: "n2"})
    assert (fault.ranks[0], fault.nodes[0], "rank 2" in fault.summary) == (2, "n2", True)


def hit(seq: int, line: str, **fields) -> Report:
    return report(seq, "log.matched", **{"exitcode": None, "rank": -1, "message": line, "source": "log", **fields})


def test_a_recent_kernel_line_explains_a_report():
    """An Xid of the reporting node is the root; one of another node, or of long before, is not."""
    failed = report(900, node="a", rank=0, message="RuntimeError: CUDA error: unknown error", time=900 * 10**9)
    near = hit(800, OFF_THE_BUS, node="a", time=800 * 10**9)
    assert (correlate([failed], [near]).cls, correlate([failed], [near]).root) == ("gpu-hw", 800)
    for other in (attrs.evolve(near, node="b"), attrs.evolve(near, time=1), attrs.evolve(near, round=0)):
        assert correlate([failed], [other]).cls == "cuda-sticky"


def test_a_line_about_a_contained_memory_error_repeats_what_a_worker_has_reported():
    """The worker lives, and says that its device works; a device that needs a reset is another matter."""
    said = observed(900, node="a", rank=3, kind="uce", source="worker", time=900 * 10**9)
    line = "NVRM: Xid (PCI:0000:91:00): 94, pid=60462, name=python, Contained: SM (0x1)"
    contained = hit(899, line, node="a", time=899 * 10**9)
    fault = correlate([said], [contained])
    assert (fault.detail, fault.root, fault.ranks, fault.collateral) == ("uce", 900, (3,), (899,))
    failed = report(900, node="a", rank=0, message="RuntimeError: CUDA error: unknown error", time=900 * 10**9)
    assert correlate([failed], [contained]).root == 899
    broken = hit(899, OFF_THE_BUS, node="a", time=899 * 10**9)
    assert correlate([said], [broken]).root == 899


def test_noise_in_the_output_explains_nothing():
    """A line about a consequence, or an early warning, is not a cause."""
    failed = report(900, node="a", rank=0, message="ValueError: x", time=900 * 10**9)
    early = hit(
        899, "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked", node="a", time=899 * 10**9
    )
    assert correlate([failed], [early]).cls == "user-code"


def test_custom_rules_take_precedence():
    """A rule of the policy file gives class and detail for a line that a built-in rule matches."""
    own = extra_rules([{"pattern": "licence", "class": "config-env", "detail": "licence"}], "p.yaml: faults.rules")
    failed = report(1, message="RuntimeError: licence server gone")
    assert (correlate([failed]).cls, correlate([failed], extra=own).cls) == ("user-code", "config-env")


def test_settings_name_details_that_exist():
    """Each is a detail that a rule, or the diagnosis of texts, gives to the class."""
    known = {(rule.cls, rule.detail) for rule in RULES}
    known |= {(FaultClass.HANG, "stacks"), (FaultClass.HANG, "no-progress")}
    for cls, named in SETTINGS.items():
        for detail in filter(None, named):
            assert (cls, detail) in known, (cls, detail)
