"""Options of a simulation, drawn from the seed: the job, its environment, and the enabled kinds of fault.

Swarm testing (Groce et al., "Swarm Testing", ISSTA 2012): a run with only some kinds of fault tests these more deeply
than a run with all kinds.
"""

import random
from typing import Any, Final

import attrs
import msgspec

from ftcore.events.codec import digest_of
from ftcore.events.job import JobSpec
from ftcore.events.policy import ChainEntry, Declared, PolicyLoaded
from ftcore.policies.abilities import OBSERVED
from ftcore.policies.base import Ability
from ftcore.policies.chain import BUILT_IN, DEFAULT_ORDER, default_entry
from ftcore.states.buddies import SWITCH
from ftcore.timing import Timing

OWN_FAULTS: Final = (
    "master_kill",
    "master_freeze",
    "master_dies_at_write",
    "store_down",
    "store_slow",
    "stream_break",
    "disk_full",
    "master_dies_between",
    "store_full",
    "archive_away",
    "socket_removed",
    "stranger",
    "clock_stepped",
    "stall",
)
"""Faults of ftcore and its infrastructure, none of which may stop healthy training."""

FAULTS: Final = (
    *OWN_FAULTS,
    "worker_kill",
    "worker_error",
    "worker_hang",
    "agent_kill",
    "agent_freeze",
    "agent_dies_between",
    "signal",
    "known_line",
    "store_of_round_lost",
    "host_crash",
    "host_freeze",
    "partition",
    "one_way",
    "store_cut",
    "unstartable",
    "bad_host",
    "poison",
    "operator_stop",
    "operator",
)

PLATFORM: Final = "platform"
"""Source of the abilities of the platform."""

DEPARTURE: Final = "departure"
"""A training node is drained or evicted; jobs with this fault can launch nodes."""

MAINTENANCE: Final = "maintenance"
"""The platform announces maintenance of a node, and its end; chains of jobs with this fault pause the training."""

MASTER_TASK, AGENT_TASK = "master_task_stall", "agent_task_stall"
"""One task of a process makes no step for some time, while its others run on."""

ADVICE: Final = "advice"
"""An external policy that always passes."""

KEEPER_FAULTS: Final = (
    "keeper_kill",
    "keeper_hang",
    "storage_slow",
    "storage_full",
    "storage_gone",
    "shard_damaged",
)
"""Faults of keepers and storage, in jobs whose script registered its state. None may stop healthy training."""

REPLICATED, SHARDED, HYBRID = "replicated", "sharded", "hybrid"
LAYOUTS: Final = (REPLICATED, SHARDED, HYBRID)
"""Every rank holds the whole state, or an own part of it, or the part of its place on its node."""

SPIKE: Final = "loss_spike"
"""The loss spikes; training continues, and may be rolled back."""

TUNED: Final = {
    "deadline": 60.0,
    "backoff": 0.5,
    "backoff_max": 4.0,
    "grace": 2.0,
    "patience": 20.0,
    "wait": 20.0,
}
"""Options of policies, shortened for simulations."""

SOON: Final = {"hang_look_s": 2.0, "hang_idle_s": 4.0, "hang_busy_s": 12.0, "hang_ceiling_s": 30.0}
"""Shortened time constants of hang detection, for jobs with healthy standstills."""


