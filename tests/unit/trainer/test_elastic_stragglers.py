"""Who is a straggler, and for how long it is left out: properties."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from espalier_trainer.elastic.membership import MAX_DROPS, PAUSE_SECONDS, STEPS, MemberSpeeds, observed, straggler

SECONDS = st.sampled_from([0.0, 0.01, 0.02, 0.1, 0.2, 1.0])
WORKERS = ["leader", "a", "b", "c"]


def test_a_straggler_is_one_that_is_much_slower_than_the_middle_of_the_others() -> None:
    assert straggler([0.1, 0.1, 1.1], 5) == 2
    assert straggler([0.1, 0.1, 0.4], 5) is None
    assert straggler([1.0], 5) is None
    assert straggler([0.0, 0.0], 5) is None


@settings(deadline=None)
@given(st.lists(st.lists(SECONDS, min_size=4, max_size=4), max_size=120))
def test_only_who_is_slow_for_many_steps_in_a_row_is_found_and_only_once(steps: list[list[float]]) -> None:
    speeds = MemberSpeeds()
    slowest = [straggler(seconds, 5.0) for seconds in steps]
    for number, seconds in enumerate(steps):
        speeds, found = observed(speeds, WORKERS, seconds)
        row = slowest[max(0, number - STEPS + 1) : number + 1]
        begins = number < STEPS or slowest[number - STEPS] != slowest[number]
        expected = len(row) == STEPS and len(set(row)) == 1 and row[0] is not None and begins
        assert (found is not None) == expected
        assert found is None or found == WORKERS[slowest[number] or 0]


@settings(deadline=None)
@given(st.lists(st.sampled_from(WORKERS[1:]), max_size=40), st.data())
def test_a_straggler_comes_again_after_longer_and_longer_and_not_for_ever(
    found: list[str], data: st.DataObject
) -> None:
    """However members come and go, one process costs the others `MAX_DROPS` times `STEPS` slow steps at most."""
    speeds, now, dropped = MemberSpeeds(), 0.0, dict.fromkeys(WORKERS, 0)
    for worker in found:
        if worker in speeds.out(now):
            continue  # who is left out cannot be found slow
        pauses = PAUSE_SECONDS * 2 ** dropped[worker]
        speeds = speeds.dropping(worker, now).changed()
        dropped[worker] += 1
        assert speeds.drops(worker) == dropped[worker] <= MAX_DROPS
        assert worker in speeds.out(now)
        assert (worker in speeds.out(now + pauses)) == (dropped[worker] == MAX_DROPS)
        now += data.draw(st.sampled_from([0.0, 1.0, PAUSE_SECONDS, 4 * PAUSE_SECONDS]))
    assert "leader" not in speeds.out(now)
