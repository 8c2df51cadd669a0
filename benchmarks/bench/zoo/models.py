"""All models of the zoo under one name each, with an input: of Hugging Face, torchvision, torch and timm.

They are built from configurations: nothing is downloaded. Pictures and depths are small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bench.zoo.hugging_face import MODELS, Described
from bench.zoo.torch_models import TORCH_NN, TORCHVISION

_VIT: Mapping[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
_SWIN: Mapping[str, Any] = {
    "img_size": 32, "patch_size": 4, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 2)
}  # fmt: skip

CONVOLUTIONAL = (
    "convnext_atto", "convnextv2_atto", "convnext_atto_rms", "cs3darknet_focus_s", "cspresnet50d", "cspnext_tiny",
    "darknet17", "densenet121", "dla46_c", "dla46x_c", "dpn48b", "edgenext_xx_small", "efficientnet_b0",
    "efficientvit_m0", "ese_vovnet19b_slim", "ese_vovnet19b_slim_dw", "fasternet_t0", "gernet_s", "ghostnet_050",
    "hardcorenas_a", "hgnetv2_b0", "inception_next_atto", "inception_v3", "lcnet_050", "lcnetv2_small",
    "mambaout_femto", "mixnet_s", "mnasnet_small", "mobilenetv1_100", "mobilenetv2_050", "mobilenetv3_small_050",
    "mobilenetv4_conv_small_035", "mobileone_s0", "nf_regnet_b0", "regnetx_002", "regnety_002", "repghostnet_050",
    "repvgg_a0", "repvit_m0_9", "resnest14d", "resnet10t", "resnet14t", "resnetv2_18", "rexnetr_100",
    "semnasnet_050", "seresnet18", "shvit_s1", "skresnet18", "starnet_s050", "swiftformer_xs", "test_byobnet",
    "test_convnext", "test_convnext2", "test_efficientnet", "test_efficientnet_evos", "test_efficientnet_gn",
    "test_efficientnet_ln", "test_mambaout", "test_nfnet", "test_resnet", "tf_efficientnet_lite0", "tinynet_e",
)  # fmt: skip
"""Those whose constructors take no sizes: they run on pictures of 32 × 32, Inception's of 96 × 96."""

BUILT_BY: Mapping[str, Mapping[str, Any]] = {
    "test_coatnet": {},
    "test_vit": {},
    "test_vit2": {},
    "test_vit3": {},
    "beit_base_patch16_224": _VIT,
    "cait_xxs24_224": _VIT,
    "deit3_small_patch16_224": _VIT,
    "eva02_tiny_patch14_224": _VIT,
    "vit_tiny_patch16_224": _VIT,
    "vit_relpos_small_patch16_224": _VIT,
    "vit_small_patch16_dinov3": _VIT,
    "xcit_nano_12_p8_224": {"img_size": 32, "embed_dim": 16, "depth": 2, "num_heads": 2},
    "convit_tiny": {
        "img_size": 32,
        "patch_size": 8,
        "embed_dim": 6,
        "depth": 4,
        "num_heads": 4,
        "local_up_to_layer": 2,
    },
    "swin_tiny_patch4_window7_224": _SWIN,
    "swinv2_tiny_window8_256": _SWIN,
}
"""With the arguments of their constructors; without any, pictures have the size that they ask for."""
ExampleInput = Tensor | tuple[Any, ...] | dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One model, built at random, and a batch of two."""

    library: str
    name: str
    build: Callable[[], nn.Module]
    example: Callable[[nn.Module], ExampleInput]
    causal: bool = False
    """What it returns for a place of a text depends on the places before only."""

    @property
    def key(self) -> str:
        """The name under which the case is known in the whole zoo."""
        return f"{self.library}: {self.name}"


def _words(length: int = 9) -> Tensor:
    return torch.randint(5, 32, (2, length), generator=torch.Generator().manual_seed(1))


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


_INPUTS: Mapping[str, Callable[[], ExampleInput]] = {
    "words": lambda: {"input_ids": _words()},
    "masked words": lambda: {"input_ids": _words(), "attention_mask": torch.ones(2, 9, dtype=torch.long)},
    "two texts": lambda: {"input_ids": _words(), "decoder_input_ids": _words(4)},
    "picture": lambda: {"pixel_values": _normal(2, 3, 32, 32)},
    "picture and words": lambda: {"input_ids": _words(), "pixel_values": _normal(2, 3, 32, 32)},
    "sound": lambda: {"input_features": _normal(2, 8, 32), "decoder_input_ids": _words(4)},
    "wave": lambda: {"input_values": _normal(2, 640)},
}
_TENSORS: Mapping[str, Callable[[], ExampleInput]] = {
    "rows": lambda: _normal(2, 6, 4),
    "two rows": lambda: (_normal(2, 6, 8), _normal(2, 5, 8)),
    "vectors": lambda: _normal(4, 4),
    "signal": lambda: _normal(2, 3, 24),
    "picture": lambda: _normal(2, 3, 16, 16),
    "volume": lambda: _normal(2, 3, 8, 8, 8),
    "words": _words,
}


def _hugging_face(name: str, described: Described) -> Case:
    def build() -> nn.Module:
        import transformers

        transformers.logging.set_verbosity_error()
        # Tiny vocabularies: the special tokens of the real ones are not in them.
        tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0} if "vocab_size" in described.options else {}
        config = getattr(transformers, described.config)(**tokens, **described.options)
        model: nn.Module = getattr(transformers, described.model)(config)
        return model

    return Case("transformers", name, build, lambda _: _INPUTS[described.reads](), described.causal)


def _timm(name: str, options: Mapping[str, Any], size: int | None) -> Case:
    def build() -> nn.Module:
        import timm

        model: nn.Module = timm.create_model(name, pretrained=False, num_classes=5, **options)
        return model

    def example(model: nn.Module) -> Tensor:
        asked = size or options.get("img_size")
        return _normal(2, *((3, asked, asked) if asked else model.default_cfg["input_size"]))

    return Case("timm", name, build, example)


def _torchvision(name: str) -> Case:
    return Case("torchvision", name, TORCHVISION[name], lambda _: _normal(2, 3, 64, 64))


def cases() -> dict[str, Case]:
    """Return all cases by their keys."""
    found = [
        *(_hugging_face(name, described) for name, described in MODELS.items()),
        *(_torchvision(name) for name in TORCHVISION),
        *(
            Case("torch.nn", name, build, lambda _, reads=reads: _TENSORS[reads](), "causal" in name)
            for name, (build, reads) in TORCH_NN.items()
        ),
        *(_timm(name, options, None) for name, options in BUILT_BY.items()),
        *(_timm(name, {}, 96 if name.startswith("inception") else 32) for name in CONVOLUTIONAL),
    ]
    return {case.key: case for case in found}


@torch.no_grad()
def built(case: Case, seed: int = 0) -> nn.Module:
    """Return the case's model: its own random weights, and what it begins with at zero or one made random, too."""
    torch.manual_seed(seed)
    model = case.build()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            spread = 0.2 / math.sqrt(parameter[0].numel()) if parameter.dim() > 1 else 0.05
            parameter.add_(torch.randn_like(parameter), alpha=spread)
    return model