@attrs.frozen(kw_only=True)
class SimOptions:
    """One simulation.

    Args:
        seed: the seed.
        spec: the job.
        policy: its chain.
        slots: workers of a node.
        faults: the enabled kinds of fault.
        every_s: mean seconds between two faults in the first phase.
        safety_s: duration of the first phase, in which faults happen, in seconds.
        bound_s: seconds within which the job must then recover or end.
        twice: share of orders and facts that arrive twice.
        ambiguous: see ``store.Store``.
        delay_s: mean network delay in seconds.
        skew_s: largest skew of wall clocks in seconds.
        spares: additional hosts without nodes.
        standing_by: nodes in addition to those of the job.
        switches: number of network switches; 0: nodes do not report their switch.
        watched: whether the platform reports events of nodes; empty: no; ``names``: without process IDs.
        counted: whether the platform reports its free capacity.
        lead_delay_s: seconds without a leader after which an agent starts a candidate.
        capable: workers can pause, park, retry and save.
        abilities: abilities of the job, by source.
        step_s: seconds of a step.
        total: steps of the training.
        checkpoint_every: steps between two checkpoints.
        give_up_s: timeout of a collective in seconds, which ends its process.
        pauses: healthy workers sometimes stand still.
        keeps_log: masters archive and truncate the log.
        token: the job's token; empty: none.
        layout: how the script that registered its state spreads it over the ranks; empty: it saves by itself.
        storage_stays: keepers and storage are not repaired after the first phase.
    """

    seed: int
    spec: JobSpec
    policy: PolicyLoaded
    slots: int
    faults: tuple[str, ...]
    every_s: float
    safety_s: float
    bound_s: float
    twice: float
    ambiguous: float
    delay_s: float
    skew_s: float
    spares: int
    standing_by: int
    switches: int
    watched: str
    counted: bool
    lead_delay_s: float
    capable: bool
    abilities: tuple[tuple[str, tuple[str, ...]], ...]
    step_s: float
    total: int
    checkpoint_every: int
    give_up_s: float
    pauses: bool = False
    keeps_log: bool = False
    token: str = ""
    layout: str = ""
    storage_stays: bool = False

    @property
    def platform(self) -> bool:
        """Whether masters have a platform."""
        return any(source == PLATFORM for source, _ in self.abilities)

    @property
    def loaded(self) -> PolicyLoaded:
        """The chain, with the declared abilities of the script."""
        names = (name for source, given in self.abilities if source != PLATFORM for name in given)
        return msgspec.structs.replace(self.policy, declared=Declared(abilities=tuple(dict.fromkeys(names))))

    @property
    def harmless(self) -> bool:
        """Whether only faults of ftcore are enabled: then healthy training must never stop."""
        return set(self.faults) <= {*OWN_FAULTS, *KEEPER_FAULTS, MASTER_TASK}


def draw(seed: int, nodes: int | None = None) -> SimOptions:
    """The options of a seed.

    Args:
        seed: any number.
        nodes: nodes of the job; None: drawn from the seed.
    """
    chance = random.Random(f"options {seed}")
    shape = random.Random(f"shape {seed}")  # a separate stream, so that the other options of a seed do not change
    switches = shape.choice((0, 0, 1, 2, 3))
    spec = _spec(chance, shape, nodes, switches)
    faults = _faults(chance, shape, switches)
    capable = chance.random() < 0.6
    options = SimOptions(
        seed=seed,
        spec=spec,
        policy=draw_chain(chance),
        slots=chance.choice((1, 1, 2)),
        faults=faults,
        every_s=chance.choice((1.0, 3.0, 8.0, 20.0)),
        safety_s=chance.uniform(15.0, 60.0),
        bound_s=600.0,
        twice=chance.choice((0.0, 0.1, 0.5)),
        ambiguous=chance.choice((0.0, 0.0, 0.05, 0.3)),
        delay_s=chance.choice((0.0005, 0.005, 0.05)),
        skew_s=chance.choice((0.0, 0.0, 5.0)),
        spares=chance.choice((0, 1, 2)),
        standing_by=shape.choice((0, 0, 0, 1, 2)),
        switches=switches,
        watched=shape.choice(("", "names", "processes", "processes")),
        counted=shape.random() < 0.5,
        lead_delay_s=chance.choice((0.0, 1.0, 5.0)),
        capable=capable,
        abilities=_abilities(chance, capable),
        step_s=chance.choice((0.1, 0.5, 2.0)),
        total=chance.choice((20, 60, 10_000)),
        checkpoint_every=chance.choice((1, 5, 20)),
        give_up_s=chance.choice((1.0, 5.0)),
    )
    options = attrs.evolve(
        options,
        keeps_log=shape.random() < 0.5,
        token="secret" if shape.random() < 0.3 else "",
    )
    options = _with_maintenance(_with_state(_with_departures(_with_pauses(_with_spikes(_with_others(options))))))
    return _with_stalled_tasks(options)


