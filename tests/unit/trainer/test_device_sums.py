"""Sums over GPUs, without one: how long a member waits, and what NCCL refuses. With one: test_cuda_jobs.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from espalier_trainer.elastic import group
from espalier_trainer.elastic.group import Group, GroupBrokenError
from groups import together


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

    monkeypatch.setattr(group, "time", SimpleNamespace(monotonic=lambda: found.now, sleep=sleep))
    return found


def test_a_sum_is_waited_for_and_what_follows_sees_it(clock: Any) -> None:
    finished: list[bool] = []
    work = Work(50)
    group._DeviceSum(work, 20.0, lambda: finished.append(True)).wait()
    assert work.waited
    assert finished == [True]
    assert 0 < clock.now < 0.05  # it looks again within a millisecond


def test_a_sum_that_a_dead_member_holds_up_is_given_up(clock: Any) -> None:
    finished: list[bool] = []
    work = Work(10**9)
    with pytest.raises(GroupBrokenError, match="not done after 20 s: a member is gone"):
        group._DeviceSum(work, 20.0, lambda: finished.append(True)).wait()
    assert clock.now == pytest.approx(20, abs=0.01)
    assert not work.waited
    assert not finished


def test_an_error_of_the_network_breaks_the_group(clock: Any) -> None:
    finished: list[bool] = []
    with pytest.raises(GroupBrokenError, match="remote process exited"):
        group._DeviceSum(
            Work(1, "NCCL error: remote process exited\nLast error:"), 20.0, lambda: finished.append(True)
        ).wait()
    assert not finished


class Sums:
    """NCCL, which connects only the member of rank 0."""

    closed = 0

    def __init__(self, store: Any, rank: int, world: int, device: Any, seconds: float) -> None:
        if rank:
            raise GroupBrokenError("Duplicate GPU detected")

    def close(self) -> None:
        Sums.closed += 1


def test_where_nccl_refuses_a_member_gloo_sums_for_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group, "DeviceSums", Sums)

    def summed(member: Group) -> float:
        tensor = torch.tensor([member.rank + 1.0])
        member.all_reduce(tensor)
        return tensor.item()

    assert together(2, summed, torch.device("cuda")) == [3.0, 3.0]
    assert Sums.closed == 1
    reasons = sorted(record.getMessage().rpartition(": ")[2] for record in caplog.records)
    assert reasons == ["Duplicate GPU detected", "another worker has the reason in its log"]
