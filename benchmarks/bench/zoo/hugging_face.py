"""Small models of Hugging Face, built from configurations: nothing is downloaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# fmt: off
TEXT: Mapping[str, Any] = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "max_position_embeddings": 32}
_GROUPED = {**TEXT, "num_key_value_heads": 1}
_IMAGE = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": 32, "patch_size": 8}
_T5 = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2, "num_layers": 2,
    "decoder_start_token_id": 0}
_TWO_STACKS = {"vocab_size": 64, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    "max_position_embeddings": 32, "decoder_start_token_id": 0}
# fmt: on


@dataclass(frozen=True)
class Described:
    """A class, the options of its configuration, and what the model reads."""

    model: str
    options: Mapping[str, Any]
    reads: str = "words"

    @property
    def config(self) -> str:
        """The class of its configuration."""
        return re.split("For|LMHead|Model$", self.model)[0] + "Config"

    @property
    def causal(self) -> bool:
        """Whether what it says of a word depends on the words before only."""
        return "CausalLM" in self.model or "LMHead" in self.model


# fmt: off
MODELS: Mapping[str, Described] = {
    "gpt2": Described("GPT2LMHeadModel", {"vocab_size": 64, "n_positions": 32, "n_embd": 16, "n_layer": 2,
        "n_head": 2}),
    "llama": Described("LlamaForCausalLM", _GROUPED),
    "mistral": Described("MistralForCausalLM", _GROUPED),
    "qwen2": Described("Qwen2ForCausalLM", _GROUPED),
    "qwen3": Described("Qwen3ForCausalLM", {**_GROUPED, "head_dim": 8}),
    "gemma2": Described("Gemma2ForCausalLM", {**_GROUPED, "head_dim": 8}),
    "olmo2": Described("Olmo2ForCausalLM", _GROUPED),
    "mixtral": Described("MixtralForCausalLM", {**_GROUPED, "num_local_experts": 4}),
    "phi": Described("PhiForCausalLM", TEXT),
    "phi3": Described("Phi3ForCausalLM", _GROUPED),
    "starcoder2": Described("Starcoder2ForCausalLM", _GROUPED),
    "gpt_neox": Described("GPTNeoXForCausalLM", TEXT),
    "gptj": Described("GPTJForCausalLM", {"vocab_size": 64, "n_positions": 32, "n_embd": 16, "n_layer": 2,
        "n_head": 2, "rotary_dim": 4}),
    "gpt_neo": Described("GPTNeoForCausalLM", {"vocab_size": 64, "hidden_size": 16, "num_layers": 2,
        "attention_types": [[["global", "local"], 1]], "num_heads": 2, "max_position_embeddings": 32,
        "window_size": 8}),
    "bloom": Described("BloomForCausalLM", {"vocab_size": 64, "hidden_size": 16, "n_layer": 2, "n_head": 2}),
    "opt": Described("OPTForCausalLM", {"vocab_size": 64, "hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "max_position_embeddings": 32, "word_embed_proj_dim": 16}),
    "falcon": Described("FalconForCausalLM", TEXT),
    # mamba, mamba2: or float64 would be rounded.
    "mamba": Described("MambaForCausalLM", {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2,
        "residual_in_fp32": False}),
    "mamba2": Described("Mamba2ForCausalLM", {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2,
        "num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 1, "chunk_size": 8, "residual_in_fp32": False}),
    "ctrl": Described("CTRLLMHeadModel", {"vocab_size": 64, "n_positions": 32, "n_embd": 16, "dff": 24, "n_layer": 2,
        "n_head": 2}),
    "xglm": Described("XGLMForCausalLM", {"vocab_size": 64, "d_model": 16, "ffn_dim": 24, "num_layers": 2,
        "attention_heads": 2, "max_position_embeddings": 32}),
    "bert": Described("BertForSequenceClassification", TEXT, "masked words"),
    "roberta": Described("RobertaForMaskedLM", TEXT, "masked words"),
    "roberta_prelayernorm": Described("RobertaPreLayerNormForMaskedLM", TEXT),
    "electra": Described("ElectraForPreTraining", {**TEXT, "embedding_size": 16}, "masked words"),
    "albert": Described("AlbertForMaskedLM", {**TEXT, "embedding_size": 16}),
    "distilbert": Described("DistilBertForMaskedLM", {"vocab_size": 64, "dim": 16, "hidden_dim": 24, "n_layers": 2,
        "n_heads": 2, "max_position_embeddings": 32}, "masked words"),
    "deberta_v2": Described("DebertaV2ForMaskedLM", TEXT, "masked words"),
    "modernbert": Described("ModernBertForMaskedLM", {**TEXT, "cls_token_id": 1, "sep_token_id": 2,
        "local_attention": 8}, "masked words"),
    "fnet": Described("FNetForMaskedLM", {k: v for k, v in TEXT.items() if "heads" not in k}),
    "t5": Described("T5ForConditionalGeneration", _T5, "two texts"),
    "t5 gated": Described("T5ForConditionalGeneration", {**_T5, "feed_forward_proj": "gated-gelu"}, "two texts"),
    "bart": Described("BartForConditionalGeneration", _TWO_STACKS, "two texts"),
    "pegasus": Described("PegasusForConditionalGeneration", _TWO_STACKS, "two texts"),
    "whisper": Described("WhisperForConditionalGeneration", {**_TWO_STACKS, "num_mel_bins": 8,
        "max_source_positions": 16, "max_target_positions": 16}, "sound"),
    "vit": Described("ViTForImageClassification", _IMAGE, "picture"),
    "deit": Described("DeiTForImageClassification", _IMAGE, "picture"),
    "dinov2": Described("Dinov2ForImageClassification", _IMAGE, "picture"),
    "swin": Described("SwinForImageClassification", {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2,
        2], "num_heads": [2, 2], "window_size": 4}, "picture"),
    "convnext": Described("ConvNextForImageClassification", {"hidden_sizes": [8, 16, 24, 32], "depths": [2, 2, 2, 2]},
        "picture"),
    "resnet": Described("ResNetForImageClassification", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2,
        2], "layer_type": "basic"}, "picture"),
    "segformer": Described("SegformerForSemanticSegmentation", {"hidden_sizes": [8, 16], "depths": [2, 2],
        "num_encoder_blocks": 2, "num_attention_heads": [1, 2], "sr_ratios": [2, 1], "patch_sizes": [7, 3],
        "strides": [4, 2], "mlp_ratios": [2, 2], "decoder_hidden_size": 16}, "picture"),
    "clip": Described("CLIPModel", {"text_config": {**TEXT, "eos_token_id": 2, "bos_token_id": 1},
        "vision_config": _IMAGE, "projection_dim": 8}, "picture and words"),
    "wav2vec2": Described("Wav2Vec2ForCTC", {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 2, "conv_dim": [8, 8], "conv_stride": [4, 4],
        "conv_kernel": [8, 4], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False}, "wave"),
}
# fmt: on
