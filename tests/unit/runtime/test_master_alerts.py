"""Alerts: a bounded queue, sent one after the other, each recorded; with a made-up service."""

import asyncio
import os

import pytest

from ftcore.events.envelope import Event, EventId
from ftcore.events.policy import AlertRaised, AlertSent, ChainEntry
from ftcore.events.registry import Kind
from ftcore.faults.failure_notes import FirstFailure
from ftcore.runtime.alert import Delivery, Message, _without, urls
from ftcore.runtime.master import alerts
from ftcore.runtime.master.alerts import Alerts, Unsent, send
from ftcore.runtime.wire import SECRET_VARIABLES

CHAIN = (ChainEntry(policy="alert", options={"to": ("env:CHAT", "json://h/x")}), ChainEntry(policy="stop", options={}))


def event(seq: int, data: AlertRaised | AlertSent | None = None, time: int = 0) -> Event:
    data = data or AlertRaised(severity="warning", title="job: gpu-hw", text=f"message {seq}")
    kind = Kind.DECISION if isinstance(data, AlertRaised) else Kind.FACT
    type_ = "alert.raised" if isinstance(data, AlertRaised) else "alert.sent"
    return Event(
        seq=seq,
        id=EventId("master", "", seq),
        time=time,
        at=None,
        type=type_,
        source="master",
        kind=kind,
        cause=0,
        incident=None,
        term=1,
        v=1,
        ignorable=True,
        data=data,
    )


class Service:
    """Accepts messages; its answers can be set in advance."""

    def __init__(self, *answers: Delivery) -> None:
        self.answers = list(answers)
        self.messages: list[Message] = []
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, message: Message) -> Delivery:
        await self.open.wait()
        self.messages.append(message)
        return self.answers.pop(0) if self.answers else Delivery()


def run(raise_, *answers: Delivery) -> tuple[Service, list[AlertSent]]:
    """Send the alerts of ``raise_``; returns the messages of the service and the recorded facts."""

    async def go() -> tuple[Service, list[AlertSent]]:
        service, told = Service(*answers), []

        def tell(sent: AlertSent) -> asyncio.Future[None]:
            told.append(sent)
            durable = asyncio.get_running_loop().create_future()
            durable.set_result(None)
            return durable

        made = Alerts(tell, service.send, pause_s=0.0)
        running = asyncio.create_task(made.run())
        raise_(made, service)
        service.open.set()
        await made.flush(10.0)
        running.cancel()
        return service, told

    return asyncio.run(go())


def test_a_message_goes_to_all_that_the_chain_names():
    """Sent once, recorded with the seq of its ``alert.raised``."""
    service, [told] = run(lambda made, _: made.enqueue(event(7), CHAIN))
    assert [(message.to, message.text) for message in service.messages] == [(("env:CHAT", "json://h/x"), "message 7")]
    assert told == AlertSent(alert=7, ok=True)


def test_first_failure_follows_the_first_line():
    """The line is in the text, for every service; its fields are for those that take JSON."""
    first = FirstFailure(line="rank 1 on vm failed first: exit code 1", fields={"incident": "i1"})
    raised = AlertRaised(severity="warning", title="job", text="what happened\nadvice: token=hunter2hunter2")
    service, _ = run(lambda made, _: made.enqueue(event(7, raised), CHAIN, first=first))
    [message] = service.messages
    assert message.text == "what happened\nrank 1 on vm failed first: exit code 1\nadvice: token=[redacted]"
    assert message.first_failure == {"incident": "i1"}


def test_without_targets():
    """Without a target nothing is sent or recorded."""
    service, told = run(lambda made, _: made.enqueue(event(7), (ChainEntry(policy="stop", options={}),)))
    assert service.messages == told == []


def test_only_failed_targets_are_retried_once():
    """Targets that accepted the message do not get it twice."""
    service, [told] = run(lambda made, _: made.enqueue(event(7), CHAIN), Delivery(failed={1: "json://…: busy"}))
    assert [message.to for message in service.messages] == [("env:CHAT", "json://h/x"), ("json://h/x",)]
    assert told.ok
    service, [told] = run(lambda made, _: made.enqueue(event(7), CHAIN), *[Delivery(failed={0: "no"})] * 2)
    assert (told.ok, told.error) == (False, "no")


