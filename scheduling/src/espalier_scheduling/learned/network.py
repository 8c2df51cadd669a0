"""The network in numpy: what is served. `twin` is the same in torch.

Each job is encoded by the same layer; the mean over jobs stands for all of them; each (job, option) pair and "stop"
get a score. So scores do not depend on the order of jobs (Zaheer et al., Deep Sets, 2017), and any number of them fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from espalier_scheduling.learned.description import CLUSTER_FEATURES, JOB_FEATURES, OPTION_FEATURES, Inputs

Weights = Mapping[str, NDArray[np.float32]]
HIDDEN: Final = 32
MASKED: Final = -1e9
"""Score of what cannot be chosen."""


def shapes(options: int, hidden: int = HIDDEN) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight of a network for so many options of a job."""
    jobs, offered, cluster = len(JOB_FEATURES), len(OPTION_FEATURES), len(CLUSTER_FEATURES)
    return {
        "job.weight": (hidden, jobs),
        "job.cluster": (hidden, cluster),
        "job.bias": (hidden,),
        "pair.job": (hidden, hidden),
        "pair.option": (hidden, offered),
        "pair.pooled": (hidden, hidden),
        "pair.bias": (options, hidden),
        "deep.weight": (hidden, hidden),
        "deep.bias": (hidden,),
        "score.weight": (hidden,),
        "score.option": (offered,),
        "stop.pooled": (hidden, hidden),
        "stop.cluster": (hidden, cluster),
        "stop.bias": (hidden,),
        "stop.weight": (hidden,),
        "stop.offset": (1,),
    }


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Weights, by name, float32, of the shapes that `shapes` gives."""

    weights: Weights

    def scores(self, seen: Inputs, mask: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return scores (..., jobs × options + 1): of each option of each job, then of "stop".

        `mask` has that shape; what it forbids scores `MASKED`.
        """
        w = self.weights
        cluster = seen.cluster @ w["job.cluster"].T + w["job.bias"]
        jobs = np.maximum(seen.jobs @ w["job.weight"].T + cluster[..., None, :], 0)
        present = seen.present[..., None]
        pooled = (jobs * present).sum(-2) / np.maximum(present.sum(-2), 1)
        pair = (jobs @ w["pair.job"].T + (pooled @ w["pair.pooled"].T)[..., None, :])[..., None, :]
        pairs = np.maximum(seen.options @ w["pair.option"].T + pair + w["pair.bias"], 0)
        deep = np.maximum(pairs @ w["deep.weight"].T + w["deep.bias"], 0)
        score = deep @ w["score.weight"] + seen.options @ w["score.option"]
        stop = np.maximum(pooled @ w["stop.pooled"].T + seen.cluster @ w["stop.cluster"].T + w["stop.bias"], 0)
        last = (stop @ w["stop.weight"] + w["stop.offset"][0])[..., None]
        flat = score.reshape(*score.shape[:-2], -1)
        return np.where(mask, np.concatenate([flat, last], axis=-1), np.float32(MASKED))
