"""A grown model comes back from its constructor, its description and a safetensors file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from growth_cases import torchvision_case
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from espalier_core.growth.architecture import Architecture
from espalier_core.types.job import Insertion
from espalier_trainer.net2net import DeepenBlock, GrowthError, deepen, grow_optimizer, rebuild
from espalier_trainer.net2net.description import describe

_IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(6))


def _paper_model(width: int = 6) -> nn.Module:
    return nn.Sequential(
        DeepenBlock(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU()),
        nn.AvgPool2d(2),
        DeepenBlock(nn.Conv2d(width, 5, 2), nn.BatchNorm2d(5), nn.SiLU()),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        DeepenBlock(nn.Linear(5, 4), nn.ReLU()),
    )


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(_IMAGES).square().sum().backward()
    optimizer.step()


def test_train_grow_train_grow_save_rebuild(tmp_path: Path) -> None:
    model: nn.Module = _paper_model()
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    described = describe(model, _IMAGES)
    growth = [
        ("0", Insertion.EXACT),
        ("2", Insertion.CALIBRATED_BATCH_NORM),
        ("0", Insertion.IDENTITY_BATCH_NORM),
        ("5", Insertion.EXACT),
        ("0", Insertion.EXACT),
    ]
    for point, kind in growth:
        _step(model, optimizer)
        with torch.no_grad():
            wanted: Tensor = model.eval()(_IMAGES)
            grown = deepen(model.train(), point, _IMAGES, kind)
            torch.testing.assert_close(grown.eval()(_IMAGES), wanted, rtol=1e-6, atol=1e-6)
        optimizer = grow_optimizer(optimizer, model, grown.train())
        model = grown
        described = describe(model, _IMAGES)
    _step(model, optimizer)
    assert described.growth_history == {"0": 3, "2": 1, "5": 1}
    assert described.parameters == sum(parameter.numel() for parameter in model.parameters())

    save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "architecture.json").write_text(described.model_dump_json(by_alias=True))

    read = Architecture.model_validate_json((tmp_path / "architecture.json").read_text())
    again = rebuild(_paper_model(), read, _IMAGES)
    again.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
    assert describe(again, _IMAGES) == described
    assert torch.equal(again.eval()(_IMAGES), model.eval()(_IMAGES))
    assert torch.equal(again.train()(_IMAGES), model.train()(_IMAGES))


def test_torchvision_comes_back() -> None:
    case = torchvision_case("resnet18")
    grown = deepen(deepen(case.model, "layer1.0.conv2", case.example), "layer1.0.conv1", case.example)
    again = rebuild(torchvision_case("resnet18").model, describe(grown, case.example), case.example)
    again.load_state_dict(grown.state_dict(), strict=True)
    assert torch.equal(again(case.example), grown(case.example))


def test_an_ungrown_description_needs_no_growth() -> None:
    model = _paper_model()
    again = rebuild(model, describe(model, _IMAGES), _IMAGES)
    assert again is not model
    assert set(again.state_dict()) == set(model.state_dict())


def test_another_constructor_is_distinguished_from_the_first_difference() -> None:
    described = describe(deepen(_paper_model(), "0", _IMAGES), _IMAGES)
    with pytest.raises(GrowthError, match=r"the model is not the one described: layer '0\.0' should be Conv2d .*6"):
        rebuild(_paper_model(width=7), described, _IMAGES)
    with pytest.raises(GrowthError, match="'2' is not a growth point|the model is not the one described"):
        rebuild(nn.Sequential(DeepenBlock(nn.Conv2d(3, 6, 3), nn.ReLU())), described, _IMAGES)
