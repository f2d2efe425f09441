"""Tests of the live scan of a stream: what it reports, and when."""

from ftcore.faults.extra import extra_rules
from ftcore.faults.scan import INTERVAL_NS, SHOWN_BYTES, Scanner
from ftcore.faults.table import LINE_BYTES_MAX

XID = b"NVRM: Xid (PCI:0000:91:00): 79, GPU has fallen off the bus."


def test_the_first_line_is_reported_at_once():
    """One hit with the rule, its class and the line."""
    [hit] = Scanner().feed(b"step 1\n" + XID + b"\nstep 2\n", 0)
    assert (hit.cls, hit.line, hit.count) == ("gpu-hw", XID.decode(), 1)


def test_ordinary_output_is_not_reported():
    """Exceptions are reported with the worker's end, not by the scan."""
    assert Scanner().feed(b"step 1 loss 2.3\nValueError: caught\nerror rate 0.1\n", 0) == []


def test_a_flood_is_reported_once_per_interval():
    """Further lines are counted, and reported with the next line or by ``flush``."""
    scanner = Scanner()
    assert len(scanner.feed((XID + b"\n") * 1000, 0)) == 1
    assert scanner.flush(INTERVAL_NS - 1) == []
    [hit] = scanner.flush(INTERVAL_NS)
    assert hit.count == 999
    assert scanner.flush(3 * INTERVAL_NS) == []


def test_a_line_without_an_end_is_read_at_the_end_of_the_stream():
    """A worker's last line counts without a newline."""
    scanner = Scanner()
    assert scanner.feed(XID, 0) == []
    [hit] = scanner.flush(1, ended=True)
    assert hit.count == 1


def test_an_endless_line_takes_little_memory():
    """Of ten megabytes without a newline, head and tail are kept and read."""
    scanner = Scanner()
    scanner.feed(XID, 0)
    for _ in range(160):
        assert scanner.feed(b"x" * 65536, 0) == []
        assert scanner.held <= 2 * LINE_BYTES_MAX
    [hit] = scanner.feed(b"\n", 0)
    assert len(hit.line) <= SHOWN_BYTES
    for _ in range(160):
        scanner.feed(b"y" * 65536, 0)
    [other] = scanner.feed(b" CUDA error: an illegal memory access was encountered\n", 0)
    assert other.cls == "cuda-sticky"


def test_a_custom_rule_is_matched_line_by_line():
    """``^`` and ``$`` of its pattern match at the ends of each line."""
    extra = extra_rules([{"pattern": "^licence gone$", "class": "config-env"}], "p")
    assert [hit.rule for hit in Scanner(extra).feed(b"a\nlicence gone\nb licence gone\n", 0)] == ["rule-1"]
