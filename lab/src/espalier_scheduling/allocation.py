"""The old name of environments that `espalier_lab.environments` registers."""

import warnings

import espalier_lab.environments as environments

__all__ = ["environments"]

warnings.warn(
    "espalier_scheduling.allocation is now espalier_lab.environments; the old name goes with release 0.3",
    DeprecationWarning,
    stacklevel=2,
)
