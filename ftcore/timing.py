"""The one table of time constants, with the inequalities that make them safe.

| constant | meaning |
|---|---|
| ``heartbeat_s`` | an agent sends at least one frame in this time |
| ``node_lease_s`` | a node whose master heard no frame for this long is lost |
| ``master_lease_s`` | a leadership that was not renewed for this long may be taken over |
| ``master_renew_s`` | a leader renews this often |
| ``reconnect_s`` | an agent without a master tries the known addresses this often (jittered) |
| ``join_window_s`` | how long a job waits for nodes beyond its minimum |
| ``return_window_s`` | how long a recovery with too few nodes waits for more before the policy is escalated past |
| ``start_timeout_s`` | a node that has not started its workers by then has failed to |
| ``diagnosis_s`` | from the first sign of a fault until a node may be given up for it |
| ``stop_grace_s`` | between TERM and KILL of a worker's process group |
| ``settle_s`` | a round whose script reports no steps counts as good after all ranks lived this long |
| ``orphan_grace_s`` | an agent without a master, none of whose workers completes a step for this long, stops them |
| ``master_idle_s`` | a master that no agent has called for this long ends and leaves the job unfinished |
| ``progress_sample_s`` | how often a progress sample enters the log |
| ``hang_idle_s`` | idle workers that can wait for no other node hang after this long without a step, at least |
| ``hang_busy_s`` | workers that are busy, or may be waiting for another node's, hang after this long, at least |

``check()`` holds the inequalities; a test runs it on the defaults.
"""

import attrs


@attrs.frozen(kw_only=True)
class Timing:
    """Time constants of a job, in seconds. See the module's table for the meaning of each."""

    heartbeat_s: float = 0.5
    node_lease_s: float = 2.0
    master_lease_s: float = 3.0
    master_renew_s: float = 1.0
    reconnect_s: float = 0.25
    join_window_s: float = 30.0
    return_window_s: float = 600.0
    start_timeout_s: float = 120.0
    stop_grace_s: float = 10.0
    diagnosis_s: float = 1.0
    settle_s: float = 20.0
    orphan_grace_s: float = 120.0
    master_idle_s: float = 15.0
    progress_sample_s: float = 10.0
    hang_idle_s: float = 60.0
    hang_busy_s: float = 600.0

    def check(self) -> None:
        """Raise ``ValueError`` naming the first inequality that does not hold.

        Three heartbeats fit into a node's lease (two may be lost), three renewals nearly into the master's; a master is
        replaced before its agents give up on it, and agents give up after a lost node was declared lost.
        """
        rules = (
            (3 * self.heartbeat_s <= self.node_lease_s, "3 * heartbeat_s <= node_lease_s"),
            (2 * self.master_renew_s < self.master_lease_s, "2 * master_renew_s < master_lease_s"),
            (self.reconnect_s < self.node_lease_s, "reconnect_s < node_lease_s"),
            (self.master_lease_s + self.node_lease_s < self.orphan_grace_s, "leases < orphan_grace_s"),
            (self.master_lease_s < self.master_idle_s, "master_lease_s < master_idle_s"),
            (self.stop_grace_s < self.return_window_s, "stop_grace_s < return_window_s"),
            (0 < self.hang_idle_s <= self.hang_busy_s, "0 < hang_idle_s <= hang_busy_s"),
        )
        for holds, text in rules:
            if not holds:
                raise ValueError(f"time constants contradict each other: {text} does not hold")


DEFAULT = Timing()
"""The defaults of the documentation."""
