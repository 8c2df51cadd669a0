"""The old name of `espalier_lab.scheduling.placement`."""

import warnings

import espalier_lab.scheduling.placement as placement

__all__ = ["placement"]

warnings.warn(
    "espalier_scheduling.placement is now espalier_lab.scheduling.placement; the old name goes with release 0.3",
    DeprecationWarning,
    stacklevel=2,
)