def test_a_missing_library_is_reported_once():
    """The error says how to install it; later messages are not tried."""

    def raise_(made: Alerts, _: Service) -> None:
        for seq in range(3):
            made.enqueue(event(seq), CHAIN)

    service, [told] = run(raise_, Delivery(missing=True))
    assert "ftcore[alerts]" in told.error and len(service.messages) == 1


def test_a_flood_is_cut_off_and_counted():
    """A limited number is sent; the rest is recorded as dropped, and the next message has the count."""

    def raise_(made: Alerts, _: Service) -> None:
        for seq in range(50):
            made.enqueue(event(seq), CHAIN)

    service, told = run(raise_)
    assert len(service.messages) == alerts.SENT_MAX and len(told) == 50
    dropped = [sent for sent in told if not sent.ok]
    assert len(dropped) == 50 - alerts.SENT_MAX and all("dropped" in sent.error for sent in dropped)
    assert f"({len(dropped)} messages before this one were dropped)" in service.messages[0].text


def test_the_end_of_the_job_is_never_dropped():
    """It is sent beyond any limit, and before queued messages."""

    def raise_(made: Alerts, _: Service) -> None:
        for seq in range(50):
            made.enqueue(event(seq), CHAIN)
        made.enqueue(event(99), CHAIN, end=True)

    service, _ = run(raise_)
    texts = [message.text.partition("\n")[0] for message in service.messages]
    assert texts[:3] == ["message 0", "message 99", "message 1"] and len(texts) == alerts.SENT_MAX + 1


def test_a_silent_service_blocks_nothing(monkeypatch):
    """The queue fills up to its limit, and queueing never waits."""
    monkeypatch.setattr(alerts, "SENT_MAX", 1000)

    def raise_(made: Alerts, service: Service) -> None:
        made._sent = type(made._sent)(maxlen=1000)
        service.open.clear()
        for seq in range(alerts.QUEUE_MAX + 5):
            made.enqueue(event(seq), CHAIN)

    service, told = run(raise_)
    assert len(service.messages) == alerts.QUEUE_MAX
    assert [sent.alert for sent in told if not sent.ok] == list(range(alerts.QUEUE_MAX, alerts.QUEUE_MAX + 5))


def test_a_new_master_sends_recent_unsent_alerts():
    """Alerts recorded as sent are not sent again, whatever the result."""
    unsent = Unsent()
    old, sent, failed, new = event(1), event(2), event(3), event(4, time=10**15)
    for fed in (old, sent, failed, event(5, AlertSent(alert=2, ok=True)), event(6, AlertSent(alert=3, ok=False)), new):
        unsent.feed(fed)
    assert unsent.recent(now=10**15 + 1) == [new]
    assert unsent.recent(now=1) == [old, new]


def test_references_are_read_where_the_message_is_sent(monkeypatch, tmp_path):
    """A variable or a file may have several URLs; one without URLs is reported by its name."""
    monkeypatch.setenv("CHAT", "slack://a/b/c\n\njson://h\n")
    assert urls("env:CHAT") == ["slack://a/b/c", "json://h"]
    path = tmp_path / "urls"
    path.write_text("# on call\nmailto://me:secret@example.org\n")
    assert urls(f"file:{path}") == ["mailto://me:secret@example.org"]
    for target in ("env:NOBODY", f"file:{tmp_path}/none", f"file:{tmp_path}"):
        with pytest.raises(ValueError):
            urls(target)


def test_no_piece_of_a_url_is_reported():
    """Tokens, passwords and hosts are removed from a service's error."""
    said = "Failed to reach T0KEN-A at chat.example.org with secret: error=401"
    assert _without(said, "slack://T0KEN-A:secret@chat.example.org/x") == "Failed to reach … at … with …: error=401"


def test_a_messenger_inherits_no_secret(tmp_path, monkeypatch):
    """External code sends messages: it gets neither the job's token nor etcd's password."""
    (tmp_path / "apprise.py").write_text("class Apprise:\n    def add(self, url):\n        return False\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    names = (*SECRET_VARIABLES, "FTCORE_OTHER")
    for name in names:
        monkeypatch.setenv(name, "s3cret-s3cret-s3cret")
    came = asyncio.run(send(Message(to=tuple(f"env:{name}" for name in names), title="t", text="x")))
    assert ["has no" in why for _, why in sorted(came.failed.items())] == [True, True, False]
