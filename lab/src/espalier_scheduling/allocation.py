"""The old name of `espalier_lab.scheduling.allocation`."""

import warnings

import espalier_lab.scheduling.allocation as allocation

__all__ = ["allocation"]

warnings.warn(
    "espalier_scheduling.allocation is now espalier_lab.scheduling.allocation; the old name goes with release 0.3",
    DeprecationWarning,
    stacklevel=2,
)
