"""Which staging memory the keeper has, keeps and gives back."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftcore.runtime.keeper.copies import NodeCopies
from ftcore.runtime.keeper.slots import COPIED_SLOTS, COPY, SLACK, KeptSlot, MemoryRefused, SlotMemory
from ftcore.shm import memory
from ftcore.shm.staging import FREE, PAGE, QUEUED, READ, needed

SIZE = needed(1000, 4 * PAGE)
LARGE = needed(1000, 40 * PAGE)


@pytest.fixture
def slots() -> Iterator[SlotMemory]:
    """The memory of a node without limits."""
    made = SlotMemory(lambda: None)
    yield made
    made.close()


def write(kept: KeptSlot, step: int, *, round_: int = 1, rank: int | None = None, data: bytes = b"d") -> KeptSlot:
    """Write a shard as a worker does."""
    rank = kept.local_rank if rank is None else rank
    kept.slot.begin(len(data))[:] = data
    index = {"round": round_, "step": step, "rank": rank, "ranks": 4, "group": 0, "groups": 1, "pieces": []}
    kept.slot.seal(json.dumps(index).encode(), step, round_, step)
    return kept


def held(slots: SlotMemory) -> list[tuple[int, int]]:
    return [(each["local_rank"], each["step"]) for each in slots.held()]


def test_slots_are_used_again(slots: SlotMemory) -> None:
    """By the next worker of the local rank, with what they hold."""
    pair = slots.pair(0, SIZE)
    write(pair[1], 5)
    assert slots.pair(0, SIZE - PAGE) == pair
    assert slots.newest(0) is pair[1]
    assert slots.newest(1) is None


def test_larger_slots_keep_the_newest_shard_until_both_are_sealed(slots: SlotMemory) -> None:
    """A worker that dies before its second save leaves a complete shard."""
    old = slots.pair(0, SIZE)
    write(old[0], 5)
    write(old[1], 6)
    new = slots.pair(0, LARGE)
    assert held(slots) == [(0, 6)] and old[0].closed
    assert slots.numbered(0, old[1].number) is old[1]
    write(new[0], 7)
    slots.tidy()
    assert held(slots) == [(0, 6), (0, 7)]
    write(new[1], 8)
    slots.tidy()
    assert held(slots) == [(0, 7), (0, 8)] and old[1].closed


def test_a_shard_that_is_read_is_never_closed(slots: SlotMemory) -> None:
    """It goes when its last reader has left."""
    (old, _) = slots.pair(0, SIZE)
    write(old, 5).pin(readers=1)
    new = slots.pair(0, LARGE)
    for step, kept in enumerate(new, 6):
        write(kept, step)
    slots.tidy()
    assert not old.closed and (0, 5) in held(slots)
    old.pin(readers=-1)
    slots.tidy()
    assert old.closed and held(slots) == [(0, 6), (0, 7)]


def test_a_process_that_may_still_write_gets_no_successor_in_its_memory(slots: SlotMemory) -> None:
    """A successor gets other slots, and the newest shard stays readable."""
    old = slots.pair(0, SIZE)
    write(old[0], 5)
    new = slots.pair(0, SIZE, fresh=True)
    assert not {kept.number for kept in new} & {kept.number for kept in old}
    assert held(slots) == [(0, 5)]


def test_much_too_large_slots_are_replaced(slots: SlotMemory) -> None:
    """After the state was split over more ranks; not for a little less."""
    pair = slots.pair(0, 4 * SLACK)
    assert slots.pair(0, 3 * SLACK) == pair
    assert slots.pair(0, SLACK) != pair


def test_the_limit_counts_what_is_kept(slots: SlotMemory) -> None:
    """A refusal names need, use and limit, and changes nothing."""
    slots.limit = 5 * LARGE
    pair = slots.pair(0, LARGE)
    write(pair[0], 5)
    assert slots.pair(1, LARGE)
    with pytest.raises(MemoryRefused, match=r"2 slots of local rank 2 need .* the limit is .* are in use: raise"):
        slots.pair(2, LARGE)
    assert slots.pair(0, LARGE) == pair and held(slots) == [(0, 5)]


def test_the_newest_shard_is_given_up_for_slots_that_would_not_fit(slots: SlotMemory) -> None:
    """Otherwise a job whose state grew could never stage again."""
    slots.limit = 2 * LARGE
    write(slots.pair(0, SIZE)[0], 5)
    assert slots.pair(0, LARGE)
    assert held(slots) == [] and slots.size == 2 * LARGE


def test_slots_that_are_only_too_large_are_kept_without_memory_for_others(slots: SlotMemory) -> None:
    """No shard is given up to save memory."""
    pair = slots.pair(0, 4 * SLACK)
    write(pair[0], 5)
    slots.limit = 5 * SLACK
    assert slots.pair(0, SLACK) == pair and held(slots) == [(0, 5)]


def test_memory_that_was_promised_counts() -> None:
    """Workers that ask at the same time do not get more than the machine has."""
    slots = SlotMemory(lambda: 5 * LARGE)
    slots.pair(0, LARGE)
    slots.pair(1, LARGE)
    with pytest.raises(MemoryRefused, match=r"this machine or container has .* left"):
        slots.pair(2, LARGE)
    slots.close()


def test_shards_after_a_rollback_are_forgotten(slots: SlotMemory) -> None:
    """Those of earlier rounds with later steps; the next write into the slot counts again."""
    pair = slots.pair(0, SIZE)
    write(pair[0], 10)
    write(pair[1], 20)
    assert slots.drop(above=10, before=2) == 1
    assert held(slots) == [(0, 10)] and not pair[1].holds(pair[1].sequence)
    write(pair[1], 12, round_=2)
    assert held(slots) == [(0, 10), (0, 12)]
    assert slots.drop(above=10, before=2) == 0


def test_ranks_that_are_gone_keep_their_shards_until_the_others_have_saved_twice(slots: SlotMemory) -> None:
    """Until then, theirs may be part of the newest complete step of the job."""
    for local_rank in (0, 1):
        write(slots.pair(local_rank, SIZE)[0], 10)
    first, second = slots.pair(0, SIZE)
    running = [(0, 2)]
    write(second, 11, round_=2, rank=0)
    slots.tidy(running)
    assert (1, 10) in held(slots)
    write(first, 12, round_=2, rank=0)
    slots.tidy(running)
    assert held(slots) == [(0, 12), (0, 11)]
    assert slots.size == 2 * SIZE


def test_the_slots_of_a_worker_that_has_died_stay_while_others_of_its_round_seal(slots: SlotMemory) -> None:
    """Survivors that stage their state for a dying checkpoint do not cost that of the dead rank."""
    for local_rank in (0, 1):
        for step, kept in enumerate(slots.pair(local_rank, SIZE), 7):
            write(kept, step, round_=2, rank=local_rank)
    slots.tidy([(1, 2)])
    assert held(slots) == [(0, 7), (0, 8), (1, 7), (1, 8)]


def test_an_index_of_something_else_is_no_shard(slots: SlotMemory) -> None:
    """JSON of another kind, or no JSON."""
    pair = slots.pair(0, SIZE)
    for index in (b"{}", b"[]", b"no json", b'{"step": "x"}'):
        pair[0].slot.begin(1)
        pair[0].slot.seal(index, 1, 1, 1)
        assert held(slots) == []


def test_the_stronger_pin_is_shown(slots: SlotMemory) -> None:
    """A writer without another slot takes the one that only waits to be read."""
    kept = slots.pair(0, SIZE)[0]
    for change, pin in (
        ({"queued": 1}, QUEUED),
        ({"readers": 1}, READ),
        ({"queued": -1}, READ),
        ({"readers": -1}, FREE),
    ):
        kept.pin(**change)
        assert kept.slot.pinned == pin


def test_closing_gives_all_memory_back() -> None:
    """No descriptor stays."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    slots = SlotMemory(lambda: None)
    for local_rank in range(3):
        write(slots.pair(local_rank, SIZE)[0], 1)
        slots.pair(local_rank, LARGE)
    slots.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert list(slots) == []


