"""Reasons to refuse a model, or a rewrite of it."""

from __future__ import annotations

from typing import Final

CONTEXT: Final = (
    "a part of the forward runs within torch.no_grad, torch.autocast or an autograd.Function of its own, which a "
    "rewritten computation would not; take it out, or do without rewrites"
)
"""Neither torch.fx nor ATen's graphs preserve such a context."""
