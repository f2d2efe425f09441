"""Every metric: name, type, labels, text. README's table is checked against it."""

from typing import Final, Literal

import attrs

JOB_LABEL: Final = "training_job"


@attrs.frozen
class Described:
    """A metric.

    Args:
        kind: its type.
        text: one sentence.
        labels: besides ``training_job``.
        live: it comes from the leading master, not from the log.
    """

    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...] = ()
    live: bool = False


CATALOGUE: Final = {
    "ftcore_job_info": Described("gauge", "The job's run, and the last elected master.", ("run", "version", "host")),
    "ftcore_job_phase": Described("gauge", "1 for the phase of the job, 0 for the others.", ("phase",)),
    "ftcore_job_exit_code": Described("gauge", "Exit code of the last run, once it has ended."),
    "ftcore_job_step": Described("gauge", "Newest completed step in the log."),
    "ftcore_job_last_step_timestamp_seconds": Described("gauge", "When the newest completed step became known."),
    "ftcore_job_loss": Described("gauge", "Newest loss in the log."),
    "ftcore_job_time_seconds_total": Described("counter", "The job's time by use.", ("use",)),
    "ftcore_job_goodput_ratio": Described("gauge", "Productive part of the job's time since its first run."),
    "ftcore_nodes": Described("gauge", "Nodes of the job by phase.", ("phase",)),
    "ftcore_nodes_connected": Described("gauge", "Nodes with a stream to the master.", live=True),
    "ftcore_spare_nodes": Described("gauge", "Nodes that stand by and are not in the newest world."),
    "ftcore_world_nodes": Described("gauge", "Nodes of the newest world."),
    "ftcore_world_nodes_max": Described("gauge", "Largest number of nodes that the job uses."),
    "ftcore_world_ranks": Described("gauge", "Ranks of the newest world."),
    "ftcore_round": Described("gauge", "Round of the newest world."),
    "ftcore_incidents_open": Described("gauge", "1 while an incident is open."),
    "ftcore_incidents_total": Described("counter", "Ended incidents.", ("kind", "cause", "outcome")),
    "ftcore_incidents_resolved_total": Described("counter", "Incidents by the policy that resolved them.", ("policy",)),
    "ftcore_restarts_total": Described("counter", "Worlds formed after an incident, by its class.", ("cause",)),
    "ftcore_recovery_phase_seconds": Described("histogram", "Duration of each phase of ended faults.", ("phase",)),
    "ftcore_steps_lost_total": Described("counter", "Completed steps that had to be computed again."),
    "ftcore_alerts_total": Described("counter", "Alerts that were raised."),
    "ftcore_checkpoints_committed_total": Described("counter", "Complete checkpoints."),
    "ftcore_checkpoint_failures_total": Described("counter", "Parts of checkpoints that nodes could not write."),
    "ftcore_checkpoint_timestamp_seconds": Described("gauge", "When the newest checkpoint was complete."),
    "ftcore_checkpoint_step": Described("gauge", "Step of the newest complete checkpoint."),
    "ftcore_shard_write_seconds": Described("histogram", "Time of writing a shard to storage."),
    "ftcore_shard_staging_seconds": Described("histogram", "Time of copying a written shard to memory before."),
    "ftcore_shard_written_bytes_total": Described("counter", "Bytes of shards written to storage."),
    "ftcore_state_load_seconds": Described("histogram", "Time of restoring state on a node.", ("source",)),
    "ftcore_events_total": Described("counter", "Events in the log.", ("type",)),
    "ftcore_master_elections_total": Described("counter", "Masters elected."),
    "ftcore_master_up": Described("gauge", "1 if the leading master answers.", live=True),
    "ftcore_log_last_event_timestamp_seconds": Described("gauge", "Time of the newest event, by the master's clock."),
    "ftcore_log_behind_events": Described("gauge", "Events of the log that these figures lack.", live=True),
    "ftcore_log_readable": Described("gauge", "1 if the log could be read at the last try.", live=True),
    "ftcore_log_waiting_facts": Described("gauge", "Facts at the master that are not in the log yet.", live=True),
    "ftcore_log_wait_seconds": Described("gauge", "Age of the oldest fact that is not in the log yet.", live=True),
    "ftcore_rank_group_info": Described("gauge", "1; the nodes of these ranks.", ("ranks", "nodes"), True),
    "ftcore_rank_group_step": Described("gauge", "Newest step that all its ranks completed.", ("ranks",), True),
    "ftcore_rank_group_step_seconds": Described("gauge", "Time of a step, the slowest node.", ("ranks",), True),
    "ftcore_rank_group_own_seconds": Described(
        "gauge", "Own work in a step, without waiting for others, the slowest rank.", ("ranks",), True
    ),
    "ftcore_rank_group_silence_seconds": Described(
        "gauge", "Time since the last heartbeat, the most silent node.", ("ranks",), True
    ),
}
"""By name."""
