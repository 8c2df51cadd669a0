"""Growth of models on a GPU: exact as on the CPU, with everything that is new on the device."""

from __future__ import annotations

import pytest
import torch
from block_cases import CASES, Case, outputs
from growth_cases import TORCHVISION, relative_error, tensors, torchvision_case

from espalier_trainer.net2net import add_block, deepen, growth_points, widen, widening_groups
from on_cuda import DEVICE, NEEDS_CUDA, full_precision, on_the_device

__all__ = ["full_precision"]
pytestmark = [*NEEDS_CUDA, pytest.mark.usefixtures("full_precision")]


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "convnext_tiny", "googlenet", "vit_b_16"])
def test_models_deepen_and_widen(name: str) -> None:
    assert name in TORCHVISION
    case = torchvision_case(name)
    model, example = case.model.to(DEVICE).eval(), case.example.to(DEVICE)
    with torch.no_grad():
        wanted = tensors(model(example))
    for point in growth_points(model, example)[:2]:
        grown = deepen(model, point.id, example)
        assert on_the_device(grown)
        with torch.no_grad():
            found = tensors(grown.eval()(example))
        assert max(map(relative_error, found, wanted)) <= 1e-5, point.id
    for group in widening_groups(model, example)[:2]:
        grown = widen(model, group.id, 2 * group.width, example, seed=0)
        assert on_the_device(grown)
        with torch.no_grad():
            found = tensors(grown.eval()(example))
        assert max(map(relative_error, found, wanted)) <= 1e-5, group.id


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_models_get_a_block(case: Case) -> None:
    model, example = case.build().to(DEVICE), case.example()
    example = tuple(each.to(DEVICE) for each in example) if isinstance(example, tuple) else example.to(DEVICE)
    grown = add_block(model, case.run, example)
    assert on_the_device(grown)
    assert torch.equal(outputs(grown, example, training=False), outputs(model, example, training=False))
