"""Metric families of a job; their names, types and texts are in ``catalogue``.

Names and units follow https://prometheus.io/docs/practices/naming/: base units, a counter ends in ``_total``. Each
series has the label ``training_job``; the name ``job`` belongs to Prometheus' scrape configuration.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from ftcore import ObservedMaster
from ftcore_prometheus.adapter import GROUPS
from ftcore_prometheus.catalogue import CATALOGUE, JOB_LABEL, Described
from ftcore_prometheus.figures import JobFigures
from ftcore_prometheus.histogram import Durations
from ftcore_prometheus.live import LogView, rank_groups

JOB_PHASES: Final = (
    "assembling", "checking", "forming", "starting", "running", "paused", "recovering", "stuck", "succeeded", "failed",
    "stopped",
)  # fmt: skip
NODE_PHASES: Final = (
    "standby", "checking", "starting", "running", "paused", "parked", "faulted", "stopping", "finished", "draining",
    "quarantined",
)  # fmt: skip
NS: Final = 1e9

Labels = tuple[str, ...]


class JobMetrics(Collector):
    """The metrics of a job, for a registry of ``prometheus_client``.

    Args:
        job: the job's name.
        figures: folded from the log.
        master: the leading master's memory; None: no master leads, or none was asked.
        log: position in the log; None: a finished log was read.
        groups: groups of ranks, at most.
    """

    def __init__(
        self,
        job: str,
        figures: JobFigures,
        *,
        master: ObservedMaster | None = None,
        log: LogView | None = None,
        groups: int = GROUPS,
    ) -> None:
        self._job, self._figures = job, figures
        self._master, self._log, self._groups = master, log, groups

    def collect(self) -> Iterator[Metric]:
        """Yield the families, those without a series left out."""
        made: dict[str, Metric] = {}
        for name, labels, value in self._samples():
            family = made.get(name)
            if family is None:
                family = made[name] = _family(name, CATALOGUE[name])
            _add(family, (self._job, *labels), value)
        yield from made.values()

    def _samples(self) -> Iterator[tuple[str, Labels, "float | Durations"]]:
        for part in (self._of_job, self._of_nodes, self._of_recovery, self._of_checkpoints, self._of_log):
            yield from part()
        if self._log is not None:
            yield "ftcore_master_up", (), float(self._master is not None)
        if self._master is not None:
            yield from self._of_master(self._master)

    def _of_job(self) -> Iterator[tuple[str, Labels, float]]:
        state, figures = self._figures.state, self._figures
        version = state.master.version if state.master is not None else ""
        host = state.master.host if state.master is not None else ""
        yield "ftcore_job_info", (str(state.run), version, host), 1.0
        for phase in JOB_PHASES:
            yield "ftcore_job_phase", (phase,), float(str(state.phase) == phase)
        if state.ending is not None:
            yield "ftcore_job_exit_code", (), float(state.ending.exit_code)
        if state.training.step is not None:
            yield "ftcore_job_step", (), float(state.training.step)
        if figures.stepped:
            yield "ftcore_job_last_step_timestamp_seconds", (), figures.stepped / NS
        if figures.loss is not None:
            yield "ftcore_job_loss", (), figures.loss
        for use, seconds in figures.ledger.seconds.items():
            yield "ftcore_job_time_seconds_total", (use,), seconds
        if figures.ledger.goodput is not None:
            yield "ftcore_job_goodput_ratio", (), figures.ledger.goodput

    def _of_nodes(self) -> Iterator[tuple[str, Labels, float]]:
        state = self._figures.state
        membership, world = state.membership, state.rounds.world
        counts = {str(phase): count for phase, count in membership.phases.items()}
        for phase in NODE_PHASES:
            yield "ftcore_nodes", (phase,), float(counts.get(phase, 0))
        standing_by = [node for node in membership.nodes.values() if node.alive and str(node.phase) == "standby"]
        spares = [node for node in standing_by if world is None or not world.has(node.node, node.incarnation)]
        yield "ftcore_spare_nodes", (), float(len(spares) if world is not None else 0)
        if state.spec is not None:
            yield "ftcore_world_nodes_max", (), float(state.spec.nodes_max)
        if world is not None:
            yield "ftcore_world_nodes", (), float(len(world.members))
            yield "ftcore_world_ranks", (), float(world.size)
            yield "ftcore_round", (), float(world.round)

    def _of_recovery(self) -> Iterator[tuple[str, Labels, "float | Durations"]]:
        figures, state = self._figures, self._figures.state
        yield "ftcore_incidents_open", (), float(state.incident is not None)
        for (kind, cause, outcome), count in sorted(figures.incidents.items()):
            yield "ftcore_incidents_total", (kind, cause, outcome), float(count)
        yield from _counts("ftcore_incidents_resolved_total", figures.resolved)
        yield from _counts("ftcore_restarts_total", figures.restarts)
        for phase, durations in figures.recovery.items():
            yield "ftcore_recovery_phase_seconds", (phase,), durations
        yield "ftcore_steps_lost_total", (), float(figures.steps_lost)
        yield "ftcore_alerts_total", (), float(figures.events["alert.raised"])

    def _of_checkpoints(self) -> Iterator[tuple[str, Labels, "float | Durations"]]:
        figures = self._figures
        yield "ftcore_checkpoints_committed_total", (), float(figures.events["checkpoint.committed"])
        yield "ftcore_checkpoint_failures_total", (), float(figures.events["checkpoint.failed"])
        if figures.committed:
            yield "ftcore_checkpoint_timestamp_seconds", (), figures.committed / NS
            yield "ftcore_checkpoint_step", (), float(figures.committed_step)
        yield "ftcore_shard_write_seconds", (), figures.written
        yield "ftcore_shard_staging_seconds", (), figures.staged
        yield "ftcore_shard_written_bytes_total", (), float(figures.written_bytes)
        for source, durations in sorted(figures.loaded.items()):
            yield "ftcore_state_load_seconds", (source,), durations

    def _of_log(self) -> Iterator[tuple[str, Labels, float]]:
        figures, state = self._figures, self._figures.state
        yield from _counts("ftcore_events_total", figures.events)
        yield "ftcore_master_elections_total", (), float(figures.events["master.elected"])
        if state.seq:
            yield "ftcore_log_last_event_timestamp_seconds", (), state.time / NS
        if self._log is not None:
            yield "ftcore_log_behind_events", (), float(self._log.behind)
            yield "ftcore_log_readable", (), float(self._log.readable)

    def _of_master(self, master: ObservedMaster) -> Iterator[tuple[str, Labels, float]]:
        yield "ftcore_nodes_connected", (), float(len(master.nodes))
        yield "ftcore_log_waiting_facts", (), float(master.waiting)
        yield "ftcore_log_wait_seconds", (), master.wait_s
        for group in rank_groups(self._figures.state, master, self._groups):
            yield "ftcore_rank_group_info", (group.ranks, group.nodes), 1.0
            found = {
                "ftcore_rank_group_step": group.step,
                "ftcore_rank_group_step_seconds": group.step_s,
                "ftcore_rank_group_own_seconds": group.own_s,
                "ftcore_rank_group_silence_seconds": group.silent_s,
            }
            for name, value in found.items():
                if value is not None:
                    yield name, (group.ranks,), float(value)


def _counts(name: str, counts: Mapping[str, int]) -> Iterator[tuple[str, Labels, float]]:
    for label, count in sorted(counts.items()):
        yield name, (label,), float(count)


def _family(name: str, described: Described) -> Metric:
    labels = (JOB_LABEL, *described.labels)
    kinds: dict[str, Callable[..., Metric]] = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    return kinds[described.kind](name, described.text, labels=labels)


def _add(family: Metric, labels: Iterable[str], value: "float | Durations") -> None:
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(value, Durations)
        family.add_metric(list(labels), buckets=value.buckets(), sum_value=value.sum)
    elif isinstance(family, CounterMetricFamily | GaugeMetricFamily):
        assert not isinstance(value, Durations)
        family.add_metric(list(labels), value)
