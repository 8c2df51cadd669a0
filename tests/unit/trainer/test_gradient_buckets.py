"""Gradients of workers: summed in buckets, on devices too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from espalier_trainer.elastic import buckets, group
from espalier_trainer.elastic.buckets import cut
from espalier_trainer.elastic.group import Group, GroupBrokenError
from espalier_trainer.elastic.membership import Portion
from espalier_trainer.elastic.step import StepPlan, StepResult, joint_step
from espalier_trainer.training.network import Network
from groups import together

ROWS = 12


def stepped(
    network: Network, group: Group, *examples: Any, passes: int = 1, measured: bool = False, **how: Any
) -> StepResult:
    """Take a step of this member's part of `examples`."""
    plan = StepPlan(group, portion=Portion(passes=passes), measured=measured)
    return joint_step(network, plan, *examples, **how)


@given(st.lists(st.integers(0, 300)), st.integers(0, 200), st.integers(0, 500))
def test_buckets_hold_every_place_once_from_the_last_to_the_first(sizes, first, others):
    found = cut(sizes, first, others)
    assert list(chain.from_iterable(found)) == list(reversed(range(len(sizes))))
    for number, bucket in enumerate(found):
        limit = others if number else first
        if number < len(found) - 1:
            assert sum(sizes[place] for place in bucket) >= limit
        assert sum(sizes[place] for place in bucket[:-1]) < limit or len(bucket) <= 1


class Awkward(nn.Module):
    """Shares a weight, uses a layer twice, never uses another, has a frozen one, half precision and a batch norm."""

    def __init__(self, *, reentrant: bool = False) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.twice, self.tied = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.tied.weight = self.twice.weight
        self.never, self.frozen = nn.Linear(8, 8), nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.norm, self.last = nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.twice(torch.relu(self.first(inputs)))
        if self.reentrant:  # two backward passes within the backward pass, each with a part of the same gradient
            hidden = checkpoint(self.twice, checkpoint(self.twice, hidden, use_reentrant=True), use_reentrant=True)
        hidden = self.norm(self.tied(self.twice(hidden)) + self.frozen(hidden))
        return self.last(hidden * self.scale)


@pytest.fixture
def small(monkeypatch):
    """Let the model have several buckets."""
    monkeypatch.setattr(buckets, "FIRST_BYTES", 40)
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 300)


def examples(seed: int = 0) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, 6, generator=chance), torch.randint(0, 3, (ROWS,), generator=chance)


def steps_of(
    start: nn.Module, count: int = 3, hook: Callable[[Group, nn.Module, int], None] | None = None, **options: Any
) -> Callable[[Group], tuple[list[StepResult], dict[str, Tensor], int]]:
    """Return what a member does: some steps, each on other examples, of which it takes its part."""

    def act(group: Group) -> tuple[list[StepResult], dict[str, Tensor], int]:
        module = copy.deepcopy(start).train()
        network = Network(module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), None)
        joints = []
        for step in range(count):
            inputs, labels = examples(step)
            mine = slice(group.rank, None, group.world)
            if hook is not None:
                hook(group, module, step)
            joints.append(stepped(network, group, inputs[mine], labels[mine], ROWS, **options))
        return joints, module.state_dict(), len(group.buckets.flat)

    return act


