"""Simulation of a cluster: from a user's request to the outcome of a campaign.

Faults come from a profile's rates and mix (``sim/profiles.py``), from one rate with one cost of a restart (the
assumptions of the closed form below), or from a trace file (``sim/trace.py``).

The closed form is that of Meta's study of its research clusters (HPCA 2025, arXiv 2410.21680):

    E[ETTR] = (1 - N r (u + dt / 2)) / (1 + w / dt)

with N nodes, r failures per node and day, u days to restart, dt days between checkpoints and w days of blocking write.
It holds if failures are independent, each costs a restart and half an interval, checkpoints follow training time, and N
r (u + dt / 2) is so small that failures during a restart can be neglected: the neglected terms are of its square.

All randomness comes from the seed, through ``random.Random``: campaigns with the same seed meet the same faults at the
same times, whatever their policies.
"""

import random
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from ftcore.errors import UsageError
from ftcore.events.job import JobSpec
from ftcore.events.policy import PolicyLoaded
from ftcore.policies.abilities import usable_abilities
from ftcore.policies.base import Ability
from ftcore.policies.file.config import default_chain
from ftcore.policies.file.feasible import unable
from ftcore.replay.spans import PRODUCTIVE
from ftcore.sim.campaign.campaign import DAY_S, Campaign
from ftcore.sim.campaign.machines import CampaignConfig
from ftcore.sim.campaign.tally import VERIFIED_MAX, Fared, Tally
from ftcore.sim.campaign.wheel import Sink
from ftcore.sim.cost import Costs
from ftcore.sim.evidence import KILLED, KINDS
from ftcore.sim.profiles import Profile
from ftcore.sim.trace import Trace, TraceFault
from ftcore.timing import Timing
from ftcore.wording import plural

NODES_MAX = 100_000
DAYS_MAX = 3660.0
FAULTS_MAX = 2_000_000
"""Most expected faults of a campaign; more would run for days."""

PLATFORM_CAN = (str(Ability.REPLACE), str(Ability.CHECK))


@attrs.frozen(kw_only=True)
class CampaignRequest:
    """A requested simulation.

    Args:
        nodes: nodes of the job.
        days: virtual time in days.
        seed: seed of the random generator.
        policy: the chain.
        profile: rates and mix of faults.
        rate: failures per node and day, instead of the profile's; without a profile, all are killed processes.
        trace: faults from a file, instead of profile and rate.
        costs: durations.
        nodes_min: fewest nodes with which the job runs; None: all of them, or one in a fleet.
        assumed: abilities to assume, although the policy does not declare them or this release cannot carry them out.
    """

    nodes: int
    days: float
    seed: int = 0
    policy: PolicyLoaded = attrs.field(factory=default_chain)
    profile: Profile | None = None
    rate: float | None = None
    trace: Trace | None = None
    costs: Costs = attrs.field(factory=Costs)
    nodes_min: int | None = None
    assumed: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class CampaignResult:
    """Result of a campaign.

    Args:
        request: the request.
        ledger: node-seconds by cause, ``productive`` included; they add up to nodes times time.
        faults: number of faults that hit a running node.
        origin: start of the campaign's clock, nanoseconds since the epoch.
        resubmissions: how often the job ended by itself and was resubmitted.
        tally: incidents, policies, violations.
        curve: the ledger at equal intervals, for a plot.
    """

    request: CampaignRequest
    ledger: dict[str, float]
    faults: int
    origin: int
    resubmissions: int
    tally: Tally
    curve: tuple[tuple[float, dict[str, float]], ...]

    @property
    def goodput(self) -> float:
        """Productive node-seconds of all node-seconds, 0 to 1."""
        return self.ledger[PRODUCTIVE] / (self.request.nodes * self.request.days * DAY_S)

    @property
    def hints(self) -> list[str]:
        """Remarks on possible mistakes in the request, a sentence each."""
        return [*_left_out(self.request), *_unable(self.request), *_impatient(self.request, self.tally)]

    def to_json(self) -> dict[str, Any]:
        """The JSON of ``ftctl simulate``."""
        request, tally = self.request, self.tally
        assumed = {"assumed": list(request.assumed)} if request.assumed else {}
        return {
            **assumed,
            "goodput": self.goodput,
            "lost": {cause: round(value, 3) for cause, value in self.ledger.items() if cause != PRODUCTIVE},
            "productive": round(self.ledger[PRODUCTIVE], 3),
            "incidents": [incident.to_json(self.origin) for incident in tally.incidents],
            "by_policy": {name: attrs.asdict(fared) for name, fared in sorted(tally.policies.items())},
            "seed": request.seed,
            "violations": tally.violations(),
            "hints": self.hints,
            "node_count": request.nodes,
            "days": request.days,
            "fault_count": self.faults,
            "resubmissions": self.resubmissions,
            "profile": request.profile.name if request.profile is not None else None,
            "policy_source": request.policy.source,
            "abilities": abilities_of(request),
            "event_count": tally.events,
            "verified": tally.verified,
            "costs": request.costs.to_json(),
        }


