"""A loader continues anywhere: with other ranks, after a restart, behind skipped samples, with processes of its own."""

import multiprocessing
import pickle
import random
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy
import pytest
import torch

from ftcore.batch import BatchRule, RankBatch, batch_total, rank_batch
from ftcore.data import ElasticLoader
from ftcore.data.seeded import SeededDataset
from ftcore.worker import join

SIZE = 103


class Numbers(torch.utils.data.Dataset[int]):
    """Samples that are their own numbers."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> int:
        return number


def part(rank: int, ranks: int, size: int = 12, micro: int = 2) -> RankBatch:
    return rank_batch(batch_total(size, micro, BatchRule.KEEP, 1, 1, ranks), rank, ranks)


def world(ranks: int, state: dict[str, Any] | None = None, **options: Any) -> list[ElasticLoader]:
    """The loaders of all ranks."""
    made = [ElasticLoader(Numbers(), part(rank, ranks), seed=5, **options) for rank in range(ranks)]
    for each in made:
        if state is not None:
            each.load_state_dict(state)
    return made


def taken(loaders: list[ElasticLoader], steps: int) -> list[list[int]]:
    """The samples of each step, over all ranks."""
    found: list[list[int]] = [[] for _ in range(steps)]
    for loader in loaders:
        for step, micro_batches in zip(found, islice(loader, steps), strict=True):
            step += [int(number) for each in micro_batches for number in each]
    return found


def flat(steps: Iterable[list[int]]) -> list[int]:
    return [number for step in steps for number in step]


def test_the_samples_of_a_step_do_not_depend_on_the_ranks() -> None:
    assert taken(world(1), 20) == taken(world(3), 20) == taken(world(5), 20)


def test_each_sample_of_an_epoch_is_used_once() -> None:
    """Also where a step takes samples of two epochs."""
    found = flat(taken(world(4), 26))
    assert sorted(found[:SIZE]) == sorted(found[SIZE : 2 * SIZE]) == list(range(SIZE))
    assert found[:SIZE] != found[SIZE : 2 * SIZE]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_read_ahead_is_not_taken(workers: int) -> None:
    """A state saved after five steps continues with the sixth, on another number of ranks."""
    expected = taken(world(1), 12)
    loaders = world(3, num_workers=workers)
    assert taken(loaders, 5) == expected[:5]
    states = [each.state_dict() for each in loaders]
    assert states[0] == states[1] == states[2]
    assert taken(world(2, states[0], num_workers=workers), 7) == expected[5:]


def test_micro_batches() -> None:
    """A list for each step; without micro-batches it has one entry."""
    [step] = islice(ElasticLoader(Numbers(), part(0, 2)), 1)
    assert [len(each) for each in step] == [2, 2, 2]
    [step] = islice(ElasticLoader(Numbers(), part(0, 2, micro=0)), 1)
    assert [len(each) for each in step] == [6]


def test_skipped_batches_are_left_out_later_too() -> None:
    """After a rollback two batches are skipped; a training that resumes from before them leaves them out again."""
    expected = taken(world(1), 12)
    [loader] = world(1)
    taken([loader], 3)
    before = loader.state_dict()
    loader.skip_batches(2)
    assert taken([loader], 4) == expected[5:9]
    assert loader.stream.skipped == [(36, 60)]
    [again] = world(1, {**before, "skipped": [[36, 60]]})
    assert taken([again], 4) == expected[5:9]


def test_samples_are_skipped_while_it_is_read() -> None:
    """Places of the order, in any order of the calls, also before and at the position."""
    whole = flat(taken(world(1), 20))
    [loader] = world(1, num_workers=2)
    steps = iter(loader)
    found = [int(n) for each in next(steps) for n in each]
    loader.skip(30, 40)
    loader.skip(5, 20)
    for _ in range(3):
        found += [int(n) for each in next(steps) for n in each]
    assert found == whole[:12] + whole[20:30] + whole[40:66]
    assert loader.stream.skipped == [(5, 20), (30, 40)]


def test_a_state_of_another_data_set_is_refused() -> None:
    state = world(1)[0].state_dict()
    with pytest.raises(ValueError, match=r"size 103, now 50; the places of its samples are others"):
        ElasticLoader(Numbers(50), part(0, 1), seed=5).load_state_dict(state)
    with pytest.raises(ValueError, match="seed 5, now 6"):
        ElasticLoader(Numbers(), part(0, 1), seed=6).load_state_dict(state)


def test_reading_draws_no_random_number_of_the_process() -> None:
    """A restarted training makes a loader anew, and must not have other random numbers for it."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    taken(world(2), 3)
    assert torch.equal(torch.get_rng_state(), before)