@pytest.mark.parametrize("options", [{}, {"passes": 2}, {"measured": True}, {"sync_batch_norm": True}], ids=str)
@pytest.mark.parametrize("world", [2, 3])
def test_buckets_change_no_gradient(world, options, monkeypatch):
    """Two members get the bits that one piece gives; of three, the order of a sum depends on its place in a piece."""
    torch.manual_seed(1)
    start = Awkward()
    whole = together(world, steps_of(start, **options))
    monkeypatch.setattr(buckets, "FIRST_BYTES", 40)
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 300)
    cut_up = together(world, steps_of(start, **options))
    assert [each[2] for each in whole] == [1] * world
    assert all(each[2] > 3 for each in cut_up)
    for (joints, expected, _), (found, state, _) in zip(whole, cut_up, strict=True):
        assert [each.loss for each in found] == pytest.approx([each.loss for each in joints], rel=1e-6)
        if options.get("measured"):
            ours, theirs = ([astuple(each.norms) for each in every if each.norms] for every in (found, joints))
            assert list(chain.from_iterable(ours)) == pytest.approx(list(chain.from_iterable(theirs)), rel=1e-5)
        for name, tensor in expected.items():
            if world == 2:
                assert torch.equal(state[name], tensor), name
            else:
                torch.testing.assert_close(state[name], tensor, rtol=1e-5, atol=1e-6)
    for name, _ in start.named_parameters():
        assert len({tuple(each[1][name].flatten().tolist()) for each in cut_up}) == 1, "all hold the same bits"


@pytest.mark.usefixtures("small")
def test_gradients_that_come_in_parts_are_whole():
    torch.manual_seed(1)
    plain, parts = Awkward(), Awkward(reentrant=True)
    parts.load_state_dict(plain.state_dict())
    alone = copy.deepcopy(parts)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    inputs, labels = examples()
    # The same examples for both, so that the batch norms see the same.
    nn.functional.cross_entropy(alone(inputs), labels).backward()
    optimizer.step()

    def act(group: Group) -> dict[str, Tensor]:
        module = copy.deepcopy(parts)
        network = Network(module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), None)
        joint_step(network, StepPlan(group), inputs, labels, 2 * ROWS)
        return module.state_dict()

    for state in together(2, act):
        for name, tensor in alone.state_dict().items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-4, atol=1e-6)


class Spectral(nn.Module):
    """Weighs frequencies by complex numbers, which begin at an odd place of their bucket."""

    def __init__(self, kind: torch.dtype = torch.complex64) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, dtype=kind))
        self.last = nn.Linear(6, 3, dtype=kind.to_real())

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs.to(self.last.weight.dtype)
        return self.last(torch.fft.irfft(torch.fft.rfft(inputs) * self.filter, n=6))


FINE = partial(Spectral, torch.complex128)
"""Has 64 bits, which a bucket of 32 would round."""


