"""The channel between an agent and its helper processes, and between torchrun and its sidecar."""

from ftcore.rdzv_etcd import channel
from ftcore.runtime.warm import protocol


def test_last_messages_of_a_peer_with_unread_input_are_received() -> None:
    """The kernel reports the unread message first, before the last messages of the peer."""
    ours, theirs = protocol.pair()
    with ours:
        with theirs:
            protocol.send(ours, {"next": []})
            protocol.send(theirs, {"end": {"exit_code": 2}})
        assert channel.receive(ours) == {"end": {"exit_code": 2}}
        assert channel.receive(ours) is None
