"""The master's clock: the system's may be stepped, the log's time may not."""

import time

from ftcore.runtime.clock import SystemClock, at

HOUR_NS = 3600 * 10**9


def test_a_step_of_the_systems_clock_moves_no_time(monkeypatch):
    """After a step of an hour, in either direction, the clock goes on as if nothing had happened."""
    clock = SystemClock()
    before = clock.now()
    real = time.time_ns
    for step in (HOUR_NS, -HOUR_NS):
        monkeypatch.setattr(time, "time_ns", lambda step=step: real() + step)
        assert before <= clock.now() < before + HOUR_NS // 60


def test_a_new_master_does_not_start_behind_the_log(monkeypatch):
    """A master on a host whose clock is an hour behind goes on at the log's last time."""
    last = time.time_ns() + HOUR_NS
    clock = SystemClock(not_before=last)
    assert last <= clock.now() < last + HOUR_NS // 60


def test_a_new_master_does_not_run_ahead_of_the_log(monkeypatch):
    """A master on a host whose clock is an hour ahead goes on with the clock of the one that it followed."""
    ahead = time.time_ns() - time.monotonic_ns()
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + HOUR_NS)
    assert abs(SystemClock(not_before=0, ahead=ahead).now() - real()) < HOUR_NS // 60
    last = real() + 2 * HOUR_NS
    assert SystemClock(not_before=last, ahead=ahead).now() >= last


def test_a_moment_is_told_by_both_clocks():
    """What happened a second ago is dated a second back on the wall clock as well."""
    now = at()
    past = at(now.mono - 10**9)
    assert past.mono == now.mono - 10**9
    assert abs((now.wall - past.wall) - 10**9) < 10**8
    assert past.boot == now.boot != ""
