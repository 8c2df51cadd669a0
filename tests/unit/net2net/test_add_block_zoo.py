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

from bench.zoo import models
from bench.zoo.models import Case
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
LIBRARIES = {
    "transformers: gpt2": ("transformer.h.0",),
    "transformers: llama": ("model.layers.0",),
    "transformers: mistral": ("model.layers.0",),
    "transformers: qwen2": ("model.layers.0",),
    "transformers: t5": ("encoder.block.1",),
    "transformers: t5 with a short decoder": ("encoder.block.1", "decoder.block.1"),
    "transformers: vit": ("vit.layers.0",),
    "transformers: bert": (),
    "timm: vit_tiny_patch16_224": ("blocks.0",),
    "timm: deit3_small_patch16_224": ("blocks.0",),
    "timm: beit_base_patch16_224": ("blocks.0",),
    "timm: eva02_tiny_patch14_224": ("blocks.0",),
    "timm: cait_xxs24_224": ("blocks.0", "blocks_token_only.0"),
    "timm: xcit_nano_12_p8_224": ("blocks.0",),
    "timm: swin_tiny_patch4_window7_224": ("layers.0.blocks.0", "layers.1.blocks.0"),
    "timm: convnext_atto": tuple(f"stages.{number}.blocks.0" for number in range(4)),
    "timm: regnetx_002": ("s3.b2", "s4.b2"),
    "timm: mobilenetv3_small_050": ("blocks.1.1", "blocks.2.1", "blocks.3.0", "blocks.4.1"),
}
"""Of models of the zoo of `make bench-growth-zoo`."""
COUNTED = {"gpt2": "n_layer", "t5": "num_layers"}
"""The field of a configuration that counts the blocks of the first run, where it is not `num_hidden_layers`."""
CASES = models.cases()


def built(key: str) -> tuple[nn.Module, ExampleInput]:
    """Return a model of a library, which has to be installed, and an input for it."""
    library, _, name = key.partition(": ")
    pytest.importorskip(library)
    case: Case = CASES[key.removesuffix(" with a short decoder")]
    model = case.build().eval()
    if "short decoder" in name:
        model = type(model)(type(model.config)(**{**model.config.to_dict(), "num_layers": 4})).eval()
    return model, case.example(model)


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
@pytest.mark.parametrize("name", [*TORCHVISION, *LIBRARIES])
def test_every_offered_run_is_exact_and_every_refusal_has_a_reason(name: str) -> None:
    if name in TORCHVISION:
        case = torchvision_case(name)
        found = check(case.model, case.example)
        assert found == RUNS.get(name, found)
        assert (name in RUNS and not RUNS[name]) or found
    else:
        assert check(*built(name)) == LIBRARIES[name]


def _trained(model: nn.Module) -> None:
    """Move every weight, so that the new block computes something."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)


@pytest.mark.sweep("models of the zoo")
@pytest.mark.parametrize("key", [key for key, runs in LIBRARIES.items() if runs and "transformers" in key])
def test_a_grown_model_of_hugging_face_is_saved_loaded_and_generates_alike(key: str, tmp_path: Path) -> None:
    model, example = built(key)
    grown: Any = model
    for run_id in LIBRARIES[key]:
        grown = add_block(grown, run_id, example)
    count = COUNTED.get(key.split()[1], "num_hidden_layers")
    assert getattr(grown.config, count) == getattr(model.config, count) + 1
    kinds = getattr(grown.config, "layer_types", None)
    assert kinds is None or len(kinds) == grown.config.num_hidden_layers
    _trained(grown)
    grown.save_pretrained(tmp_path)
    loaded = type(grown).from_pretrained(tmp_path)
    assert torch.equal(run(loaded, example)[0], run(grown, example)[0])
    assert not torch.equal(run(loaded, example)[0], run(model, example)[0])
    if "vit" not in key:
        words = example["input_ids"]
        generated = [
            one.generate(words, attention_mask=torch.ones_like(words), use_cache=cache, max_new_tokens=5)
            for one in (grown, loaded)
            for cache in (True, False)
        ]
        assert all(torch.equal(tokens, generated[0]) for tokens in generated)


def test_a_decoder_of_t5_gets_no_longer_than_its_caches() -> None:
    refusals = refused_blocks(*built("transformers: t5"))
    refusal = next(one for one in refusals if one.layer == "decoder.block.1")
    assert "makes its caches for 2" in refusal.reason


def test_bert_is_refused_as_post_norm() -> None:
    (refusal,) = refused_blocks(*built("transformers: bert"))
    assert "post-norm" in refusal.reason
    assert refusal.file.endswith("modeling_bert.py")
