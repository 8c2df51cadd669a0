"""The rules, one per file; the place in `RULES` is the number in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from espalier_lab.rewriting.engine.rules import (
    activation_by_hand,
    added_convolutions,
    attention_by_hand,
    cancelling,
    chained_linears,
    channels_last,
    common_subexpression,
    convolution_with_shortcut,
    layer_norm_by_hand,
    layer_norm_weights,
    linear_by_hand,
    mean_first,
    merged_convolutions,
    merged_linears,
    upsampling_last,
)
from espalier_lab.rewriting.engine.rules.rule import Location, RewriteRule

RULES: Final[tuple[RewriteRule, ...]] = (
    activation_by_hand.RULE,
    added_convolutions.RULE,
    attention_by_hand.RULE,
    cancelling.RULE,
    chained_linears.RULE,
    channels_last.RULE,
    common_subexpression.RULE,
    convolution_with_shortcut.RULE,
    layer_norm_by_hand.RULE,
    layer_norm_weights.RULE,
    linear_by_hand.RULE,
    mean_first.RULE,
    merged_convolutions.RULE,
    merged_linears.RULE,
    upsampling_last.RULE,
)

BY_NAME: Final[Mapping[str, RewriteRule]] = {rule.name: rule for rule in RULES}

__all__ = ["BY_NAME", "RULES", "Location", "RewriteRule"]
