"""What is wrapped or split is refused by name; hooks, complex numbers and inference mode hinder nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from residual_nets import Unit
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from espalier_trainer.growth.growth_report import survey
from espalier_trainer.net2net import (
    GrowthError,
    add_block,
    block_points,
    deepen,
    grow_optimizer,
    growth_points,
    refused_deepenings,
    refused_widenings,
    widen,
    widening_groups,
)
from espalier_trainer.net2net.refusals import why_split, why_wrapped


@pytest.fixture
def alone() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))


def _stand_in(name: str, base: type = nn.Module) -> Any:
    return type(name, (base,), {})()


@pytest.mark.usefixtures("alone")
def test_what_torch_splits_is_refused_by_name() -> None:
    mesh = init_device_mesh("cpu", (1,))
    sharded = _net()
    fully_shard(sharded[0], mesh=mesh)
    parallel = parallelize_module(_net(), mesh, {"0": ColwiseParallel()})
    for model, name in ((sharded, r"fully_shard \(FSDP2\) at '0'"), (parallel, r"tensor parallelism\) at '0'")):
        with pytest.raises(GrowthError, match=rf"split over several processes by .*{name}.*give the model as it was"):
            growth_points(model, torch.randn(2, 4))
    assert "DistributedDataParallel wraps the model; grow its `.module`" in str(
        why_wrapped(DistributedDataParallel(_net()))
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (FullyShardedDataParallel.__name__, "FSDP1"),
        ("DeepSpeedEngine", "DeepSpeed"),
        ("PipelineStage", "a pipeline"),
        ("Pipe", "a pipeline"),
        ("ShardedDataParallel", "fairscale"),
    ],
)
def test_what_others_split_is_refused_by_the_name_of_its_class(kind: str, name: str) -> None:
    assert name in str(why_split(_stand_in(kind)))
    assert f"{name}" in str(why_split(_stand_in("Mine", type(_stand_in(kind)))))
    assert why_split(_stand_in("Net")) is None
    partitioned = _net()
    partitioned[0].weight.ds_id = 3
    assert "DeepSpeed ZeRO at '0'" in str(why_split(partitioned))


def test_hooks_that_look_neither_keep_a_place_from_growing_nor_run_backward() -> None:
    model, example, seen = _net(), torch.randn(2, 4), list[Any]()
    model[1].register_forward_hook(lambda _m, _a, out: seen.append(out.mean()))
    model[1].register_forward_pre_hook(lambda _m, args: seen.append(args[0].std().item()))
    before = survey(_net(), example, pairs=0)
    found = survey(model, example, pairs=1)
    assert [one.id for one in (*found.points, *found.groups)] == [one.id for one in (*before.points, *before.groups)]
    backward: list[int] = []
    model[2].register_full_backward_hook(lambda *_: backward.append(1))
    model[2].register_full_backward_pre_hook(lambda *_: backward.append(1))
    survey(model, example, pairs=1)
    assert backward == []
    grown = deepen(model, "0", example)
    grown(example).sum().backward()
    assert backward, "the grown model keeps the hooks"


def test_a_hook_that_changes_the_output_of_an_activation_comes_after_what_is_grown() -> None:
    model, example = _net(), torch.randn(2, 4)
    model[1].register_forward_hook(lambda _m, _a, out: 1 + out * 2)
    assert torch.equal(deepen(model, "0", example)(example), model(example))


class Complex(nn.Module):
    """Filters in the frequency domain."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)
        self.weight = nn.Parameter(torch.randn(4, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(self.act(self.up(x)))
        return torch.fft.ifft(torch.fft.fft(x) * self.weight).real


def test_complex_numbers_and_random_slopes_widen() -> None:
    model, example = Complex(), torch.randn(2, 4)
    torch.testing.assert_close(widen(model, "up", 16, example, seed=0)(example), model(example))
    of_complex = nn.Sequential(*(nn.Linear(4, 4, dtype=torch.complex64) for _ in range(2)))
    given = torch.randn(2, 4, dtype=torch.complex64)
    torch.testing.assert_close(widen(of_complex, "0", 8, given, seed=0)(given), of_complex(given))
    random = nn.Sequential(nn.Linear(4, 8), nn.RReLU(), nn.Linear(8, 2))
    assert [group.id for group in widening_groups(random, example)] == ["0"]


class Noisy(nn.Module):
    """Adds noise to each channel in training."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn(x.shape[-1]) if self.training else x


def test_random_numbers_and_transposed_convolutions_are_named() -> None:
    model = nn.Sequential(nn.Linear(4, 8), Noisy(), nn.ReLU(), nn.Linear(8, 2))
    assert "draws random numbers in its forward" in str(refused_widenings(model, torch.randn(2, 4)).get("0"))
    generator = nn.Sequential(nn.ConvTranspose2d(4, 8, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1))
    for refused in (refused_deepenings, refused_widenings):
        found = refused(generator, torch.randn(2, 4, 2, 2))
        assert {path for path, why in found.items() if "transposed convolution" in str(why)} == {"0", "2"}


def test_what_is_grown_in_inference_mode_trains() -> None:
    model, example = _net(), torch.randn(2, 4)
    blocks, rows = nn.Sequential(Unit(), Unit()), torch.randn(2, 8)
    optimizer = torch.optim.Adam(model.parameters())
    model(example).sum().backward()
    optimizer.step()
    with torch.inference_mode():
        deeper, wider = deepen(model, "0", example), widen(model, "0", 12, example, seed=0)
        longer = add_block(blocks, block_points(blocks, rows)[0].id, rows)
        continued = grow_optimizer(optimizer, model, deeper)
        assert torch.equal(deeper(example), model(example))
    for grown, given in ((deeper, example), (wider, example), (longer, rows)):
        grown(given).square().sum().backward()
    continued.step()
