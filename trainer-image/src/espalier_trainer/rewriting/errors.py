"""Why a model, or a rewrite of it, is refused."""

from __future__ import annotations


class RewritesRefusedError(Exception):
    """The computation of this model is left as it is; the message says why, and what would help."""
