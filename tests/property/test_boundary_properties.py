"""Properties of step boundaries on a page: texts of errors, and what any sequence of orders lets a worker do."""

from hypothesis import given
from hypothesis import strategies as st

from ftcore.shm.boundary import ERROR_BYTES_MAX, BoundaryOrders, BoundaryWords
from ftcore.shm.page import PAGE_BYTES
from ftcore.worker import _boundary


@given(st.lists(st.text(st.characters(), min_size=1), min_size=1, max_size=3))
def test_an_error_is_read_as_far_as_it_fits(texts: list[str]) -> None:
    """A text that replaces a longer one has nothing of it; no character is cut in two."""
    page = memoryview(bytearray(PAGE_BYTES))
    words, orders = BoundaryWords(page), BoundaryOrders(page)
    for number, text in enumerate(texts, start=1):
        words.saved(number, text)
        whole, found = text.encode(errors="replace").decode(), orders.read().error
        assert whole.startswith(found)
        assert found == whole or len(found.encode()) > ERROR_BYTES_MAX - 4
    assert bytes(page[8 * 494 + ERROR_BYTES_MAX :]) == bytes(PAGE_BYTES - 8 * 494 - ERROR_BYTES_MAX)


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["stop", "save", "hook", "script"])), max_size=30))
def test_a_worker_saves_where_it_is_ordered_and_passes_no_stop(orders: list[tuple[int, str]]) -> None:
    """Whatever is ordered between its boundaries, their numbers go up by one, and each save belongs to its order."""
    page = memoryview(bytearray(PAGE_BYTES))
    agent, saves, waited = BoundaryOrders(page), list[int](), list[int]()
    save_at = 0

    def waiting(_: int) -> None:
        waited.append(agent.read().reached)
        agent.stop_at(0)

    worker = _boundary.StepBoundary(BoundaryWords(page), waiting)
    worker.on_save(lambda step: saves.append(step))
    reached, explicit, stop_at = 0, False, 0
    for number, what in orders:
        if what == "stop":
            agent.stop_at(number)
            stop_at = number
        elif what == "save":
            agent.save_at(number)
            save_at = number
        elif what == "script" or not explicit:
            first = what == "script" and not explicit and reached > 0
            explicit |= what == "script"
            reached += 0 if first else 1
            saves.clear()
            waited.clear()
            worker.reached(reached) if what == "script" else worker.stepped()
            assert agent.read().reached == reached
            assert waited == ([reached] if 0 < stop_at <= reached else [])
            assert saves in ([reached], []) and not (saves and save_at != reached)
            stop_at = 0 if waited else stop_at
            assert not agent.read().waits