class Noise(Numbers):
    """Samples that are random numbers of all generators."""

    def __getitem__(self, number: int) -> int:
        return int(torch.randint(1 << 20, ())) + random.randrange(1 << 20) + int(numpy.random.randint(1 << 20))


class NoisyBatches(Noise):
    """Makes whole batches at once."""

    def __getitems__(self, numbers: list[int]) -> list[int]:
        return [self[number] for number in numbers]


def noise(dataset: Numbers, steps: int, position: int = 0, rank: int = 0, ranks: int = 1, **options: Any) -> list[int]:
    """What a rank makes of a data set from a position on."""
    loader = ElasticLoader(dataset, part(rank, ranks), seed=5, **options)
    loader.load_state_dict({**loader.state_dict(), "position": position})
    return flat(taken([loader], steps))


@pytest.mark.parametrize("dataset", [Noise(), NoisyBatches()], ids=["samples", "batches"])
def test_random_numbers_of_a_sample_follow_from_its_place(dataset: Numbers) -> None:
    """In the loader's processes, after a restart and with other processes, but not those of another epoch."""
    whole = noise(dataset, 11, num_workers=1)
    assert noise(dataset, 9, 24, num_workers=2) == whole[24:]
    assert len({*whole}) == len(whole)


def test_random_numbers_of_a_sample_do_not_depend_on_the_ranks() -> None:
    whole = noise(Noise(), 3, num_workers=1)
    assert sorted(flat(noise(Noise(), 3, rank=rank, ranks=3, num_workers=1) for rank in range(3))) == sorted(whole)


@pytest.mark.parametrize("dataset", [Noise(), NoisyBatches()], ids=["samples", "batches"])
def test_it_is_sent_to_processes_that_are_spawned(dataset: Numbers) -> None:
    sent = pickle.loads(pickle.dumps(SeededDataset(dataset, 5)))
    assert hasattr(sent, "__getitems__") == hasattr(dataset, "__getitems__")
    assert sent.size == SIZE


def test_a_process_finds_the_data_set() -> None:
    """With its own attributes."""
    sizes = multiprocessing.get_context("fork").SimpleQueue()

    def begun(_: int) -> None:
        sizes.put(torch.utils.data.get_worker_info().dataset.size)

    taken(world(1, num_workers=1, worker_init_fn=begun), 1)
    assert sizes.get() == SIZE


def test_a_rank_takes_another_part_from_the_next_step_on() -> None:
    """What was read ahead for the part before is dropped; no sample is lost. An equal part changes nothing."""
    undisturbed = taken(world(1), 3)
    loaders = world(2)
    for loader in loaders:
        loader.take_declaration()
        loader.set_batch(loader._batch)
        assert loader.take_declaration() is None
    reading = [iter(loader) for loader in loaders]
    assert sorted(int(n) for each in reading for part_ in next(each) for n in part_) == sorted(undisturbed[0])
    loaders[0].set_batch(part(0, 1))
    assert loaders[0].take_declaration() is not None
    assert [[int(n) for each in next(reading[0]) for n in each] for _ in range(2)] == undisturbed[1:]


def test_steps_and_epoch() -> None:
    loader = ElasticLoader(Numbers(), part(0, 1))
    assert (loader.steps(1), loader.steps(2)) == (9, 18)
    taken([loader], 9)
    assert loader.epoch == 1


@pytest.mark.parametrize("name", ["batch_size", "sampler", "batch_sampler", "drop_last"])
def test_options_that_would_choose_samples_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"found {name}"):
        ElasticLoader(Numbers(), part(0, 1), **{name: 1})


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(ValueError, match="found 0"):
        ElasticLoader(Numbers(0), part(0, 1))


def test_the_job_skips_steps_of_it_without_reading_them() -> None:
    """After a rollback, ``TrainingJob.steps`` leaves batches out; nothing is read for that."""
    expected = taken(world(1), 8)
    [loader] = world(1)
    job = join()
    job.register(data=loader)
    assert [int(number) for each in job.next_batch() for number in each] == expected[0]
    job._skip(1, 5)
    assert loader.stream.skipped == [(12, 72)]
    assert [int(number) for each in job.next_batch() for number in each] == expected[6]
