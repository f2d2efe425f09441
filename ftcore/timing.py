"""The one table of time constants, with the inequalities that make them safe.

| constant | meaning |
|---|---|
| ``heartbeat_s`` | longest time between two frames from an agent |
| ``node_lease_s`` | a node is lost if the master receives no frame from it for this long |
| ``master_lease_s`` | another candidate may take over a leadership that was not renewed for this long |
| ``master_renew_s`` | interval at which a leader renews |
| ``reconnect_s`` | interval at which an agent without a master tries the known addresses (jittered) |
| ``join_window_s`` | how long a job waits for nodes beyond its minimum |
| ``return_window_s`` | how long a recovery with too few nodes waits for more before the next policy is asked |
| ``start_timeout_s`` | deadline of a node for starting its workers |
| ``diagnosis_s`` | from the first sign of a fault until a node may be given up for it |
| ``stop_grace_s`` | between TERM and KILL of a worker's process group |
| ``settle_s`` | without step reports, a round counts as good after all ranks lived this long |
| ``orphan_grace_s`` | an agent that has neither seen a step nor reached the leader for this long stops its workers |
| ``master_idle_s`` | a master that no agent calls for this long ends; after ``master_lease_s`` if the run has ended |
| ``progress_sample_s`` | interval of progress samples in the log |
| ``pace_window_s`` | a rank is reported as slow if it has been so for this long, and in 14 of 20 blocks of ten steps |
| ``hang_look_s`` | workers without progress for this long are examined; a worker stopped for half of it hangs |
| ``hang_idle_s`` | a rank that peers wait for hangs after this long in a wait for a lock or a disk |
| ``hang_busy_s`` | the same for a wait that may end from outside: for a socket, a file, a process |
| ``hang_ceiling_s`` | no step for this long is a hang; at least 20 times the longest gap so far that ended |

``check()`` verifies the inequalities; a test runs it on the defaults.

One master receives the heartbeats of all agents, so agents of a large job send fewer: from 1,000 nodes (the upper bound
of ``--nnodes``) on the default ``heartbeat_s`` grows with the number of nodes, to 1.6 s at 3,200, and ``node_lease_s``
to three heartbeats, 4.8 s. Master and agents send each other a message at least every ``heartbeat_s`` or
``master_renew_s``, whichever is longer. An agent that receives nothing for ``master_lease_s`` or three heartbeats looks
for another master.
"""

import msgspec

BEATS_PER_S = 2000
"""Most heartbeats per second that a master receives: about a third of a core."""

HEARTBEAT_MAX_S = 1.6
"""Three of these are less than five seconds, the longest time in which a powered-off node may go unnoticed."""

CALLERS_PER_S = 700
"""Agents that a new master can accept per second; meanwhile it has little time to renew its lease."""

MASTER_LEASE_MAX_S = 6.0
"""Together with a node's lease: the longest time in which the loss of the master's node may go unnoticed."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
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
        """The constants scaled for a job of at most ``nodes`` nodes.

        Heartbeats are limited to what one master can process; its lease is long enough for all agents to connect.
        """
        heartbeat_s = max(self.heartbeat_s, min(nodes / BEATS_PER_S, HEARTBEAT_MAX_S))
        master_lease_s = max(self.master_lease_s, min(nodes / CALLERS_PER_S, MASTER_LEASE_MAX_S))
        return msgspec.structs.replace(
            self,
            heartbeat_s=heartbeat_s,
            node_lease_s=max(self.node_lease_s, 3 * heartbeat_s),
            master_lease_s=master_lease_s,
            master_renew_s=self.master_renew_s * master_lease_s / self.master_lease_s,
        )

    @property
    def sign_s(self) -> float:
        """Longest time between two messages of a master to an agent."""
        return max(self.master_renew_s, self.heartbeat_s)

    @property
    def patience_s(self) -> float:
        """Time without a message from the master after which an agent looks for another."""
        return max(self.master_lease_s, 3 * self.heartbeat_s)

    def check(self) -> None:
        """Raise ``ValueError`` with the first violated inequality.

        A node's lease spans three heartbeats (two may be lost), the master's nearly three renewals. Agents stop their
        workers only after a new master can be elected and their node was declared lost.
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
                raise ValueError(f"inconsistent time constants: {text} does not hold")


DEFAULT = Timing()
"""The documented defaults."""
