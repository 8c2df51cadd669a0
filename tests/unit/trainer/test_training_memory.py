"""Memory of training: freed, and laid out for fused updates."""

from __future__ import annotations

import copy
import subprocess
import sys
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch import nn

from espalier_core.types.job import OptimizerSpec
from espalier_trainer.builtin_loop.steps import optimize
from espalier_trainer.elastic.group import Group
from espalier_trainer.elastic.step import StepPlan, joint_step
from espalier_trainer.net2net import deepen, grow_optimizer, growth_points, plan_widening, widen_optimizer, widened
from espalier_trainer.optimizers.building import build_optimizer, load_optimizer_state, optimizer_state
from espalier_trainer.run.services import keep_freed
from espalier_trainer.training.network import Network
from groups import together

TOLERANCE = 2e-6


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(4 * 36, 5),
    )  # fmt: skip


def batch(rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return torch.randn(rows, 3, 6, 6, generator=random), torch.arange(rows) % 5


def network(*, fused: bool, last: bool = False, **spec: Any) -> Network:
    module = net().to(memory_format=torch.channels_last) if last else net()
    return Network(module, build_optimizer(OptimizerSpec(fused=fused, **spec), module), None)


def train(net: Network, steps: int = 3) -> Network:
    for _ in range(steps):
        optimize(net, *batch())
    return net


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=TOLERANCE)


def assert_laid(optimizer: torch.optim.Optimizer) -> None:
    moments = [
        (parameter, value)
        for parameter, state in optimizer.state.items()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape
    ]
    assert moments
    assert all(parameter.stride() == value.stride() for parameter, value in moments)


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "Adam", "weight_decay": 0.01},
        {"name": "AdamW", "decay_matrices_only": True},
        {"name": "SGD", "momentum": 0.9},
    ],
    ids=lambda spec: spec["name"],
)
def test_fused_update_is_the_separate_one(spec):
    fused, separate = network(fused=True, **spec), network(fused=False, **spec)
    assert all(group["fused"] for group in fused.optimizer.param_groups)
    assert not any(group["fused"] for group in separate.optimizer.param_groups)
    assert_equal(train(fused).module, train(separate).module)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("RMSprop", nn.Linear(2, 2)),
        ("SGD", nn.Sequential(nn.Embedding(4, 2, sparse=True), nn.Linear(2, 2))),
        ("Adam", nn.ParameterList([nn.Parameter(torch.ones(2, dtype=torch.complex64))])),
    ],
    ids=["RMSprop", "sparse", "complex"],
)
def test_what_torch_cannot_fuse_is_updated_apart(name, module):
    optimizer = build_optimizer(OptimizerSpec.model_validate({"name": name}), module)
    assert not any(group.get("fused") for group in optimizer.param_groups)


def test_state_from_a_file_lies_as_the_parameters():
    whole = train(network(fused=True, last=True))
    groups, tensors, values = optimizer_state(whole.optimizer, whole.module)
    again = network(fused=True, last=True)
    again.module.load_state_dict(whole.module.state_dict())
    read = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    load_optimizer_state(again.optimizer, again.module, groups, read, values)
    assert_laid(again.optimizer)
    for mine, theirs in zip(train(again).module.parameters(), train(whole).module.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_gradients_of_other_workers_lie_as_the_parameters():
    """Two members with kernels in channels-last, which fused updates would read in another order than sent."""
    inputs, labels = batch()
    start = network(fused=False)

    def member(group: Group) -> nn.Module:
        mine = Network(copy.deepcopy(last.module), None, None)
        mine = Network(mine.module, build_optimizer(OptimizerSpec(), mine.module), None)
        rows = slice(group.rank * 4, group.rank * 4 + 4)
        for _ in range(3):
            joint_step(mine, StepPlan(group), inputs[rows], labels[rows], 8)
        return mine.module

    last = network(fused=True, last=True)
    alone = train(start)
    for module in together(2, member):
        assert_equal(module, alone.module)


@pytest.mark.parametrize("growth", ["deepen", "widen"])
def test_grown_moments_lie_as_the_parameters(growth):
    """And the grown network trains on as the one whose tensors lie in rows."""
    inputs, _ = batch(2)

    def grown(*, last: bool) -> Network:
        found = train(network(fused=last, last=last))
        if growth == "deepen":
            module = deepen(found.module, growth_points(found.module, inputs)[0].id, inputs)
            return Network(module, grow_optimizer(found.optimizer, found.module, module), None)
        plan = plan_widening(found.module, "0", 8, inputs, seed=0)
        module = widened(found.module, plan)
        return Network(module, widen_optimizer(found.optimizer, found.module, module, plan), None)

    one, other = grown(last=True), grown(last=False)
    assert_laid(one.optimizer)
    assert_equal(train(one).module, train(other).module)


CPU = torch.device("cpu")


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's mallopt")
def test_steps_cause_no_page_faults_once_their_memory_was_used():
    code = """
        import ctypes
        import resource
        import torch
        from espalier_trainer.run.services import keep_freed

        def faults():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(3):
                gradients = [torch.zeros(1_250_000) for _ in range(8)]
                del gradients
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        # As glibc begins; what was imported may have raised them.
        ctypes.CDLL(None).mallopt(-3, 5_000_000)
        ctypes.CDLL(None).mallopt(-1, 10_000_000)
        faults()
        before = faults()
        assert keep_freed(torch.device("cpu"))
        faults()
        print(before, faults())
    """
    done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before > 10_000
    assert after < before / 100


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_the_users_settings_stay(name, monkeypatch):
    monkeypatch.setenv(name, "1000000")
    assert not keep_freed(CPU)


def test_a_device_has_an_allocator_of_its_own():
    assert not keep_freed(torch.device("cuda"))
