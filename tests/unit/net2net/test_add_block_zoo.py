"""Blocks of other people's models: each offered run is exact, each refusal has a reason, a place and a remedy."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from growth_cases import TORCHVISION, torchvision_case
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from zoo import HUGGING_FACE, TIMM, Zoo, words

from espalier_core.growth.block import block_added
from espalier_trainer.net2net import ExampleInput, add_block, block_points, refused_blocks
from espalier_trainer.net2net.description import describe
from espalier_trainer.net2net.modules import as_arguments

pytestmark = pytest.mark.slow

RUNS = {
    "resnet18": ("layer1.0", "layer2.1", "layer3.1", "layer4.1"),
    "resnet50": ("layer1.1", "layer2.1", "layer3.1", "layer4.1"),
    "convnext_tiny": ("features.1.0", "features.3.0", "features.5.0", "features.7.0"),
    "vit_b_16": ("encoder.layers.encoder_layer_0",),
    "vgg11_bn": (),
    "densenet121": (),
    "shufflenet_v2_x0_5": (),
    "googlenet": (),
    "googlenet-aux": (),
}
"""Of torchvision's models; those that are not named have runs of inverted residuals."""


def run(model: nn.Module, example: ExampleInput) -> list[Tensor]:
    args, kwargs = as_arguments(example)
    with torch.no_grad():
        result = copy.deepcopy(model).eval()(*args, **kwargs)
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def check(model: nn.Module, example: ExampleInput) -> tuple[str, ...]:
    """Check every offered run and every refusal; returns the offered."""
    found = tuple(point.id for point in block_points(model, example))
    before = run(model, example)
    described = describe(model, example, operations=["AddBlock"])
    for name in found:
        grown = add_block(model, name, example)
        for one, other in zip(run(grown, example), before, strict=False):
            assert torch.equal(one, other), name
        assert describe(grown, example, before=described) == block_added(described, name)
    for refusal in refused_blocks(model, example):
        assert refusal.reason
        assert refusal.remedy
        assert Path(refusal.file).is_file()
        assert refusal.line > 0
    return found


@pytest.mark.sweep("blocks of torchvision, timm and Hugging Face")
@pytest.mark.parametrize("name", [*TORCHVISION, *TIMM, *HUGGING_FACE])
def test_every_offered_run_is_exact_and_every_refusal_has_a_reason(name: str) -> None:
    if name in TORCHVISION:
        case = torchvision_case(name)
        found = check(case.model, case.example)
        assert found == RUNS.get(name, found)
        assert (name in RUNS and not RUNS[name]) or found
    else:
        pytest.importorskip("timm" if name in TIMM else "transformers")
        zoo = (TIMM | HUGGING_FACE)[name]
        assert check(zoo.build(), zoo.example()) == zoo.runs


def _trained(model: nn.Module) -> None:
    """Move every weight, so that the new block computes something."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)


@pytest.mark.sweep("models of the zoo")
@pytest.mark.parametrize("name", [name for name, zoo in HUGGING_FACE.items() if zoo.runs])
def test_a_grown_model_of_hugging_face_is_saved_loaded_and_generates_alike(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    zoo: Zoo = HUGGING_FACE[name]
    model, example = zoo.build(), zoo.example()
    grown: Any = model
    for run_id in zoo.runs:
        grown = add_block(grown, run_id, example)
    assert getattr(grown.config, zoo.count) == getattr(model.config, zoo.count) + 1
    kinds = getattr(grown.config, "layer_types", None)
    assert kinds is None or len(kinds) == grown.config.num_hidden_layers
    _trained(grown)
    grown.save_pretrained(tmp_path)
    loaded = type(grown).from_pretrained(tmp_path)
    assert torch.equal(run(loaded, example)[0], run(grown, example)[0])
    assert not torch.equal(run(loaded, example)[0], run(model, example)[0])
    if name != "vit":
        generated = [
            one.generate(words(), attention_mask=torch.ones_like(words()), use_cache=cache, max_new_tokens=5)
            for one in (grown, loaded)
            for cache in (True, False)
        ]
        assert all(torch.equal(tokens, generated[0]) for tokens in generated)


def test_a_decoder_of_t5_gets_no_longer_than_its_caches() -> None:
    pytest.importorskip("transformers")
    zoo = HUGGING_FACE["t5"]
    refusal = next(one for one in refused_blocks(zoo.build(), zoo.example()) if one.layer == "decoder.block.1")
    assert "makes its caches for 2" in refusal.reason


def test_bert_is_refused_as_post_norm() -> None:
    pytest.importorskip("transformers")
    zoo = HUGGING_FACE["bert"]
    (refusal,) = refused_blocks(zoo.build(), zoo.example())
    assert "post-norm" in refusal.reason
    assert refusal.file.endswith("modeling_bert.py")