def _spec(chance: random.Random, shape: random.Random, nodes: int | None, switches: int) -> JobSpec:
    wanted = nodes or chance.choice((2, 2, 2, 3, 3, 4, 5, 8))
    nodes_min = wanted if chance.random() < 0.5 else max(2, wanted - chance.randint(1, 2))
    timing = Timing(
        join_window_s=5.0,
        return_window_s=20.0,
        start_timeout_s=20.0,
        stop_grace_s=2.0,
        settle_s=10.0,
        orphan_grace_s=chance.choice((8.0, 20.0)),
        progress_sample_s=5.0,
    )
    order_by = SWITCH if switches and shape.random() < 0.6 else ""
    spec = JobSpec(argv=("train.py",), nodes_min=nodes_min, nodes_max=wanted, order_by=order_by, timing=timing)
    return msgspec.structs.replace(spec, **_sizes(shape, spec))


def _faults(chance: random.Random, shape: random.Random, switches: int) -> tuple[str, ...]:
    if chance.random() < 0.15:
        return tuple(name for name in OWN_FAULTS if chance.random() < 0.6)
    share = chance.choice((0.15, 0.3, 0.6))
    faults = tuple(name for name in FAULTS if chance.random() < share)
    faults += ("bad_switch",) if switches and shape.random() < 0.3 else ()
    return faults + (("preemption",) if shape.random() < 0.3 else ())


def _with_others(options: SimOptions) -> SimOptions:
    """Add alerts or an external policy to the chains of some jobs."""
    chance = random.Random(f"others {options.seed}")  # a separate stream, as for the shape
    chain = options.policy.chain
    if chance.random() < 0.3:
        entry = _entry("alert")
        entry.options.update(to=("file:/simulated",), on_end="always")
        chain = (entry, *(other for other in chain if other.policy != "alert"))
    if chance.random() < 0.2:
        chain = (ChainEntry(policy=ADVICE, options={}, external="simulated 1.0"), *chain)
    return attrs.evolve(options, policy=msgspec.structs.replace(options.policy, chain=chain))


