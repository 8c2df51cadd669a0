"""Policy files for tests: what they decide can be worked out by hand."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from espalier_lab.scheduling.learned.files import AllocationLineage, AllocationPolicy, Serves, make_policy, write_policy
from espalier_lab.scheduling.learned.network import JobScorer, shapes
from espalier_lab.scheduling.placement.beliefs import wide_prior
from espalier_lab.scheduling.placement.tasks import KINDS
from espalier_lab.scheduling.product.reader import tensors_of

APART: Final = "apart"
"""Jobs that share a node slow each other down, and the network is fast."""
TOGETHER: Final = "together"
"""They do not, and nodes are alike: the first rule's placement, which fills nodes up, is as good as any."""


def giving(
    *, all_gpus: bool = True, placement: str | None = None, without: Collection[str] = (), **lineage: Any
) -> AllocationPolicy:
    """Return a policy that gives jobs workers in turn, the first job of the view as many as it takes, then the second.

    With `all_gpus` until none is left or nobody takes more, else each job gets its base workers alone. `placement`:
    `APART` or `TOGETHER`, less the tensors `without`; None: it has no placement prior.
    """
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes(1, hidden=2).items()}
    weights["stop.offset"][:] = -1.0 if all_gpus else 1.0
    about: dict[str, Any] = {
        "name": "tiny",
        "learnt_from": "nothing: made by a test",
        "algorithm": "none",
        "seed": 0,
        "decisions": 0,
        "serves": Serves(min_gpus=1, max_gpus=512, max_jobs=512),
    }
    prior = {name: value for name, value in _prior(placement).items() if name not in without}
    return make_policy(JobScorer(weights), AllocationLineage(**{**about, **lineage}), prior)


def _prior(placement: str | None) -> dict[str, NDArray[np.float32]]:
    if placement is None:
        return {}
    wide = wide_prior()
    others = np.full(2 * KINDS, 0.5 if placement == APART else -400.0)
    return tensors_of(replace(wide, rest=np.concatenate([others, wide.rest[-2:]])))


def write_giving(path: Path, **options: Any) -> Path:
    """Write the file of `giving`."""
    write_policy(giving(**options), path)
    return path
