"""The old name of `espalier_lab.growth.environment`, for the id `espalier_agent.environment:espalier/Outcomes-v0`."""

import importlib
import warnings

warnings.warn(
    "espalier_agent.environment is now espalier_lab.growth.environment; the old name goes with release 0.3",
    DeprecationWarning,
    stacklevel=2,
)
importlib.import_module("espalier_lab.growth.environment")  # by name: the agent depends on no laboratory
