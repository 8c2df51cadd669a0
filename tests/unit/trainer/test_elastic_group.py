"""A group of members: what they sum, also pair by pair."""

from __future__ import annotations

import copy
import gc
import time
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from espalier_core.types.job import ElasticBatch
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.data.source import EpochOrder, MapSource
from espalier_trainer.elastic import delivery
from espalier_trainer.elastic import group as groups
from espalier_trainer.elastic.batch_norm import synchronized
from espalier_trainer.elastic.group import MESH_BYTES, Group, MeshSum
from espalier_trainer.elastic.membership import ONE
from espalier_trainer.elastic.states import Code, Command, align, broadcast_state, receive_state
from espalier_trainer.elastic.step import StepPlan, joint_step, share_of
from espalier_trainer.training.network import Network
from espalier_trainer.user_loop.feed import Part
from espalier_trainer.user_loop.loop import UserStep
from espalier_trainer.user_loop.state import UserState
from groups import together


class Flat(nn.Module):
    """Its view has no meaning for a batch of no examples."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm2d(2), nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.norm(inputs).view(len(inputs), -1))


def network_of(module: nn.Module) -> Network:
    return Network(module, torch.optim.SGD(module.parameters(), lr=0.5), None)


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("policy", ElasticBatch)
def test_a_member_without_examples_takes_the_others_step(policy, sync):
    """Two batches of two examples, of which the last is taken: there is too little of it for two members."""
    chance = torch.Generator().manual_seed(3)
    examples = [(torch.randn(2, 2, 2, generator=chance), label % 3) for label in range(4)]
    order, source = EpochOrder(torch.arange(4), 2, 0, 0), MapSource(examples)
    start = Flat()
    alone = copy.deepcopy(start)
    inputs, labels = order.batch(source, 1)
    expected = nn.functional.cross_entropy(alone(inputs), labels)
    expected.backward()
    torch.optim.SGD(alone.parameters(), lr=0.5).step()

    def act(group: Group) -> tuple[float, dict[str, Tensor]]:
        network = network_of(copy.deepcopy(start).train())
        _, *own = share_of(policy, group, order, source, 1)
        joint = joint_step(network, StepPlan(group), *own, sync_batch_norm=sync)
        return joint.loss, network.module.state_dict()

    for rank, (loss, state) in enumerate(together(2, act)):
        assert loss == pytest.approx(expected.item())
        for name, tensor in alone.state_dict().items():
            if sync or rank == 0 or not name.startswith(("norm.running", "norm.num")):
                torch.testing.assert_close(state[name], tensor)


@pytest.mark.parametrize("pieces", [((2,), (3,)), ((2,), (0,), (4,)), ((2, 3), (3, 0))], ids=str)
def test_a_loop_of_a_users_own_is_exact_where_batch_norms_see_uneven_parts(pieces):
    """The gradient of a worker's loss reaches the layers of the others through the batch norm."""
    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))
    sizes = [rows for batch in zip(*pieces, strict=True) for rows in batch]
    inputs, labels = torch.randn(sum(sizes), 2), torch.arange(sum(sizes)) % 3
    cut = iter(torch.arange(sum(sizes)).split(sizes))
    batches = [[next(cut) for _ in pieces] for _ in pieces[0]]
    """The examples of each worker in each batch."""
    alone, expected = copy.deepcopy(start), 0.0
    for rows in map(torch.cat, batches):
        loss = nn.functional.cross_entropy(alone(inputs[rows]), labels[rows], reduction="sum") / sum(sizes)
        loss.backward()
        expected += loss.item()

    def act(group: Group) -> tuple[float, list[Tensor | None]]:
        model, loss = copy.deepcopy(start), 0.0
        state = UserState(model, torch.optim.SGD(model.parameters(), lr=0.1), [])
        step = UserStep(state, Part(pieces[group.rank], sum(sizes), ONE, lambda: None), group, sync_batch_norm=True)
        for batch in batches:
            step.enter_batch()
            rows = batch[group.rank] if len(batch[group.rank]) else torch.arange(2)
            loss = step.backward(nn.functional.cross_entropy(model(inputs[rows]), labels[rows]))
        return loss, [parameter.grad for parameter in model.parameters()]

    for loss, gradients in together(len(pieces), act):
        assert loss == pytest.approx(expected)
        for found, parameter in zip(gradients, alone.parameters(), strict=True):
            torch.testing.assert_close(found, parameter.grad, rtol=1e-5, atol=1e-6)


