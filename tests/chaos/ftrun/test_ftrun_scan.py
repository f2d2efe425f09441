"""Lines of workers' output that rules know, told while the worker runs."""

from pathlib import Path

from harness import ftrun

XID = "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate."


def test_a_known_line_is_told_and_the_training_goes_on(tmp_path: Path) -> None:
    """An early warning of the kernel, printed by a worker, is a fact with rank, rule and line; nothing is restarted."""
    with ftrun(tmp_path) as job:
        run = job.start("--nproc-per-node", "2")
        job.stepped(1)
        job.do(1, f"print({XID!r}, file=sys.stderr, flush=True)")
        told = job.wait("log.matched")
        assert (told.data.round, told.data.rank, told.data.cls, told.data.count) == (1, 1, "gpu-hw", 1)
        assert (told.data.rule, told.data.line) == ("xid-ecc-early", XID)
        job.steps_on(0)
        job.steps_on(1)
        job.finish()
        assert run.end() == 0
        assert not job.of("incident.opened")


def test_a_flood_is_told_once_and_delays_nobody(tmp_path: Path) -> None:
    """Known lines by the megabyte are told once; the log file has every byte, and the steps go on."""
    line = "node-1:1:2 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error"
    with ftrun(tmp_path) as job:
        run = job.start("--nproc-per-node", "1", "--redirects", "3", "--log-dir", str(tmp_path / "logs"))
        job.stepped(1)
        job.do(0, f"print('\\n'.join([{line!r}] * 100_000), flush=True)")
        told = job.wait("log.matched")
        assert told.data.cls == "nccl-remote-error"
        job.steps_on(0)
        job.finish()
        assert run.end() == 0
        assert len(job.of("log.matched")) <= 2
        [log] = (tmp_path / "logs").rglob("stdout.log")
        assert log.read_text().count(line) == 100_000


def test_a_line_before_the_end_explains_it(tmp_path: Path) -> None:
    """A worker that prints that its GPU is lost and aborts: the incident is of hardware."""
    with ftrun(tmp_path) as job:
        run = job.start("--nproc-per-node", "2")
        job.stepped(1)
        words = "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"
        job.do(1, f"print({words!r}, file=sys.stderr, flush=True); os.abort()")
        opened = job.wait("incident.opened")
        assert (opened.data.fault.cls, opened.data.fault.ranks[0]) == ("gpu-hw", 1)
        job.stepped(2)
        job.finish()
        assert run.end() == 0
