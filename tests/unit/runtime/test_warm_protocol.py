"""The channel between an agent and its helpers, and between torchrun and its sidecar."""

from ftcore.rdzv_etcd import channel
from ftcore.runtime.warm import protocol


def test_last_words_are_heard_of_a_peer_that_did_not_read_all() -> None:
    """The kernel tells the reader of the unread message first, before what the peer had said."""
    ours, theirs = protocol.pair()
    with ours:
        with theirs:
            protocol.send(ours, {"next": []})
            protocol.send(theirs, {"end": {"exit_code": 2}})
        assert channel.receive(ours) == {"end": {"exit_code": 2}}
        assert channel.receive(ours) is None
