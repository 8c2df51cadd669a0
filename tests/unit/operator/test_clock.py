"""The operator's time of day: it follows the machine's clock, but not its jumps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_operator.clock import SLEW, WallClock

T0 = 1_800_000_000.0


class Machine:
    """A machine whose clock can be set."""

    def __init__(self) -> None:
        self.uptime = 100.0
        self.set_by = 0.0

    def wall(self) -> float:
        return T0 + self.uptime - 100 + self.set_by

    def clock(self) -> WallClock:
        return WallClock(self.wall, lambda: self.uptime)


def test_it_is_the_machine_s() -> None:
    machine = Machine()
    clock = machine.clock()
    for _ in range(10):
        machine.uptime += 7
        machine.set_by += 0.001  # as a time server adjusts it
        assert clock.now() == pytest.approx(machine.wall(), abs=1e-6)


@pytest.mark.parametrize("hours", [1, -1, 24 * 365])
def test_an_hour_does_not_pass_at_once(hours: int, caplog: pytest.LogCaptureFixture) -> None:
    """Budgets would be used up, and notices over."""
    machine = Machine()
    clock = machine.clock()
    machine.set_by = 3600.0 * hours
    before = clock.now()
    for _ in range(60):
        machine.uptime += 1
        clock.now()
    assert clock.now() - before == pytest.approx(60, abs=60 * SLEW + 1e-6)
    assert len(caplog.records) == 1
    assert f"was set by {3600 * hours:+d} s" in caplog.text
    if abs(hours) == 1:
        machine.uptime += 3600 / SLEW
        assert clock.now() == pytest.approx(machine.wall(), abs=1e-3), "in the end it is right"


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(-1e6, 1e6)), max_size=30))
def test_it_never_goes_back_whatever_happens_to_the_machine_s(steps: list[tuple[float, float]]) -> None:
    machine = Machine()
    clock = machine.clock()
    shown, begun = clock.now(), machine.uptime
    first = shown
    for passed, set_by in steps:
        machine.uptime += passed
        machine.set_by += set_by
        now = clock.now()
        assert now >= shown
        shown = now
    elapsed = machine.uptime - begun
    assert shown - first == pytest.approx(elapsed, abs=elapsed * SLEW + 1e-3)
