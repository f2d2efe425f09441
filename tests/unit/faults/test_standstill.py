"""Tests of standstills: which ones are a hang, and which may be healthy."""

import msgspec
import pytest

from ftcore.events.worker import RankState
from ftcore.faults.standstill import GROUPS_MAX, StandstillAssessment, ceiling_s, judge, merged
from ftcore.timing import DEFAULT, Timing
from ftcore.wording import spans

CEILING = 1800.0


def stand(*ranks: int, **what: object) -> RankState:
    given: dict[str, object] = {"silent_s": 300.0, "held_s": 300.0, "still_s": 300.0, "overdue": True}
    return RankState(ranks=ranks, count=len(ranks), **(given | what))  # type: ignore[arg-type]


def reduces(*ranks: int, **what: object) -> RankState:
    return stand(*ranks, op="all_reduce", place="t.py:9 (main)", waits="lock", **what)


SLEEPS = stand(1, place="t.py:5 (load)", waits="sleep", ends_s=1e6, still_s=10.0)


def verdict_of(*stands: RankState, size: int = 4, ceiling: float = CEILING) -> tuple[str, str, tuple[int, ...]]:
    found = judge(stands, size, DEFAULT, ceiling)
    return found.verdict, found.cause, found.ranks


def test_missing_steps_alone_are_an_alert_below_the_ceiling() -> None:
    """In any known or unknown state; beyond the ceiling it is a hang that names the ranks outside of collectives."""
    late = stand(0, 1, 2, 3, silent_s=1799.0, state="runs")
    assert verdict_of(late) == ("alert", "silent", ())
    assert verdict_of(msgspec.structs.replace(late, overdue=False)) == ("", "", ())
    assert verdict_of(msgspec.structs.replace(late, silent_s=1800.0)) == ("hang", "ceiling", ())
    slow = stand(2, silent_s=1801.0, state="runs")
    assert verdict_of(slow, reduces(0, 1, 3, silent_s=1801.0)) == ("hang", "ceiling", (2,))
    assert verdict_of(stand(0, 1, 2, 3, silent_s=None, overdue=False, still_s=1e6)) == ("", "", ())


def test_the_ceiling_follows_the_longest_gap() -> None:
    """Twenty times the longest gap that ended by itself, if that is more; each hang of the ceiling doubles it."""
    assert ceiling_s(DEFAULT, 0.0, 0) == 1800.0
    assert ceiling_s(DEFAULT, 100.0, 0) == 2000.0
    assert ceiling_s(DEFAULT, 100.0, 2) == 7200.0
    assert ceiling_s(DEFAULT, 0.0, 99) == 32 * 1800.0


@pytest.mark.parametrize(("state", "limit"), [("stopped", 5.0), ("disk", 60.0)])
def test_a_stopped_rank_is_a_hang(state: str, limit: float) -> None:
    """After its time, whatever is known of the others; a debugger's stop is an alert."""
    held = stand(1, state=state, still_s=limit, silent_s=limit, overdue=False)
    assert verdict_of(held) == ("hang", state, (1,))
    assert verdict_of(held, reduces(0, 2)) == ("hang", state, (1,))
    assert verdict_of(msgspec.structs.replace(held, still_s=limit - 0.1)) == ("", "", ())
    assert verdict_of(msgspec.structs.replace(held, state="traced"), reduces(0, 2, 3)) == ("alert", "silent", (1,))


def test_an_endless_sleep_of_an_awaited_rank_is_named() -> None:
    """The message has its place and that of the others."""
    found = judge((reduces(0, 2, 3), SLEEPS), 4, DEFAULT, CEILING)
    assert (found.verdict, found.cause, found.ranks) == ("hang", "absent", (1,))
    assert "rank 1 waits in t.py:5 (load), all others wait in all_reduce" in found.message


@pytest.mark.parametrize(
    ("waits", "ends_s", "least"),
    [("sleep", 1e6, 10.0), ("lock", None, 60.0), ("outside", None, 600.0), ("", None, 600.0), ("lock", 1e6, 10.0)],
)
def test_the_patience_for_an_absent_rank(waits: str, ends_s: float | None, least: float) -> None:
    """Longer, the more events could still wake it."""
    absent = stand(1, waits=waits, ends_s=ends_s, still_s=least)
    assert verdict_of(reduces(0, 2, 3), absent)[:2] == ("hang", "absent")
    assert verdict_of(reduces(0, 2, 3), msgspec.structs.replace(absent, still_s=least - 0.1))[0] == "alert"