def simulate(
    request: CampaignRequest,
    *sinks: Sink,
    on_day: Callable[[float], None] | None = None,
    verified_max: int = VERIFIED_MAX,
) -> CampaignResult:
    """Run a campaign.

    Args:
        request: the simulation.
        sinks: also called with every group of events.
        on_day: called periodically with the days simulated so far.
        verified_max: number of events whose decisions are repeated and compared.

    Raises:
        UsageError: the request is inconsistent or too large.
    """
    check(request)
    tally = Tally(verified_max)
    curve: list[tuple[float, dict[str, float]]] = [(0.0, {})]
    campaign = Campaign(setting_of(request), faults_of(request), tally.take, *sinks)

    def watch(day: float) -> None:
        if day >= curve[-1][0] + request.days / 400:
            curve.append((day, dict(campaign.training.ledger)))
        if on_day is not None:
            on_day(day)

    campaign.run(watch)
    curve.append((request.days, dict(campaign.training.ledger)))
    return CampaignResult(
        request=request,
        ledger=dict(campaign.training.ledger),
        faults=campaign.faults,
        origin=campaign.origin or 0,
        resubmissions=campaign.resubmissions,
        tally=tally,
        curve=tuple(curve),
    )


def check(request: CampaignRequest) -> None:
    """Validate a request.

    Raises:
        UsageError: what was found, and what is accepted.
    """
    if not 1 <= request.nodes <= NODES_MAX:
        raise UsageError(f"nodes: found {request.nodes}; expected 1 to {NODES_MAX:,}")
    if not 0 < request.days <= DAYS_MAX:
        raise UsageError(f"days: found {request.days:g}; expected more than 0 and at most {DAYS_MAX:g}")
    if request.profile is None and request.rate is None and request.trace is None:
        raise UsageError("no faults given: expected a profile, a rate or a trace")
    if request.trace is not None and (request.profile is not None or request.rate is not None):
        raise UsageError("trace: cannot be combined with a profile or a rate")
    if request.rate is not None and not 0 <= request.rate < 1e6:
        raise UsageError(f"rate: found {request.rate:g}; expected failures per node and day, not negative")
    if request.nodes_min is not None and not 1 <= request.nodes_min <= request.nodes:
        raise UsageError(f"nodes-min: found {request.nodes_min}; expected 1 to {request.nodes}")
    if request.trace is not None and not request.trace.fleet and (problem := request.trace.beyond(request.nodes)):
        raise UsageError(problem)
    if _is_fleet(request) and (beyond := [name for name in request.assumed if name in PLATFORM_CAN]):
        raise UsageError(f"assume: found {', '.join(beyond)}; in this trace, nodes come and go only as recorded")
    expected = _rate(request) * request.nodes * request.days
    if expected > FAULTS_MAX:
        raise UsageError(f"the request has about {expected:,.0f} failures; at most {FAULTS_MAX:,} can be simulated")
    if expected > 0 and request.costs["ckpt_interval"] <= 0:
        raise UsageError("ckpt-interval: found 0, expected more than 0: a job without checkpoints makes no progress")


def _rate(request: CampaignRequest) -> float:
    if request.rate is not None:
        return request.rate
    return request.profile.rate if request.profile is not None else 0.0


def _left_out(request: CampaignRequest) -> Iterator[str]:
    faults = request.trace.faults if request.trace is not None else ()
    late = sum(fault.time_s > request.days * DAY_S for fault in faults)
    if late and request.trace is not None:
        share = f"{late} of {plural(len(faults), 'fault')}"
        yield f"{request.trace.source}: {share} left out, because they come after day {request.days:g}"


def _impatient(request: CampaignRequest, tally: Tally) -> Iterator[str]:
    """Chain entries whose patience is shorter than a node replacement."""
    if _is_fleet(request):
        return
    takes = request.costs.figures["replace"]
    for entry in request.policy.chain:
        patience, fared = entry.options.get("patience", 0.0), tally.policies.get(entry.policy, Fared())
        if fared.escalated and 0 < patience < takes.seconds:
            yield (
                f"{entry.policy} failed {fared.escalated} of {plural(fared.taken, 'time')}: its patience of "
                f"{patience:g} s is shorter than the {takes.seconds:g} s of a node replacement ({takes.source})"
            )


