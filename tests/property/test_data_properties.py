"""Whatever happens to a training, each sample of its order is used once or was skipped."""

import hypothesis.strategies as st
from hypothesis import given

from ftcore.data import SampleOrder, SampleStream

HAPPENS = st.one_of(
    st.tuples(st.just("step"), st.integers(1, 40)),
    st.tuples(st.just("skip"), st.integers(0, 300), st.integers(0, 60)),
    st.tuples(st.just("skip_next"), st.integers(1, 50)),
    st.tuples(st.just("save")),
    st.tuples(st.just("restart")),
)


@given(size=st.integers(1, 90), seed=st.integers(0, 5), happens=st.lists(HAPPENS, max_size=30))
def test_each_place_is_used_once_or_skipped(size: int, seed: int, happens: list[tuple[object, ...]]) -> None:
    """Steps of any size, skips anywhere, and returns to a saved state: along the living lineage there is no gap, and
    nothing twice."""
    stream = SampleStream(SampleOrder(size, seed))
    used: list[int] = []
    saved, kept = stream.state_dict(), 0
    for what, *args in happens:
        numbers = [int(str(each)) for each in args]
        if what == "step":
            ranges = stream.ranges(numbers[0])
            assert sum(after - first for first, after in ranges) == numbers[0]
            used += [place for first, after in ranges for place in range(first, after)]
            stream.position = ranges[-1][1]
        elif what == "skip":
            stream.skip(numbers[0], numbers[0] + numbers[1])
        elif what == "skip_next":
            for first, after in stream.ranges(numbers[0]):
                stream.skip(first, after)
        elif what == "save":
            saved, kept = stream.state_dict(), len(used)
        else:  # the skips that were made since are known to the job, and made again
            skipped, stream = stream.skipped, SampleStream(SampleOrder(size, seed))
            stream.load_state_dict(saved)
            for first, after in skipped:
                stream.skip(first, after)
            del used[kept:]
    assert used == sorted(set(used))
    left_out = {place for first, after in stream.skipped for place in range(first, after)}
    assert set(range(stream.position)) - set(used) <= left_out
    samples = stream.samples((place, place + 1) for place in used)
    assert samples.tolist() == [int(stream.samples([(place, place + 1)])) for place in used]