class Alone:
    """Sums over its only member."""

    def all_reduce(self, tensor: Tensor) -> None:
        pass


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_synchronized_batch_norms_count_in_32_bits(kind):
    """66,825 numbers of a channel are none of 16 bits: more than float16 has, and a few hundred off in bfloat16."""
    torch.manual_seed(0)
    layer, own = nn.BatchNorm2d(2), nn.BatchNorm2d(2)
    wide = (torch.randn(25, 2, 27, 99) + 3).to(kind)
    inputs, plain = wide.clone().requires_grad_(), wide.double().requires_grad_()
    with synchronized(layer, Alone()):
        outputs = layer(inputs)
    expected = own.double()(plain)
    assert outputs.dtype == kind
    exact = {"rtol": 1e-2, "atol": 1e-2} if kind.itemsize == 2 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(outputs.double(), expected, **exact)
    for name, tensor in own.state_dict().items():
        torch.testing.assert_close(layer.state_dict()[name].double(), tensor.double(), rtol=1e-5, atol=1e-5)
    weights = torch.randn_like(plain)
    (outputs.double() * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(inputs.grad.double(), plain.grad, **exact)


class SlowWire:
    """A process group whose member sends so slowly, one after the other."""

    def __init__(self, group: Any, rate: float) -> None:
        self._group, self._rate = group, rate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def send(self, tensors: list[Tensor], *given: Any) -> Any:
        time.sleep(tensors[0].nbytes / self._rate)
        return self._group.send(tensors, *given)

    def broadcast(self, tensors: list[Tensor], options: Any) -> Any:
        if options.rootRank == self._group.rank():
            time.sleep(tensors[0].nbytes / self._rate)
        return self._group.broadcast(tensors, options)


def received(group: Group) -> Checkpoint:
    assert Command.receive(group).code is Code.STATE
    return receive_state(group, None)


def test_a_state_may_take_longer_than_any_answer(monkeypatch, make_checkpoint):
    """A member that lacks nothing, and two newcomers: each transfer takes longer than is waited for an answer."""
    monkeypatch.setattr(groups, "COLLECTIVE_SECONDS", 2.0)
    for module in (groups, delivery):
        monkeypatch.setattr(module, "PIECE_BYTES", 1 << 14)
    checkpoint = make_checkpoint(5)
    checkpoint.model["large"] = torch.arange(3 << 13, dtype=torch.float32)  # 96 KiB, in six pieces

    def act(group: Group) -> list[Checkpoint]:
        group._group = SlowWire(group._group, 1 << 15)
        got: list[Checkpoint] = []
        held = network_of(Flat())

        def take(state: Checkpoint) -> Network:
            got.append(state)
            return held

        assert align(group, 0, held if group.rank < 2 else None, lambda: checkpoint, take, lambda network: 7)
        if group.rank == 0:
            broadcast_state(group, checkpoint)
        else:
            got.append(received(group))
        return got

    found = together(4, act)
    assert [len(each) for each in found] == [0, 1, 2, 2]
    for came in (state for each in found for state in each):
        assert came.state == checkpoint.state
        for name, tensor in checkpoint.model.items():
            assert torch.equal(came.model[name], tensor)


def callers_hold_arguments() -> bool:
    """Return whether what is given to a function lives until it returns, as where torch._dynamo evaluates frames."""

    def given(one: nn.Module) -> bool:
        seen = weakref.ref(one)
        del one
        return seen() is not None

    return given(nn.Module())


def test_what_a_member_gives_up_is_not_held_while_it_takes_the_new(make_checkpoint):
    def act(group: Group) -> list[str]:
        held = [network_of(Flat())]
        old, hashes = weakref.ref(held[0].module), [group.rank, 0]  # they differ at first
        found: list[str] = []

        def take(state: Checkpoint) -> Network:
            held.clear()
            gc.collect()
            kept = old()
            by = [] if kept is None else [f"{type(one)} {str(one)[:200]}" for one in gc.get_referrers(kept)]
            found.append("gone" if kept is None else f"held by {by}")
            return network_of(Flat())

        align(group, 0, held[0], lambda: make_checkpoint(5), take, lambda network: hashes.pop(0))
        return found

    assert not callers_hold_arguments(), "an earlier test of this process has left torch._dynamo on"
    assert together(2, act) == [[], ["gone"]]


def numbers(rank: int, count: int, kind: torch.dtype) -> Tensor:
    """Numbers whose sum depends on the order in which they are added."""
    return torch.randn(count, generator=torch.Generator().manual_seed(rank), dtype=torch.float64).mul(10**rank).to(kind)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_all_members_get_the_same_bits(world, kind):
    def act(group: Group) -> Tensor:
        tensor = numbers(group.rank, 1001, kind)
        group.all_reduce(tensor)
        return tensor

    found = together(world, act)
    expected = sum(numbers(rank, 1001, torch.float64) for rank in range(world))
    for each in found:
        assert torch.equal(each, found[0])
        torch.testing.assert_close(each.double(), expected, rtol=1e-5, atol=1e-2)


def test_sums_in_flight_do_not_mix_with_each_other_or_with_states():
    """Small ones and one that goes through the ring, begun in one order and waited for in another."""
    large = MESH_BYTES // 4 + 1

    def act(group: Group) -> list[float]:
        tensors = [torch.full((size,), float(10**place)) for place, size in enumerate((3, large, 3, 7))]
        sums = [group.sending(tensor) for tensor in tensors]
        assert [isinstance(each, MeshSum) for each in sums] == [True, False, True, True]
        state = torch.full((3,), float(group.rank))
        moved = group.sending_to(state, 1 - group.rank), group.receiving_from(other := torch.empty(3), 1 - group.rank)
        for each in reversed(sums):
            each.wait()
        for message in moved:
            message.wait()
        assert other.tolist() == [1.0 - group.rank] * 3
        return [float(tensor.max()) for tensor in tensors] + [float(tensor.min()) for tensor in tensors]

    for found in together(2, act):
        assert found == [2.0, 20.0, 200.0, 2000.0] * 2