def setting_of(request: CampaignRequest) -> CampaignConfig:
    """The parameters of a request's campaign; ``return_window_s`` covers the time of a node replacement."""
    fleet = _is_fleet(request)
    least = request.nodes_min or (1 if fleet else request.nodes)
    wait_s = max(Timing().return_window_s, 2 * request.costs["replace"])
    spec = JobSpec(
        argv=("train.py",),
        nodes_min=least,
        nodes_max=request.nodes,
        timing=Timing(return_window_s=wait_s, start_timeout_s=max(120.0, 2 * request.costs["start"])),
    )
    return CampaignConfig(
        spec=spec,
        policy=request.policy,
        days=request.days,
        costs=request.costs,
        slots=request.profile.slots if request.profile is not None else 8,
        abilities=abilities_of(request),
        fleet=fleet,
    )


def abilities_of(request: CampaignRequest) -> dict[str, tuple[str, ...]]:
    """Abilities of the simulated job, by source.

    The platform launches nodes and the agents check them, unless a trace determines which nodes come and go. The script
    has the abilities that its policy declares, as far as they count. Assumed abilities are a source of their own.
    """
    platform = () if _is_fleet(request) else PLATFORM_CAN
    script = usable_abilities(request.policy.declared.abilities)
    assumed = tuple(name for name in usable_abilities((), request.assumed) if name not in (*platform, *script))
    found = {"platform": platform, "script": script, "assumed": assumed}
    return {source: names for source, names in found.items() if names}


def _is_fleet(request: CampaignRequest) -> bool:
    return request.trace is not None and request.trace.fleet


def _unable(request: CampaignRequest) -> Iterator[str]:
    """Chain entries that the simulated job cannot carry out."""
    hint = unable(request.policy, () if _is_fleet(request) else PLATFORM_CAN, request.assumed)
    if hint:
        yield hint


def faults_of(request: CampaignRequest) -> Iterator[TraceFault]:
    """The faults in order of time: drawn from the seed, or from the trace."""
    if request.trace is not None:
        yield from request.trace.faults
        return
    rate = _rate(request) * request.nodes / DAY_S
    if rate <= 0:
        return
    chance = random.Random(request.seed)
    mix = request.profile.mix if request.profile is not None else ()
    kinds = [part.kind for part in mix] or [KILLED]
    weights = [part.count for part in mix] or [1.0]
    share = request.profile.device_share if request.profile is not None else 0.0
    time_s = 0.0
    while True:
        time_s += chance.expovariate(rate)
        (kind,) = chance.choices(kinds, weights)
        stays = chance.random() < share and KINDS[kind].device
        yield TraceFault(time_s=time_s, node=chance.randrange(request.nodes), kind=kind, stays=stays)


def expected_ettr(*, nodes: int, rate: float, restart_s: float, ckpt_interval_s: float, ckpt_cost_s: float) -> float:
    """The closed form of the expected effective training time ratio; see the module's docstring.

    Args:
        nodes: N.
        rate: r, failures per node and day.
        restart_s: u, seconds from a failure until training resumes.
        ckpt_interval_s: dt, seconds of training between two checkpoints.
        ckpt_cost_s: w, seconds for which a checkpoint blocks training.
    """
    return (1 - nodes * rate / DAY_S * (restart_s + ckpt_interval_s / 2)) / (1 + ckpt_cost_s / ckpt_interval_s)


def interval95(values: list[float]) -> tuple[float, float]:
    """The mean's 95 % confidence interval from independent values, by Student's t.

    Args:
        values: at least two.
    """
    mean, half = statistics.mean(values), t95(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return mean - half, mean + half


def t95(freedom: int) -> float:
    """The 97.5 % quantile of Student's t.

    By the Cornish-Fisher expansion around the normal quantile (Abramowitz and Stegun, 26.7.5), within 0.3 % from three
    degrees of freedom on; one and two are exact.
    """
    if freedom < 3:
        return (12.706, 4.303)[freedom - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    z3, z5, z7 = z**3, z**5, z**7
    terms = (
        (z3 + z) / 4,
        (5 * z5 + 16 * z3 + 3 * z) / 96,
        (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / 384,
    )
    return float(z + sum(term / freedom ** (order + 1) for order, term in enumerate(terms)))