def _with_departures(options: SimOptions) -> SimOptions:
    """Let operators of some jobs replace training nodes repeatedly, with few other faults."""
    chance = random.Random(f"departures {options.seed}")  # a separate stream, as for the shape
    if chance.random() < 0.7 or options.harmless:
        return options
    chain, platform = options.policy.chain, (str(Ability.REPLACE), str(Ability.CHECK))
    if all(entry.policy != "pod_replacement" for entry in chain):
        chain = (_entry("pod_replacement"), *chain)
    others = tuple(name for name in options.faults if chance.random() < 0.3)
    return attrs.evolve(
        options,
        faults=(*others, *(DEPARTURE for _ in range(1 + len(others) // 2))),
        every_s=max(options.every_s, 8.0),
        safety_s=max(options.safety_s, 60.0),
        policy=msgspec.structs.replace(options.policy, chain=chain),
        abilities=(("platform", platform), *(given for given in options.abilities if given[0] != "platform")),
        total=10_000,
    )


def _with_pauses(options: SimOptions) -> SimOptions:
    """Let healthy workers of some jobs stand still. Their collectives do not time out, so hangs must be detected."""
    chance = random.Random(f"waits {options.seed}")  # a separate stream, as for the shape
    if chance.random() < 0.8:
        return options
    hangs = chance.random() < 0.5 and not options.harmless and "worker_hang" not in options.faults
    spec = msgspec.structs.replace(options.spec, timing=msgspec.structs.replace(options.spec.timing, **SOON))
    return attrs.evolve(
        options,
        spec=spec,
        faults=(*options.faults, "worker_hang") if hangs else options.faults,
        total=max(options.total, 60),
        give_up_s=1e6,
        bound_s=2000.0,
        pauses=True,
    )


def _with_spikes(options: SimOptions) -> SimOptions:
    """Let the loss of some jobs spike; the chains of most of them roll back to an older checkpoint."""
    chance = random.Random(f"curves {options.seed}")  # a separate stream, as for the shape
    if chance.random() < 0.5 or set(options.faults) <= set(OWN_FAULTS):
        return options
    options = attrs.evolve(options, faults=(*options.faults, SPIKE))
    if chance.random() < 0.2:
        return options
    chain = tuple(entry for entry in options.policy.chain if entry.policy != "rollback_and_skip")
    entry = _entry("rollback_and_skip")
    entry.options.update(before=5, back=chance.choice(("steps", "latest")), skip=chance.choice((0, 3)))
    declared = ("training", (str(Ability.ROLLBACK), str(Ability.SKIP)))
    return attrs.evolve(
        options,
        policy=msgspec.structs.replace(options.policy, chain=(entry, *chain)),
        abilities=(*options.abilities, declared),
    )


def _with_maintenance(options: SimOptions) -> SimOptions:
    """Let the platform of some jobs announce maintenance of nodes."""
    chance = random.Random(f"maintenance {options.seed}")  # a separate stream, as for the shape
    if chance.random() < 0.8 or options.harmless:
        return options
    entry = _entry("step_pause")
    entry.options.update(on=["maintenance-notice", "storage-away"], patience=chance.choice((5.0, 30.0, 120.0)))
    chain = tuple(other for other in options.policy.chain if other.policy != "step_pause")
    platform = ("platform", (str(Ability.REPLACE), str(Ability.CHECK)))
    return attrs.evolve(
        options,
        faults=(*options.faults, MAINTENANCE),
        policy=msgspec.structs.replace(options.policy, chain=(entry, *chain)),
        abilities=(platform, *(given for given in options.abilities if given[0] != PLATFORM)),
        watched=options.watched or chance.choice(("names", "processes")),
        capable=True,
    )


def _with_stalled_tasks(options: SimOptions) -> SimOptions:
    """Let single tasks stall in some jobs."""
    chance = random.Random(f"tasks {options.seed}")  # a separate stream, as for the shape
    if chance.random() < 0.85:
        return options
    of_agents = () if options.harmless else (AGENT_TASK,)
    return attrs.evolve(options, faults=(*options.faults, MASTER_TASK, *of_agents))


def _with_state(options: SimOptions) -> SimOptions:
    """Let the scripts of some jobs register their state; then keepers and the storage may fail, too."""
    chance = random.Random(f"registered {options.seed}")  # a separate stream, as for the shape
    if chance.random() < 0.6:
        return options
    share = chance.choice((0.0, 0.2, 0.5))
    faults = tuple(name for name in KEEPER_FAULTS if chance.random() < share)
    url = "simulated" if chance.random() < 0.8 else ""
    return attrs.evolve(
        options,
        spec=msgspec.structs.replace(options.spec, checkpoints=url),
        layout=chance.choice(LAYOUTS),
        faults=(*options.faults, *faults),
        storage_stays=chance.random() < 0.3,
    )


def _sizes(shape: random.Random, spec: JobSpec) -> dict[str, Any]:
    """Allowed world sizes: mostly any, else multiples of two, or a list."""
    kind = shape.choice(("any", "any", "unit", "named"))
    least, most = spec.nodes_min, spec.nodes_max
    if kind == "unit" and least <= most - most % 2:
        return {"node_unit": 2}
    if kind == "named":
        return {"sizes": (*(size for size in range(least, most) if shape.random() < 0.5), most)}
    return {}


def _abilities(chance: random.Random, capable: bool) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: list[tuple[str, tuple[str, ...]]] = []
    if chance.random() < 0.6:
        found.append(("platform", (str(Ability.REPLACE), str(Ability.CHECK))))
    if capable:
        others = (Ability.REPLACE, Ability.CHECK, Ability.CHECKPOINT)
        script = tuple(a for a in Ability if a not in others and chance.random() < 0.7)
        found.append(("script", tuple(str(a) for a in script if a not in OBSERVED)))
    return tuple(found)


def draw_chain(chance: random.Random) -> PolicyLoaded:
    """A random chain of built-in policies in their order, with ``stop`` at the end."""
    whole = chance.random() < 0.5
    names = [name for name in DEFAULT_ORDER if name != "stop" and (whole or chance.random() < 0.6)]
    extra = [name for name in BUILT_IN if name not in DEFAULT_ORDER and chance.random() < 0.3]
    entries: list[ChainEntry] = []
    for name in (*extra, *names, "stop"):
        entry = _entry(name)
        if "max_restarts" in entry.options and chance.random() < 0.3:
            entry.options["max_restarts"] = chance.choice((0, 1, 3))
        entries.append(entry)
    return PolicyLoaded(source="simulated", text="", digest=digest_of(b""), chain=tuple(entries))


def _entry(name: str) -> ChainEntry:
    entry = default_entry(name)
    entry.options.update({key: TUNED[key] for key in TUNED.keys() & entry.options.keys()})
    return entry
