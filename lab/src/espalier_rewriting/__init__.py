"""The old name of `espalier_lab.rewriting.learned`, for ids such as `espalier_rewriting:espalier/Rewrites-v0`."""

import warnings

import espalier_lab.rewriting.learned as learned

__all__ = ["learned"]

warnings.warn(
    "espalier_rewriting is now espalier_lab.rewriting.learned; the old name goes with release 0.3",
    DeprecationWarning,
    stacklevel=2,
)
