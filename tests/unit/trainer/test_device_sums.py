"""Sums over GPUs, without one: how long a member waits for them. With one: test_cuda_jobs.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from espalier_trainer.elastic import nccl
from espalier_trainer.elastic.broken import GroupBrokenError


class Work:
    """A sum that is done after some looks."""

    def __init__(self, looks: int, error: str = "") -> None:
        self.looks, self.error, self.waited = looks, error, False

    def is_completed(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def wait(self) -> None:
        if self.error:
            raise RuntimeError(self.error)
        self.waited = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that only sleeping advances."""
    found = SimpleNamespace(now=0.0)

    def sleep(seconds: float) -> None:
        found.now += seconds

    monkeypatch.setattr(nccl, "time", SimpleNamespace(monotonic=lambda: found.now, sleep=sleep))
    return found


def test_a_sum_is_waited_for_and_what_follows_sees_it(clock: Any) -> None:
    finished: list[bool] = []
    work = Work(50)
    nccl._Sum(work, 20.0, lambda: finished.append(True)).wait()
    assert work.waited
    assert finished == [True]
    assert 0 < clock.now < 0.05  # it looks again within a millisecond


def test_a_sum_that_a_dead_member_holds_up_is_given_up(clock: Any) -> None:
    finished: list[bool] = []
    work = Work(10**9)
    with pytest.raises(GroupBrokenError, match="not done after 20 s: a member is gone"):
        nccl._Sum(work, 20.0, lambda: finished.append(True)).wait()
    assert clock.now == pytest.approx(20, abs=0.01)
    assert not work.waited
    assert not finished


def test_an_error_of_the_network_breaks_the_group(clock: Any) -> None:
    finished: list[bool] = []
    with pytest.raises(GroupBrokenError, match="remote process exited"):
        nccl._Sum(Work(1, "NCCL error: remote process exited\nLast error:"), 20.0, lambda: finished.append(True)).wait()
    assert not finished
