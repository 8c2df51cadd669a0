"""The rules, each in a file of its own; its place in `RULES` is its number in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from espalier_trainer.rewriting.rules import common_subexpression, merged_convolutions
from espalier_trainer.rewriting.rules.rule import Location, Rule

RULES: Final[tuple[Rule, ...]] = tuple(one.RULE for one in (common_subexpression, merged_convolutions))

BY_NAME: Final[Mapping[str, Rule]] = {rule.name: rule for rule in RULES}

__all__ = ["BY_NAME", "RULES", "Location", "Rule"]
