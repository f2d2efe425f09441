"""Profiles: published failure rates and causes of training runs.

Every number has a mark: ``v``: verified in the source or in a note that quotes it; ``m``: from memory of the paper, not
verified; ``c``: computed from others; ``d``: our choice within the ranges of the sources. Results name the profile.

A rate counts interruptions of a job that uses all its time. ``another_node`` is the share of all faults that need
another machine; the part that lost hosts do not explain is distributed over the kinds of fault that may leave a machine
faulty (``Kind.device``).
"""

import difflib

import attrs

from ftcore.errors import UsageError
from ftcore.sim.evidence import KINDS


@attrs.frozen
class Part:
    """A row of a profile's mix.

    Args:
        component: the source's term.
        kind: the simulated kind of fault.
        count: number of occurrences, or weight.
        mark: mark of the count.
    """

    component: str
    kind: str
    count: float
    mark: str


@attrs.frozen(kw_only=True)
class Profile:
    """A training run or fleet with published faults.

    Args:
        name: name on the command line.
        source: the publication.
        gpus: devices of the run, with mark.
        nodes: nodes of the run, by default with eight devices each.
        slots: devices of a node.
        rate: failures per node and day.
        rate_mark: mark of the rate, with the computation.
        mix: causes of failures.
        mix_mark: mark of the mix as a whole.
        another_node: share of all faults that need another machine.
        another_node_mark: its mark.
        costs: figures of ``cost.DEFAULTS`` given by the source.
    """

    name: str
    source: str
    gpus: str
    nodes: int
    slots: int
    rate: float
    rate_mark: str
    mix: tuple[Part, ...]
    mix_mark: str
    another_node: float
    another_node_mark: str
    costs: dict[str, float] = attrs.field(factory=dict)

    @property
    def device_share(self) -> float:
        """Probability that a fault of a kind with ``device`` leaves its machine faulty."""
        total = sum(part.count for part in self.mix)
        hosts = sum(part.count for part in self.mix if KINDS[part.kind].node)
        devices = sum(part.count for part in self.mix if KINDS[part.kind].device)
        return min(1.0, max(0.0, (self.another_node * total - hosts) / devices)) if devices else 0.0


_ANT_MIX = (
    Part("devices", "gpu", 17, "d"),
    Part("host lost", "host", 8, "d"),
    Part("processes: bugs of libraries", "crash", 35, "d"),
    Part("processes: killed, out of memory", "oom", 15, "d"),
    Part("software, not recurring", "software", 12, "d"),
    Part("hang", "hang", 10, "d"),
    Part("storage", "storage", 3, "d"),
)

