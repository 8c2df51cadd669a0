"""The ids of environments with their modules of the last release still work, and warn."""

from __future__ import annotations

import importlib
import sys

import gymnasium
import pytest

OLD = {
    "espalier_scheduling.placement:espalier/Placement-v0": "espalier_lab.scheduling.placement",
    "espalier_scheduling.allocation:espalier/Allocation-v0": "espalier_lab.scheduling.allocation",
    "espalier_rewriting:espalier/Rewrites-v0": "espalier_lab.rewriting.learned",
}


@pytest.mark.parametrize("name", OLD)
def test_an_old_id_is_found_with_a_warning(name: str) -> None:
    module, _, known = name.partition(":")
    sys.modules.pop(module, None)
    with pytest.warns(DeprecationWarning, match=f"^{module} is now {OLD[name]}; the old name goes"):
        importlib.import_module(module)
    assert known in gymnasium.registry
