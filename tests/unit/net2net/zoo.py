"""Small models of Hugging Face and timm, built from configurations: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from espalier_trainer.net2net.modules import ExampleInput


@dataclass(frozen=True)
class Zoo:
    """A model, an input, and the runs of blocks that can be continued exactly."""

    build: Callable[[], nn.Module]
    example: Callable[[], ExampleInput]
    runs: tuple[str, ...]
    count: str = ""
    """The field of the configuration that counts the blocks of the first run."""


def words(length: int = 9) -> torch.Tensor:
    return torch.randint(5, 60, (2, length), generator=torch.Generator().manual_seed(1))


def picture(size: int = 32) -> torch.Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def hugging_face(kind: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        transformers.logging.set_verbosity_error()
        # Tiny vocabularies: the special tokens of the real ones are not in them.
        tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0} if "vocab_size" in options else {}
        return getattr(transformers, kind)(getattr(transformers, config)(**tokens, **options)).eval()

    return build


def timm_model(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False, num_classes=5, **options).eval()

    return build


_SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
_T5 = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2, "decoder_start_token_id": 0}
_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "num_heads": 2}


HUGGING_FACE: dict[str, Zoo] = {
    "gpt2": Zoo(
        hugging_face("GPT2LMHeadModel", "GPT2Config", vocab_size=64, n_positions=32, n_embd=16, n_layer=2, n_head=2),
        lambda: {"input_ids": words()},
        ("transformer.h.0",),
        "n_layer",
    ),
    "llama": Zoo(
        hugging_face("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=1, max_position_embeddings=32, **_SMALL),
        lambda: {"input_ids": words()},
        ("model.layers.0",),
        "num_hidden_layers",
    ),
    "qwen2": Zoo(
        hugging_face("Qwen2ForCausalLM", "Qwen2Config", num_key_value_heads=1, max_position_embeddings=32, **_SMALL),
        lambda: {"input_ids": words()},
        ("model.layers.0",),
        "num_hidden_layers",
    ),
    "t5": Zoo(
        hugging_face("T5ForConditionalGeneration", "T5Config", num_layers=2, num_decoder_layers=2, **_T5),
        lambda: {"input_ids": words(), "decoder_input_ids": words(4)},
        ("encoder.block.1",),
        "num_layers",
    ),
    "t5 with a short decoder": Zoo(
        hugging_face("T5ForConditionalGeneration", "T5Config", num_layers=4, num_decoder_layers=2, **_T5),
        lambda: {"input_ids": words(), "decoder_input_ids": words(4)},
        ("encoder.block.1", "decoder.block.1"),
        "num_layers",
    ),
    "vit": Zoo(
        hugging_face(
            "ViTForImageClassification", "ViTConfig", hidden_size=16, intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=2, image_size=32, patch_size=8,
        ),
        lambda: {"pixel_values": picture()},
        ("vit.layers.0",),
        "num_hidden_layers",
    ),
    "bert": Zoo(
        hugging_face("BertForSequenceClassification", "BertConfig", max_position_embeddings=32, **_SMALL),
        lambda: {"input_ids": words(), "attention_mask": torch.ones(2, 9, dtype=torch.long)},
        (),
    ),
}  # fmt: skip

TIMM: dict[str, Zoo] = {
    "timm vit": Zoo(timm_model("vit_tiny_patch16_224", depth=2, **_VIT), picture, ("blocks.0",)),
    "timm deit3": Zoo(timm_model("deit3_small_patch16_224", depth=2, **_VIT), picture, ("blocks.0",)),
    "timm beit": Zoo(timm_model("beit_base_patch16_224", depth=2, **_VIT), picture, ("blocks.0",)),
    "timm eva02": Zoo(timm_model("eva02_tiny_patch14_224", depth=2, **_VIT), picture, ("blocks.0",)),
    "timm cait": Zoo(
        timm_model("cait_xxs24_224", depth=2, **_VIT), picture, ("blocks.0", "blocks_token_only.0")
    ),
    "timm xcit": Zoo(
        timm_model("xcit_nano_12_p8_224", img_size=32, embed_dim=16, depth=2, num_heads=2), picture, ("blocks.0",)
    ),
    "timm swin": Zoo(
        timm_model(
            "swin_tiny_patch4_window7_224", img_size=32, patch_size=4, window_size=4, embed_dim=16, depths=(2, 2),
            num_heads=(2, 2),
        ),
        picture,
        ("layers.0.blocks.0", "layers.1.blocks.0"),
    ),
    "timm convnext": Zoo(timm_model("convnext_atto"), picture, tuple(f"stages.{i}.blocks.0" for i in range(4))),
    "timm regnet": Zoo(timm_model("regnetx_002"), picture, ("s3.b2", "s4.b2")),
    "timm mobilenetv3": Zoo(
        timm_model("mobilenetv3_small_050"), picture, ("blocks.1.1", "blocks.2.1", "blocks.3.0", "blocks.4.1")
    ),
}  # fmt: skip
