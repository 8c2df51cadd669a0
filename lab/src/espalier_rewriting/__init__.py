"""The old name of `espalier_lab.rewriting`, for the id `espalier_lab.rewriting:espalier/Rewrites-v0`."""

import warnings

import espalier_lab.rewriting as rewriting

__all__ = ["rewriting"]

warnings.warn(
    "espalier_lab.rewriting is now espalier_lab.rewriting; the old name goes with release 0.3",
    DeprecationWarning,
    stacklevel=2,
)
