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
| ``orphan_grace_s`` | so long without a step and out of reach of the master that leads, an agent stops its workers |
| ``master_idle_s`` | a master that no agent calls for this long ends; after ``master_lease_s`` if the run has ended |
| ``progress_sample_s`` | how often a progress sample enters the log |
| ``pace_window_s`` | the own work of nodes is compared this often; 14 slow windows of 20 make a straggler |
| ``hang_look_s`` | workers that show no progress for this long are looked at; one stopped for half of it hangs |
| ``hang_idle_s`` | so long without progress, a rank hangs that keeps peers waiting, if it waits for a lock or a disk |
| ``hang_busy_s`` | the same of a rank that waits for what may come from elsewhere: a socket, a file, a process |
| ``hang_ceiling_s`` | no step for this long is a hang; at least 20 times the longest gap that the job went on from |

``check()`` holds the inequalities; a test runs it on the defaults.

One master hears all agents of a job, so those of a large one beat more rarely: from 1,000 nodes (the upper bound of
``--nnodes``) on the default ``heartbeat_s`` grows with them, to 1.6 s at 3,200, and ``node_lease_s`` to three beats,
4.8 s. Master and agents say something to each other at least every ``heartbeat_s`` or ``master_renew_s``, whichever is
longer, and an agent that hears nothing for ``master_lease_s`` or three beats looks for another master.
"""

import attrs

BEATS_PER_S = 2000
"""Heartbeats that a master is to be sent in a second: about a third of a core."""

HEARTBEAT_MAX_S = 1.6
"""Three of these stay below five seconds: a node that lost its power is not to go unnoticed for longer."""

CALLERS_PER_S = 700
"""Agents that a new master can welcome in a second; meanwhile its interpreter has little time to renew its lease."""

MASTER_LEASE_MAX_S = 6.0
"""What a node's lease and this make together is how long the loss of the master's node may go unnoticed."""


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
    pace_window_s: float = 5.0
    hang_look_s: float = 10.0
    hang_idle_s: float = 60.0
    hang_busy_s: float = 600.0
    hang_ceiling_s: float = 1800.0

    def for_nodes(self, nodes: int) -> "Timing":
        """These constants for a job of so many nodes at most.

        Beats are rarer if one master could not hear them all, and its own lease outlasts the rush at its door.
        """
        heartbeat_s = max(self.heartbeat_s, min(nodes / BEATS_PER_S, HEARTBEAT_MAX_S))
        master_lease_s = max(self.master_lease_s, min(nodes / CALLERS_PER_S, MASTER_LEASE_MAX_S))
        return attrs.evolve(
            self,
            heartbeat_s=heartbeat_s,
            node_lease_s=max(self.node_lease_s, 3 * heartbeat_s),
            master_lease_s=master_lease_s,
            master_renew_s=self.master_renew_s * master_lease_s / self.master_lease_s,
        )

    @property
    def sign_s(self) -> float:
        """A master says something to each agent in this time."""
        return max(self.master_renew_s, self.heartbeat_s)

    @property
    def patience_s(self) -> float:
        """An agent that heard nothing from its master for so long looks for another."""
        return max(self.master_lease_s, 3 * self.heartbeat_s)

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
            (self.heartbeat_s < self.pace_window_s, "heartbeat_s < pace_window_s"),
            (0 < self.hang_look_s <= self.hang_idle_s, "0 < hang_look_s <= hang_idle_s"),
            (self.hang_idle_s <= self.hang_busy_s, "hang_idle_s <= hang_busy_s"),
            (self.hang_busy_s <= self.hang_ceiling_s, "hang_busy_s <= hang_ceiling_s"),
        )
        for holds, text in rules:
            if not holds:
                raise ValueError(f"time constants contradict each other: {text} does not hold")


DEFAULT = Timing()
"""The defaults of the documentation."""
