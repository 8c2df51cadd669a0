"""Small tensors are summed by messages from each member to each, larger ones in a ring; the result is the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from espalier_trainer.elastic.group import MESH_BYTES, Group, GroupBrokenError, MeshSum
from groups import together


def numbers(rank: int, count: int, kind: torch.dtype) -> Tensor:
    """Numbers whose sum depends on the order in which they are added."""
    return torch.randn(count, generator=torch.Generator().manual_seed(rank), dtype=torch.float64).mul(10**rank).to(kind)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_all_members_get_the_same_bits(world: int, kind: torch.dtype) -> None:
    def act(group: Group) -> Tensor:
        tensor = numbers(group.rank, 1001, kind)
        group.all_reduce(tensor)
        return tensor

    found = together(world, act)
    expected = sum(numbers(rank, 1001, torch.float64) for rank in range(world))
    for each in found:
        assert torch.equal(each, found[0])
        torch.testing.assert_close(each.double(), expected, rtol=1e-5, atol=1e-2)


def test_sums_in_flight_do_not_mix_with_each_other_or_with_states() -> None:
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


def test_a_member_that_leaves_breaks_the_sum_of_all_others() -> None:
    def act(group: Group) -> str:
        if group.rank == 2:
            group.close()
            return "left"
        try:
            group.all_reduce(torch.ones(3))
        except GroupBrokenError:
            group.close()
            return "broken"
        return "summed"

    assert together(3, act) == ["broken", "broken", "left"]
