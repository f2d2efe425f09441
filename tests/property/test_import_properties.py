"""Import of anything: no bytes crash it, every log that it writes is decided again the same way."""

import itertools
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftcore.errors import UsageError
from ftcore.events.envelope import Event
from ftcore.events.registry import Kind
from ftcore.importing.read import compose, read_story
from ftcore.replay import verify

PIECES = (
    b"2026-11-24 01:00:00,123 step 5 loss 2.5\n",
    b"2026-11-24 01:10:00 [rank3]: step 6 loss nan\n",
    b"[rank1]: RuntimeError: CUDA error: device-side assert triggered\n",
    b"W1124 01:20:00.745000 1 torch] Sending process 7 closing signal SIGTERM\n",
    b"E1124 01:20:01.785000 1 torch] failed (exitcode: -9) local_rank: 1 (pid: 8) of binary: python\n",
    b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n",
    b"====\ntrain.py FAILED\n----\nFailures:\n[1]:\n  time      : 2026-11-24_01:20:01\n  host      : h\n",
    b"  rank      : 5 (local_rank: 1)\n  exitcode  : -9 (pid: 8)\n  error_file: <N/A>\n  traceback : x\n====\n",
    b"slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-24T01:30:00 DUE TO JOB REQUEUE ***\n",
    b"srun: error: Node failure on n2\n",
    b"srun: error: n1: tasks 0-3: Killed\n",
    b"JobID|State|Start|End|NodeList\n1|FAILED|2026-11-24T01:00:00|2026-11-24T02:00:00|n[1-2]\n1.0|X|||\n",
    b'{"apiVersion": "v1", "kind": "List", "items": [{"kind": "Event", "reason": "Evicted", "involvedObject": '
    b'{"kind": "Pod", "name": "p"}, "lastTimestamp": "2026-11-24T01:00:00Z"}, 7, {"kind": "Pod"}]}',
    b'{"message": {"message": "ValueError: x", "extraInfo": {"timestamp": "1795482000", "py_callstack": 7}}}',
    b'{"name": "torchelastic.worker.status.START", "source": "WORKER", "metadata": {"state": "START", "hostname": '
    b'"n1", "global_rank": 5, "worker_id": "8", "metadata": "{\\"local_rank\\": [1]}", "agent_restarts": 1}}\n',
    b'{"name": "torchelastic.worker.status.FAILED", "source": "WORKER", "metadata": {"state": "FAILED", "hostname": 3, '
    b'"global_rank": [], "raw_error": "{", "metadata": "{\\"exit_code\\": [-9]}", "agent_restarts": "2"}}\n',
    b'{"name": "torchelastic.worker.status.FAILED", "source": "AGENT", "metadata": {"state": "FAILED"}}\n',
    b'{"name": "torchelastic.worker.status.X", "metadata": 7}\n',
    b"\x1b[31m\xff\xfe\r\n",
    b'Traceback (most recent call last):\n  File "a.py", line 1\n    x\nValueError: x\n',
)
NAMES = (
    "job.log",
    "torchrun.log",
    "a/run/attempt_0/0/stderr.log",
    "a/run/attempt_0/1/error.json",
    "b/run/attempt_1/0/stdout.log",
    "slurm-1.out",
    "sacct.txt",
    "p.log",
    "events.json",
)
CONTENTS = st.one_of(
    st.binary(max_size=300),
    st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join),
    st.tuples(st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map(b"".join), st.floats(0, 1)).map(
        lambda pair: pair[0][: int(len(pair[0]) * pair[1])]
    ),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    files=st.dictionaries(st.sampled_from(NAMES), CONTENTS, min_size=1, max_size=5),
    source=st.sampled_from([None, "torchrun", "slurm", "kubectl", "text"]),
)
def test_anything_is_imported_or_refused_in_one_line(files: dict[str, bytes], source: str | None) -> None:
    """A log whose decisions are those of the engine and whose times never decrease, or one message."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        events: list[Event] = []
        try:
            compose(read_story([folder], source=source), events.extend)
        except UsageError as error:
            assert "\n" not in str(error)
            return
    assert verify(events).ok
    assert all(a.time <= b.time for a, b in itertools.pairwise(events))
    told = {event.seq for event in events if event.type == "source.cited"}
    facts = [event for event in events if event.kind is Kind.FACT and event.source not in ("master", "import")]
    assert all(event.cause in told for event in facts)