ANT_ASSUMED = {
    "poll": 600.0,
    "resubmit": 25000.0,
    "replace": 25000.0,
    "start": 900.0,
    "load": 1200.0,
    "warm_up": 300.0,
    "ckpt_interval": 20400.0,
    "ckpt_cost": 300.0,
}
"""Common assumptions for Ant's figures before and after elastic restart; only the policy differs.

The poll of 10 min is the source's (v). The others are not published and were chosen (d): on a full cluster, one node or
all nodes of a job are available after 6.9 h; all processes run and have their state after 40 min; a checkpoint is saved
every 5.7 h of training and blocks it for 5 min. These are three choices for four published figures (running 60.8% and
83.6% of the time, effective 32.9% and 58.9%). Their agreement is weak evidence for the model, and strong evidence that
the engine behaves under both chains as the model predicts.
"""

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="llama3",
            source="The Llama 3 Herd of Models, 2024, section 3.3.4, table 5",
            gpus="16,384 H100 (v)",
            nodes=2048,
            slots=8,
            rate=466 / 54 / 2048,
            rate_mark="c: 419 unexpected (v) and 47 planned (v) interruptions in 54 days (v) on 2,048 nodes",
            mix=(
                Part("faulty GPU, NVLink included", "nvlink", 148, "v"),
                Part("GPU HBM3 memory", "gpu-memory", 72, "v"),
                Part("software bug", "software", 54, "v"),
                Part("planned: firmware, configuration, data", "killed", 47, "v"),
                Part("network switch or cable", "network", 35, "v"),
                Part("unplanned host maintenance", "maintenance", 32, "v"),
                Part("GPU SRAM memory", "gpu-memory", 19, "v"),
                Part("GPU system processor", "gpu-processor", 17, "v"),
                Part("NIC", "network", 7, "m"),
                Part("NCCL watchdog time-outs, cause unknown", "nccl-timeout", 7, "m"),
                Part("silent data corruption", "corruption", 6, "v"),
                Part("GPU thermal interface and sensor", "gpu", 6, "m"),
                Part("SSD", "storage", 3, "m"),
                Part("power supply", "host", 3, "m"),
                Part("server chassis", "host", 2, "m"),
                Part("IO expansion board", "host", 2, "m"),
                Part("dependency", "software", 2, "m"),
                Part("CPU", "host", 2, "v"),
                Part("system memory", "host", 2, "m"),
            ),
            mix_mark="counts of table 5; the 47 planned ones are simulated as processes ended from outside",
            another_node=0.70,
            another_node_mark="c: 78% of the unexpected ones were hardware, confirmed or suspected (v), of 466 in all",
        ),
        Profile(
            name="opt175b",
            source="OPT-175B chronicles and paper, Meta, 2021-2022",
            gpus="992 A100 (v)",
            nodes=124,
            slots=8,
            rate=105 / 57 / 124,
            rate_mark="c: 35 manual and over 70 automatic restarts (v) in about 57 days (v) on 124 nodes",
            mix=(
                Part("devices lost, ECC", "gpu", 40, "d"),
                Part("hosts", "host", 25, "d"),
                Part("InfiniBand and NCCL", "network", 12, "d"),
                Part("CUDA errors", "crash", 12, "d"),
                Part("hang after a new node joined", "hang", 6, "d"),
                Part("loss spike, loss scale at its floor", "loss-spike", 6, "d"),
                Part("checkpoint's upload or download", "storage", 4, "d"),
            ),
            mix_mark="d: the chronicles name the kinds (v) and give no counts",
            another_node=0.78,
            another_node_mark="d: high of the range; over 100 hosts were cycled (m) in 105 restarts",
            costs={"replace": 3600.0},
        ),
        Profile(
            name="rsc1",
            source="Revisiting Reliability in Large-Scale ML Research Clusters, Meta, HPCA 2025 (arXiv 2410.21680)",
            gpus="16,000 A100 (v)",
            nodes=2000,
            slots=8,
            rate=6.50e-3,
            rate_mark="v: 6.50 failures per 1,000 node-days",
            mix=(
                Part("InfiniBand links", "network", 30, "d"),
                Part("file-system mounts", "storage", 25, "d"),
                Part("GPU memory", "gpu-memory", 20, "d"),
                Part("PCIe", "gpu", 15, "d"),
                Part("host", "host", 10, "d"),
            ),
            mix_mark="d: the order of the causes is the source's (v), the weights are ours",
            another_node=0.33,
            another_node_mark="d: middle of the range",
        ),
        Profile(
            name="ant",
            source="DLRover blog, Ant Group, 2023",
            gpus="jobs of 1,000 GPUs (v)",
            nodes=125,
            slots=8,
            rate=0.0027 * 8,
            rate_mark="v: 0.27% of the cards fail a day: at 1,000 of them 93% of the days have a failure",
            mix=_ANT_MIX,
            mix_mark="d: 25 of 100 need another machine, as the source says (v); the parts are ours",
            another_node=0.25,
            another_node_mark="v: 75% of the failures need no more than the processes restarted",
            costs=ANT_ASSUMED,
        ),
    )
}
"""Every profile, by name."""


def profile(name: str) -> Profile:
    """The profile with a name.

    Raises:
        UsageError: an unknown name, with the known ones.
    """
    found = PROFILES.get(name)
    if found is None:
        near = difflib.get_close_matches(name, PROFILES, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"unknown profile {name!r}; {hint}accepted: {', '.join(PROFILES)}")
    return found
