"""What `torch.save` keeps of a grown model's state dict loads into a fresh model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.unit.net2net.test_growth_checks import Net
from torch import Tensor, nn

from espalier_trainer.net2net import GrowthError, Insertion, add_block, deepen, load_grown, widen

EXAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def _net() -> nn.Module:
    return Net(lambda _net, _x: None)


def _images() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(4 * 36, 5)),
    )


WAYS: dict[str, tuple[Callable[[nn.Module, Tensor], nn.Module], ...]] = {
    "nothing": (),
    "deeper twice": (lambda m, x: deepen(m, "first", x), lambda m, x: deepen(m, "first", x)),
    "longer, then deeper": (
        lambda m, x: add_block(m, "blocks.0", x),
        lambda m, x: deepen(m, "first", x),
        lambda m, x: add_block(m, "blocks.0", x),
    ),
    "deeper, then longer": (lambda m, x: deepen(m, "blocks.1.up", x), lambda m, x: add_block(m, "blocks.0", x)),
    "wider, deeper, wider": (
        lambda m, x: widen(m, "blocks.0.up", 32, x, seed=1),
        lambda m, x: deepen(m, "blocks.0.up", x),
        lambda m, x: widen(m, "blocks.0.up", 48, x, seed=2),
    ),
    "twice as long": (lambda m, x: add_block(m, "blocks.0", x, Insertion.SCALED),),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_grown_state_loads_into_a_fresh_model(way: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    grown = _net()
    for step in WAYS[way]:
        grown = step(grown, EXAMPLE)
    torch.save(grown.state_dict(), tmp_path / "model.pt")
    fresh = _net()
    loaded = load_grown(fresh, torch.load(tmp_path / "model.pt"), EXAMPLE)
    assert torch.equal(loaded(EXAMPLE), grown(EXAMPLE))
    assert list(loaded.state_dict()) == list(grown.state_dict())
    assert not any("grown" in name for name in fresh.state_dict())


@pytest.mark.parametrize("insertion", [Insertion.EXACT, Insertion.IDENTITY_BATCH_NORM])
@pytest.mark.parametrize("pointwise", [True, False])
def test_what_was_inserted_is_read_from_the_state(insertion: Insertion, pointwise: bool) -> None:
    torch.manual_seed(0)
    example = torch.randn(2, 3, 6, 6)
    grown = deepen(_images(), "0", example, insertion, pointwise=pointwise).eval()
    loaded = load_grown(_images(), grown.state_dict(), example).eval()
    assert torch.equal(loaded(example), grown(example))


def test_another_state_is_refused() -> None:
    with pytest.raises(GrowthError, match=r"not the state of a grown Net \(Error.*[Mm]issing key.*before growth"):
        load_grown(_net(), _images().state_dict(), EXAMPLE)
