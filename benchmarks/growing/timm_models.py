"""Models of timm, built from their configurations: nothing is downloaded. Pictures and depths are small."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