# -- memory of the machine

MEMINFO = "MemTotal:       1000 kB\nMemAvailable:    600 kB\n"


def group(root: Path, path: str, **contents: str) -> None:
    """Write files of a control group; a name has ``__`` for its dot."""
    (root / path).mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (root / path / name.replace("__", ".")).write_text(text)


def machine(root: Path, groups: str, meminfo: str = MEMINFO) -> int | None:
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "meminfo").write_text(meminfo)
    (root / "proc" / "self" / "cgroup").write_text(groups)
    return memory.available(root / "proc", root / "cgroup")


def test_a_machine_without_groups_has_its_own_memory(tmp_path: Path) -> None:
    """As the kernel estimates it."""
    assert machine(tmp_path, "") == 600 * 1024


def test_the_smallest_limit_of_nested_groups_counts(tmp_path: Path) -> None:
    """Version 2: a parent may have less left than the group itself; files in its cache can be dropped."""
    group(
        tmp_path / "cgroup", "job", memory__max="500000", memory__current="400000", memory__stat="inactive_file 1000\n"
    )
    group(tmp_path / "cgroup", "job/step", memory__max="max", memory__current="10")
    assert machine(tmp_path, "0::/job/step\n") == 101_000


def test_groups_of_version_1_have_limits_too(tmp_path: Path) -> None:
    """They have a hierarchy of their own for memory, among others that do not matter."""
    group(tmp_path / "cgroup" / "memory", "a", memory__limit_in_bytes="9000", memory__usage_in_bytes="8000")
    group(tmp_path / "cgroup" / "cpu", "a", memory__limit_in_bytes="1", memory__usage_in_bytes="0")
    assert machine(tmp_path, "4:cpu,cpuacct:/a\n3:memory:/a\n") == 1000


