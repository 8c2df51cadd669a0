"""All models of the zoo under one name each, with an input."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from growing.hugging_face import MODELS, Described
from growing.timm_models import BUILT_BY, CONVOLUTIONAL
from growing.torch_models import TORCH_NN, TORCHVISION

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