@pytest.mark.parametrize("waits", ["lock", "outside"])
def test_a_busy_rank_is_a_hang_only_beyond_the_ceiling(waits: str) -> None:
    """It may compute while its peers wait outside of a collective; CPU use alone is not progress."""
    spins = stand(0, state="runs", place="t.py:9 (main)", still_s=0.0, held_s=1799.0, silent_s=1799.0)
    never = stand(1, place="t.py:5 (load)", waits=waits, still_s=1799.0, silent_s=1799.0)
    found = judge((spins, never), 2, DEFAULT, CEILING)
    assert (found.verdict, found.cause, found.ranks) == ("alert", "silent", ())
    assert "rank 0 is active in t.py:9 (main), rank 1 waits in t.py:5 (load)" in found.message
    late = [msgspec.structs.replace(one, silent_s=1800.0) for one in (spins, never)]
    assert verdict_of(*late, size=2) == ("hang", "ceiling", ())
    assert verdict_of(*late, reduces(2, 3), size=4) == ("hang", "ceiling", (0, 1))


def test_a_rank_that_may_continue_by_itself_is_not_a_hang() -> None:
    """A sleep that ends, an active rank, a rank of unknown state, peers outside of collectives."""
    others = reduces(0, 2, 3)
    assert verdict_of(others, msgspec.structs.replace(SLEEPS, ends_s=1700.0, still_s=1700.0))[0] == "alert"
    assert verdict_of(others, msgspec.structs.replace(SLEEPS, state="runs", still_s=0.0))[0] == "alert"
    assert verdict_of(reduces(0, 2), SLEEPS)[0] == "alert"
    assert verdict_of(reduces(0, 2), SLEEPS, stand(3, state="runs", still_s=0.0))[0] == "alert"
    assert verdict_of(stand(0, 2, 3, waits="outside"), SLEEPS)[0] == "alert"
    assert verdict_of(reduces(0, 2, 3, held_s=1.0), SLEEPS)[0] == "alert"
    assert verdict_of(msgspec.structs.replace(SLEEPS, ranks=(0,), overdue=False), size=1) == ("", "", ())


def test_a_rank_that_has_ended_while_others_wait_for_it() -> None:
    """It never arrives: its peers hang."""
    assert verdict_of(reduces(0, 2, 3), stand(1, state="gone", still_s=10.0)) == ("hang", "absent", (1,))


def test_ranks_inside_different_collectives() -> None:
    """A hang when none makes progress; not if one sends what the other receives, nor inside the same collective."""
    other = stand(1, op="broadcast", place="t.py:7 (main)")
    assert verdict_of(reduces(0, 2, 3), other) == ("hang", "mismatch", (1,))
    assert "different collectives" in judge((reduces(0, 2, 3), other), 4, DEFAULT, CEILING).message
    assert verdict_of(reduces(0, 2, 3), msgspec.structs.replace(other, still_s=59.0))[0] == "alert"
    assert verdict_of(reduces(0, 2, 3), msgspec.structs.replace(other, op="all_reduce"))[0] == "alert"
    assert verdict_of(stand(0, 2, 3, op="send"), msgspec.structs.replace(other, op="recv"))[0] == "alert"


def test_a_collective_older_than_its_timeout() -> None:
    """Also if the state of some ranks is unknown; ranks outside of it are to blame."""
    over = reduces(0, 2, held_s=316.0, timeout_s=300.0)
    assert verdict_of(over) == ("hang", "timeout", (0, 2))
    assert verdict_of(over, stand(1, state="runs", still_s=0.0)) == ("hang", "timeout", (1,))
    assert verdict_of(msgspec.structs.replace(over, held_s=314.0))[0] == "alert"
    assert verdict_of(msgspec.structs.replace(over, timeout_s=None))[0] == "alert"