def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    """Never a negative number."""
    group(tmp_path / "cgroup", "a", memory__max="100", memory__current="200")
    assert machine(tmp_path, "0::/a\n") == 0


def test_an_unknown_machine_has_no_limit(tmp_path: Path) -> None:
    """Nothing can be read."""
    assert memory.available(tmp_path / "proc", tmp_path / "cgroup") is None
    assert Path("/proc/meminfo").exists() is (memory.available() is not None)


def copied(slots: SlotMemory, step: int, *, node: str = "other", local_rank: int = 0, round_: int = 1) -> KeptSlot:
    """Take a copy of another node's shard."""
    kept = slots.incoming(node, local_rank, SIZE)
    write(kept, step, round_=round_)
    return kept


def test_a_copy_never_overwrites_the_newest_complete_one(slots: SlotMemory) -> None:
    """There are two slots for each rank of each other node."""
    first, second = copied(slots, 5), copied(slots, 6)
    assert first is not second
    third = slots.incoming("other", 0, SIZE)
    assert third is first
    third.slot.begin(1)
    assert slots.incoming("other", 0, SIZE) is first, "the torn one, not step 6"
    assert copied(slots, 5, local_rank=1) not in (first, second)
    assert [(each["step"], each["copy"]) for each in slots.held()] == [(6, True), (5, True)]
    assert slots.numbered(COPY, second.number) is second


def test_a_copy_that_is_read_is_not_overwritten(slots: SlotMemory) -> None:
    """The next one is refused until then."""
    first, _ = copied(slots, 5), copied(slots, 6)
    first.pin(readers=1)
    with pytest.raises(MemoryRefused, match="being read"):
        slots.incoming("other", 0, SIZE)
    first.pin(readers=-1)
    assert slots.incoming("other", 0, SIZE) is first


def test_copies_make_room_for_a_nodes_own_slots(slots: SlotMemory) -> None:
    """Before its own older shards are given up; and they never take its last room."""
    slots.limit = 4 * SIZE
    copied(slots, 5), copied(slots, 6)
    with pytest.raises(MemoryRefused, match=r"a copy for another node needs .* the limit is"):
        for local_rank in range(1, 4):
            copied(slots, 5, local_rank=local_rank)
    assert slots.pair(0, SIZE, count=COPIED_SLOTS)
    assert slots.copies == []


def test_more_slots_are_added_to_those_that_are_there(slots: SlotMemory) -> None:
    """With what they hold; a refusal changes nothing."""
    pair = slots.pair(0, SIZE)
    write(pair[0], 5)
    more = slots.pair(0, SIZE, count=COPIED_SLOTS)
    assert more[:2] == pair and len(more) == COPIED_SLOTS == slots.count(0)
    assert slots.pair(0, SIZE) == more
    slots.limit = 5 * SIZE
    with pytest.raises(MemoryRefused, match=r"4 slots of local rank 1 need"):
        slots.pair(1, SIZE, count=COPIED_SLOTS)
    assert len(slots.pair(0, SIZE)) == COPIED_SLOTS


def test_a_spare_slot_leaves_memory_for_the_other_ranks(slots: SlotMemory) -> None:
    """It is wanted, not needed: without memory for it there are two."""

    async def body() -> None:
        copies = NodeCopies(slots, lambda message: None, None)
        slots.limit = 5 * SIZE
        assert len(copies.pair(0, SIZE, fresh=False, copied=False, others=1)) == 3
        assert len(copies.pair(1, SIZE, fresh=False, copied=False)) == 2
        slots.limit = 6 * SIZE
        assert len(copies.pair(1, SIZE, fresh=False, copied=False)) == 3
        slots.limit = 10 * SIZE
        assert len(copies.pair(2, SIZE, fresh=False, copied=False, others=1)) == 2
        copies.close()

    asyncio.run(body())


def test_no_shard_is_given_up_for_a_spare_slot(slots: SlotMemory) -> None:
    """Old ones and copies stay, if two new slots fit beside them."""

    async def body() -> None:
        copies = NodeCopies(slots, lambda message: None, None)
        copied(slots, 5)
        write(slots.pair(0, SIZE)[0], 6)
        slots.limit = 3 * LARGE
        assert len(copies.pair(0, LARGE, fresh=False, copied=False)) == 2
        assert sorted(held(slots)) == [(COPY, 5), (0, 6)]
        copies.close()

    asyncio.run(body())


def test_copies_of_earlier_rounds_end_when_a_round_has_staged_twice(slots: SlotMemory) -> None:
    """Until then, they may be part of the newest complete step of the job."""
    old, new = copied(slots, 5), copied(slots, 9, node="another", round_=2)
    pair = slots.pair(0, SIZE, count=COPIED_SLOTS)
    write(pair[0], 8, round_=2)
    slots.tidy([(0, 2)])
    assert not old.closed
    write(pair[1], 9, round_=2)
    slots.tidy([(0, 2)])
    assert old.closed and not new.closed
