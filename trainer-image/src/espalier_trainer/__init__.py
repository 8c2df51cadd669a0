"""The training loop under a time budget, and function-preserving growth.

model = espalier_trainer.load("runs/grown")     # the trained, grown module of a run or an export, in eval mode
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from espalier_trainer.exporting.loading import load as load

__all__ = ["load"]


def __getattr__(name: str) -> object:
    """Import `load` on use: workers that only wait need no torch."""
    if name == "load":
        from espalier_trainer.exporting.loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