def test_finished_scripts_whose_processes_remain_are_an_alert() -> None:
    """All ranks have finished their scripts; below the ceiling that is not a hang."""
    ended = stand(0, 1, 2, state="ended", still_s=60.0, silent_s=60.0)
    found = judge((ended, stand(3, state="gone")), 4, DEFAULT, CEILING)
    assert (found.verdict, found.cause) == ("alert", "finished")
    assert "ranks 0-2 have finished their script but do not end" in found.message
    assert verdict_of(ended, stand(3, state="gone", silent_s=None), ceiling=50.0)[:2] == ("hang", "ceiling")
    assert verdict_of(ended, stand(3, state="waits"))[1] == "silent"


def test_ranks_in_the_same_state_are_one_group() -> None:
    """The smallest times, so that a conclusion holds for each rank; the number of groups is bounded."""
    (group,) = merged((reduces(0, still_s=5.0), reduces(1, still_s=9.0, silent_s=7.0)))
    assert (group.ranks, group.count, group.still_s, group.silent_s) == ((0, 1), 2, 5.0, 7.0)
    many = merged(stand(rank, place=f"t.py:{rank} (f)") for rank in range(1000))
    assert len(many) <= GROUPS_MAX and sum(one.count for one in many) == 1000 and many[0].place == ""
    assert spans((5, 0, 1, 2, 9)) == "0-2, 5, 9"


def test_the_jobs_time_constants_are_used() -> None:
    """The limits are the job's, not the defaults."""
    quick = Timing(hang_look_s=1.0, hang_idle_s=2.0, hang_busy_s=3.0, hang_ceiling_s=4.0)
    absent = stand(1, waits="outside", still_s=3.0, silent_s=3.0)
    assert judge((reduces(0, silent_s=3.0), absent), 2, quick, 4.0).cause == "absent"


def judged(*stands: RankState, **what: object) -> StandstillAssessment:
    size = sum(one.count for one in stands)
    return judge(stands, size, DEFAULT, CEILING, **what)  # type: ignore[arg-type]


def test_a_declared_limit_of_a_section() -> None:
    """Beyond it a rank hangs whatever it does; before it the rank is never absent, and the ceiling waits as well."""
    rank = stand(0, state="runs", still_s=0.0, section="tokenize", section_s=7200.0, limit_s=7200.0, declared=True)
    found = judged(rank, reduces(1, 2, 3))
    assert (found.verdict, found.cause, found.ranks) == ("hang", "limit", (0,))
    assert "rank 0 is active (tokenize for 7200 s, limit 7200 s), all others wait in all_reduce" in found.message
    early = msgspec.structs.replace(
        rank, section_s=7199.0, silent_s=7199.0, still_s=7199.0, state="waits", waits="lock"
    )
    assert judged(early, reduces(1, 2, 3, silent_s=7199.0)).verdict == "alert"
    assert judged(msgspec.structs.replace(early, state="stopped"), reduces(1)).cause == "stopped"


def test_the_policy_files_limit_of_a_section() -> None:
    """It counts as declared, unless the script itself declares one."""
    rank = stand(0, state="runs", still_s=0.0, section="evaluation", section_s=100.0, overdue=False)
    assert judged(rank, limits={"checkpoint": 60.0}).verdict == ""
    assert judged(rank, limits={"evaluation": 60.0}).cause == "limit"
    own = msgspec.structs.replace(rank, limit_s=200.0, declared=True)
    assert judged(own, limits={"evaluation": 60.0}).verdict == ""


def test_the_learned_limit_of_the_time_without_a_step() -> None:
    """A hang if no rank outside of a collective is active; all waiting in one collective, none is to blame."""
    waits = stand(0, 1, 2, 3, waits="lock", silent_s=240.0, limit_s=240.0)
    assert (judged(waits).cause, judged(waits).ranks) == ("limit", ())
    assert judged(msgspec.structs.replace(waits, limit_s=None)).verdict == "alert"
    assert judged(msgspec.structs.replace(waits, silent_s=239.0)).verdict == "alert"
    assert judged(msgspec.structs.replace(waits, still_s=59.0)).verdict == "alert"
    assert judged(msgspec.structs.replace(waits, waits="outside", still_s=599.0)).verdict == "alert"
    assert judged(msgspec.structs.replace(waits, state="runs", still_s=0.0)).verdict == "alert"
    inside = reduces(0, 1, 2, 3, silent_s=240.0, limit_s=240.0, held_s=60.0)
    assert judged(inside).cause == "limit"
    assert judged(msgspec.structs.replace(inside, state="runs", still_s=0.0)).cause == "limit", (
        "a collective of NCCL spins"
    )
    assert judged(msgspec.structs.replace(inside, op="backward", state="runs", still_s=0.0)).verdict == "alert"
    assert judged(msgspec.structs.replace(inside, held_s=59.0)).verdict == "alert"