class Words(nn.Module):
    """Has sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.words(inputs.abs().mul(4).long().clamp_max(8)).mean(1))


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("cut_up", [False, True])
@pytest.mark.parametrize("kind", [Spectral, FINE, Words], ids=["complex", "64 bits", "sparse"])
def test_members_sum_gradients_of_any_type(kind, cut_up, passes, monkeypatch):
    if cut_up:
        monkeypatch.setattr(buckets, "FIRST_BYTES", 4)
        monkeypatch.setattr(buckets, "BUCKET_BYTES", 4)
    # The ready trainer's own losses are of 32 bits.
    summed = partial(nn.functional.cross_entropy, reduction="sum")
    torch.manual_seed(1)
    start = kind()
    alone = copy.deepcopy(start)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(3):
        inputs, labels = examples(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(alone(inputs), labels).backward()
        optimizer.step()

    def act(group: Group) -> dict[str, Tensor]:
        module = copy.deepcopy(start)
        network = Network(module, torch.optim.SGD(module.parameters(), lr=0.1), None)
        for step in range(3):
            inputs, labels = examples(step)
            mine = slice(group.rank, None, group.world)
            options: dict[str, Any] = {"passes": passes, "measured": step == 1, "criterion": lambda _: summed}
            stepped(network, group, inputs[mine], labels[mine], ROWS, **options)
        return module.state_dict()

    first, second = together(2, act)
    for name, tensor in alone.state_dict().items():
        exact = {"rtol": 1e-12, "atol": 1e-12} if kind is FINE else {"rtol": 1e-4, "atol": 1e-6}
        torch.testing.assert_close(first[name], tensor, **exact)
        assert torch.equal(first[name], second[name])


@pytest.mark.usefixtures("small")
def test_no_member_takes_a_step_in_which_one_is_out_of_memory_in_its_backward_pass():
    torch.manual_seed(1)
    start = Awkward()

    def short(group: Group, module: nn.Module, step: int) -> None:
        if group.rank == 1 and step == 1:

            def fail(_: Tensor) -> None:
                handle.remove()
                raise torch.OutOfMemoryError("none left")

            weight = module.get_parameter("first.weight")
            handle = weight.register_hook(fail)

    done = together(2, steps_of(start, 3, short))
    expected = together(2, steps_of(start, 1))
    for (joints, state, _), (_, first, _) in zip(done, expected, strict=True):
        assert [each.out_of_memory for each in joints] == [False, True, False]
        assert not torch.equal(state["last.weight"], first["last.weight"])
    assert torch.equal(done[0][1]["last.weight"], done[1][1]["last.weight"])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("world", [2, 3])
def test_a_member_that_is_gone_in_its_backward_pass_holds_nobody_up(world):
    """The others leave the step, their weights as they were, and take it again without it."""

    class GoneError(Exception):
        pass

    torch.manual_seed(1)
    start = Awkward()
    before = {name: each.clone() for name, each in start.state_dict().items()}

    def dies(group: Group, module: nn.Module, step: int) -> None:
        if group.rank == world - 1:

            def fail(_: Tensor) -> None:
                raise GoneError

            module.get_parameter("first.weight").register_hook(fail)

    def act(group: Group) -> str:
        module = copy.deepcopy(start)
        held = [module]
        try:
            steps_of(module, 1, lambda group, mine, step: (held.append(mine), dies(group, mine, step))[0])(group)
        except GoneError:
            return "gone"
        except GroupBrokenError:
            names = dict(held[-1].named_parameters())
            assert all(torch.equal(each, before[name]) for name, each in names.items())
            assert all(each._post_accumulate_grad_hooks in (None, {}) for each in names.values())
            return "broken"
        return "stepped"

    assert together(world, act) == ["broken"] * (world - 1) + ["gone"]


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
def clock(monkeypatch):
    """A clock that only sleeping advances."""
    found = SimpleNamespace(now=0.0)

    def sleep(seconds: float) -> None:
        found.now += seconds

    monkeypatch.setattr(group, "time", SimpleNamespace(monotonic=lambda: found.now, sleep=sleep))
    return found


def test_a_sum_is_waited_for_and_what_follows_sees_it(clock):
    finished: list[bool] = []
    work = Work(50)
    group._DeviceSum(work, 20.0, lambda: finished.append(True)).wait()
    assert work.waited
    assert finished == [True]
    assert 0 < clock.now < 0.05  # it looks again within a millisecond


def test_a_sum_that_a_dead_member_holds_up_is_given_up(clock):
    finished: list[bool] = []
    work = Work(10**9)
    with pytest.raises(GroupBrokenError, match="not done after 20 s: a member is gone"):
        group._DeviceSum(work, 20.0, lambda: finished.append(True)).wait()
    assert clock.now == pytest.approx(20, abs=0.01)
    assert not work.waited
    assert not finished


def test_an_error_of_the_network_breaks_the_group(clock):
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


def test_where_nccl_refuses_a_member_gloo_sums_for_all(monkeypatch, caplog):
    monkeypatch.setattr(group, "DeviceSums", Sums)

    def summed(member: Group) -> float:
        tensor = torch.tensor([member.rank + 1.0])
        member.all_reduce(tensor)
        return tensor.item()

    assert together(2, summed, torch.device("cuda")) == [3.0, 3.0]
    assert Sums.closed == 1
    reasons = sorted(record.getMessage().rpartition(": ")[2] for record in caplog.records)
    assert reasons == ["Duplicate GPU detected", "another worker has the reason in its log"]
