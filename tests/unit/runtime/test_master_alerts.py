"""Alerts: a bounded queue, one message after the other, each recorded; against a made-up service."""

import asyncio
import os

import pytest

from ftcore.events.envelope import Event, EventId
from ftcore.events.policy import AlertRaised, AlertSent, ChainEntry
from ftcore.events.registry import Kind
from ftcore.runtime.alert import Delivery, Message, _without, urls
from ftcore.runtime.master import alerts
from ftcore.runtime.master.alerts import Alerts, Unsent, send
from ftcore.runtime.wire import WITHHELD

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
    """Takes messages; what it answers can be said beforehand."""

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
    """Send what ``raise_`` raises; returns what the service got and what was told."""

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
    """Sent once, recorded with the seq of what raised it."""
    service, [told] = run(lambda made, _: made.take(event(7), CHAIN))
    assert [(message.to, message.text) for message in service.messages] == [(("env:CHAT", "json://h/x"), "message 7")]
    assert told == AlertSent(alert=7, ok=True)


def test_nobody_to_tell():
    """Without a target nothing is sent and nothing recorded."""
    service, told = run(lambda made, _: made.take(event(7), (ChainEntry(policy="stop", options={}),)))
    assert service.messages == told == []


def test_what_failed_is_tried_once_more_and_no_other():
    """Those that took the message do not get it twice."""
    service, [told] = run(lambda made, _: made.take(event(7), CHAIN), Delivery(failed={1: "json://…: busy"}))
    assert [message.to for message in service.messages] == [("env:CHAT", "json://h/x"), ("json://h/x",)]
    assert told.ok
    service, [told] = run(lambda made, _: made.take(event(7), CHAIN), *[Delivery(failed={0: "no"})] * 2)
    assert (told.ok, told.error) == (False, "no")


def test_a_missing_library_is_told_once():
    """What would install it is said; later messages are not even tried."""

    def raise_(made: Alerts, _: Service) -> None:
        for seq in range(3):
            made.take(event(seq), CHAIN)

    service, [told] = run(raise_, Delivery(missing=True))
    assert "ftcore[alerts]" in told.error and len(service.messages) == 1


def test_a_flood_is_cut_off_and_counted():
    """So many in a while are sent; the rest is recorded as left out, and the next message says how many."""

    def raise_(made: Alerts, _: Service) -> None:
        for seq in range(50):
            made.take(event(seq), CHAIN)

    service, told = run(raise_)
    assert len(service.messages) == alerts.SENT_MAX and len(told) == 50
    left_out = [sent for sent in told if not sent.ok]
    assert len(left_out) == 50 - alerts.SENT_MAX and all("left out" in sent.error for sent in left_out)
    assert f"({len(left_out)} messages before this one were left out)" in service.messages[0].text


def test_the_end_of_the_job_is_never_left_out():
    """It is sent however many messages were, and before those that wait."""

    def raise_(made: Alerts, _: Service) -> None:
        for seq in range(50):
            made.take(event(seq), CHAIN)
        made.take(event(99), CHAIN, end=True)

    service, _ = run(raise_)
    texts = [message.text.partition("\n")[0] for message in service.messages]
    assert texts[:3] == ["message 0", "message 99", "message 1"] and len(texts) == alerts.SENT_MAX + 1


def test_a_service_that_does_not_answer_holds_nobody(monkeypatch):
    """The queue fills up to its end, and taking a message never waits."""
    monkeypatch.setattr(alerts, "SENT_MAX", 1000)

    def raise_(made: Alerts, service: Service) -> None:
        made._sent = type(made._sent)(maxlen=1000)
        service.open.clear()
        for seq in range(alerts.QUEUE_MAX + 5):
            made.take(event(seq), CHAIN)

    service, told = run(raise_)
    assert len(service.messages) == alerts.QUEUE_MAX
    assert [sent.alert for sent in told if not sent.ok] == list(range(alerts.QUEUE_MAX, alerts.QUEUE_MAX + 5))


def test_a_new_master_sends_what_is_unsent_and_no_old_news():
    """What the log has as sent is not sent again, however it came out."""
    unsent = Unsent()
    old, sent, failed, new = event(1), event(2), event(3), event(4, time=10**15)
    for fed in (old, sent, failed, event(5, AlertSent(alert=2, ok=True)), event(6, AlertSent(alert=3, ok=False)), new):
        unsent.feed(fed)
    assert unsent.news(now=10**15 + 1) == [new]
    assert unsent.news(now=1) == [old, new]


def test_references_are_read_where_the_message_is_sent(monkeypatch, tmp_path):
    """A variable or a file may hold several URLs; one that holds none is told by its name."""
    monkeypatch.setenv("CHAT", "slack://a/b/c\n\njson://h\n")
    assert urls("env:CHAT") == ["slack://a/b/c", "json://h"]
    path = tmp_path / "urls"
    path.write_text("# on call\nmailto://me:secret@example.org\n")
    assert urls(f"file:{path}") == ["mailto://me:secret@example.org"]
    for target in ("env:NOBODY", f"file:{tmp_path}/none", f"file:{tmp_path}"):
        with pytest.raises(ValueError):
            urls(target)


def test_no_piece_of_a_url_is_told():
    """Tokens, passwords and hosts are cut out of what a service is said to have answered."""
    said = "Failed to reach T0KEN-A at chat.example.org with secret: error=401"
    assert _without(said, "slack://T0KEN-A:secret@chat.example.org/x") == "Failed to reach … at … with …: error=401"


def test_a_messenger_inherits_no_secret(tmp_path, monkeypatch):
    """What sends messages is code of other packages: neither the job's token nor etcd's password is there for it."""
    (tmp_path / "apprise.py").write_text("class Apprise:\n    def add(self, url):\n        return False\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    names = (*WITHHELD, "FTCORE_OTHER")
    for name in names:
        monkeypatch.setenv(name, "s3cret-s3cret-s3cret")
    came = asyncio.run(send(Message(to=tuple(f"env:{name}" for name in names), title="t", text="x")))
    assert ["has no" in why for _, why in sorted(came.failed.items())] == [True, True, False]