def test_the_learned_limit_of_a_section() -> None:
    """Beyond it, and beyond ``hang_busy_s``, an active rank hangs as well."""
    rank = stand(0, state="runs", still_s=0.0, section="evaluation", section_s=600.0, limit_s=400.0)
    assert judged(rank, reduces(1, 2)).cause == "limit"
    assert judged(msgspec.structs.replace(rank, section_s=599.0), reduces(1, 2)).verdict == "alert"
    assert judged(msgspec.structs.replace(rank, limit_s=601.0), reduces(1, 2)).verdict == "alert"


@pytest.mark.parametrize("state", ["waits", "runs"])
def test_the_rank_that_is_a_collective_behind(state: str) -> None:
    """By torch's numbers, which also count while NCCL spins; of another process group they say nothing."""
    ahead = reduces(0, 2, 3, state=state, call=12, group="default_pg", held_s=60.0)
    behind = reduces(1, state=state, call=11, group="default_pg", held_s=60.0)
    found = judged(ahead, behind)
    assert (found.cause, found.ranks) == ("mismatch", (1,))
    assert "rank 1 waits in all_reduce number 11 of default_pg" in found.message
    assert judged(ahead, msgspec.structs.replace(behind, group="tp")).verdict == "alert"
    assert judged(ahead, msgspec.structs.replace(behind, call=12)).verdict == "alert"
    assert judged(ahead, msgspec.structs.replace(behind, held_s=59.0)).verdict == "alert"


def test_the_rank_that_is_a_step_behind() -> None:
    """In the same collective, by the last step, if none makes progress."""
    found = judged(reduces(0, 2, 3, step=8), reduces(1, step=7))
    assert (found.cause, found.ranks) == ("mismatch", (1,))
    assert "rank 1 waits in all_reduce after step 7, all others wait in all_reduce after step 8" in found.message
    assert judged(reduces(0, step=8), reduces(1, step=7, still_s=59.0)).verdict == "alert"


def test_a_rank_whose_data_loader_is_stuck() -> None:
    """Without any rank in a collective; after the time that its process's wait allows."""
    rank = stand(1, place="t.py:5 (main)", waits="lock", loader="worker process 7 of its data loader waits for a lock")
    active = stand(0, state="runs", still_s=0.0)
    found = judged(rank, active)
    assert (found.cause, found.ranks) == ("loader", (1,))
    assert "rank 1 waits in t.py:5 (main) for its data loader: worker process 7" in found.message
    assert judged(msgspec.structs.replace(rank, still_s=59.0), active).verdict == "alert"
    assert judged(msgspec.structs.replace(rank, waits="outside", still_s=599.0), active).verdict == "alert"


def test_before_the_first_step() -> None:
    """Steps must be expected, and no rank may have made any progress since the ceiling."""
    idle = stand(0, 1, silent_s=None, overdue=False, waits="lock", still_s=CEILING, trains=True)
    assert judged(idle).cause == "ceiling"
    assert judged(msgspec.structs.replace(idle, trains=False)).verdict == ""
    assert judged(msgspec.structs.replace(idle, trains=False), steps_expected=True).cause == "ceiling"
    assert judged(msgspec.structs.replace(idle, still_s=CEILING - 1)).verdict == ""
    assert judge((idle,), 3, DEFAULT, CEILING).verdict == "", "a rank of unknown state may be active"
    late = stand(0, silent_s=None, overdue=False, still_s=0.0, state="runs", section="first step", section_s=90.0)
    assert judged(late, limits={"first step": 60.0}).cause == "limit"
