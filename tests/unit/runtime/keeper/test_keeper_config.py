"""What the policy file sets for a keeper."""

from pathlib import Path

from ftcore.events.job import JobSpec
from ftcore.launch.node import keeper_config
from ftcore.policies.file.config import parse
from ftcore.runtime.agent.config import AgentConfig
from ftcore.runtime.keeper.config import KeeperConfig
from ftcore.runtime.wire import frames


def configured(policy: str, tmp_path: Path) -> KeeperConfig:
    spec = JobSpec(argv=("train.py",), nodes_min=1, nodes_max=1, checkpoints="/saved")
    submission = frames.submission(spec, parse("version: 1\n" + policy, "p"))
    return keeper_config(
        AgentConfig(
            job="job",
            node="n",
            slots=1,
            address="n",
            submission=submission,
            log_dir=tmp_path,
            state_dir=tmp_path,
            env={},
        )
    )


def test_each_setting_of_checkpoints_reaches_the_keeper(tmp_path: Path) -> None:
    """Three checkpoints are kept unless the file says otherwise; the other limits are off."""
    base = KeeperConfig(job="job", log="", node="n", url="/saved", keep=3)
    assert configured("", tmp_path) == base
    text = "job: {checkpoints: {kept: 7, keep_every: 100, memory: 1GiB, bandwidth: 2MiB}}\n"
    assert configured(text, tmp_path) == KeeperConfig(
        job="job", log="", node="n", url="/saved", keep=7, keep_every=100, memory=1 << 30, bandwidth=2 << 20
    )
