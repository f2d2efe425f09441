"""The checks of a node and the gauges of its devices, with NVIDIA's driver."""

import json
from pathlib import Path
from typing import Any

import pytest
from harness import ftrun, wait_until

TRAIN = Path(__file__).parent / "jobs" / "train.py"
CHECKED = "version: 1\njob: {health: suspect, check_s: 120s}\n"
WAIT = "\nwhile not os.path.exists('go'): time.sleep(0.01)\n#3"


@pytest.mark.timeout(300)
def test_a_sound_device_passes(tmp_path: Path) -> None:
    """Products in three types, copies, what the driver says; then gauges while the job trains."""
    with ftrun(tmp_path) as job:
        (job.cwd / "policy.yaml").write_text(CHECKED)
        job.drop("do.0", WAIT)
        run = job.start("--policy", "policy.yaml", script=str(TRAIN), preload=False, args=("6", "1", "nccl", "float16"))
        results = {each.name: each for each in job.wait("health.checked").data.results}
        assert results["matmul"].verdict == "passed", results
        copies = results["device-bandwidth"]
        assert copies.verdict == "passed" and set(copies.values) == {"host_to_device_GBps", "device_to_host_GBps"}
        assert min(copies.values.values()) > 1, copies
        assert results["nvml"].verdict in ("passed", "warned") and results["nvml"].values["sm_MHz_0"] > 0, results
        job.stepped(1)

        def gauges() -> dict[str, Any]:
            [node] = json.loads(job.ftctl("--job", "job", "status", "--nodes", "--format", "json").stdout)
            found: dict[str, Any] = node["gauges"].get("0", {})
            return found

        wait_until(lambda: bool(gauges()), "gauges")
        assert 10 <= gauges()["celsius"] <= 110 and gauges()["sm_mhz"] and gauges()["used_mib"], gauges()
        job.drop("go", "")
        assert run.end() == 0, run.stderr()
