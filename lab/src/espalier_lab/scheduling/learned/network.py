"""The network in numpy, for serving. `twin` is the same in torch.

Each job is encoded by the same layer; the mean over jobs stands for all of them; each (job, option) pair and "stop"
get a score. So scores do not depend on the order of jobs (Zaheer et al., Deep Sets, 2017), and any number of them fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from espalier_lab.scheduling.learned.description import CLUSTER_FEATURES, JOB_FEATURES, OPTION_FEATURES, NetworkInputs

Floats32 = NDArray[np.float32]
Weights = Mapping[str, Floats32]
HIDDEN: Final = 32
MASKED: Final = -1e9
"""Score of an illegal choice."""


def shapes(options: int, hidden: int = HIDDEN) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight of a network for this number of options of a job."""
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
class JobScorer:
    """Weights by name, float32, with the shapes of `shapes`."""

    weights: Weights

    def scores(self, seen: NetworkInputs, mask: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return scores (..., jobs × options + 1): of each option of each job, then of "stop".

        `mask` has that shape; forbidden choices score `MASKED`.
        """
        encoded = np.maximum(self.of_jobs(seen.jobs) + self.shift(seen.cluster)[..., None, :], 0)
        present = seen.present[..., None]
        pooled = (encoded * present).sum(-2) / np.maximum(present.sum(-2), 1)
        of_options, direct = self.of_options(seen.options)
        score = self.rated(encoded, of_options, self.around(pooled)[..., None, :]) + direct
        last = self.stop(pooled, seen.cluster)[..., None]
        flat = score.reshape(*score.shape[:-2], -1)
        return np.where(mask, np.concatenate([flat, last], axis=-1), np.float32(MASKED))

    def of_jobs(self, jobs: Floats32) -> Floats32:
        """Return the part of a job's encoding, (..., hidden), that comes from the job itself."""
        return times(jobs, self.weights["job.weight"])

    def shift(self, cluster: Floats32) -> Floats32:
        """Return the part of the jobs' encodings, (..., hidden), that comes from the cluster."""
        return cluster @ self.weights["job.cluster"].T + self.weights["job.bias"]

    def around(self, pooled: Floats32) -> Floats32:
        """Return the contribution of the mean of the encodings, (..., hidden), to each pair."""
        return pooled @ self.weights["pair.pooled"].T

    def of_options(self, options: Floats32) -> tuple[Floats32, Floats32]:
        """Return the contributions of options, (..., options, features), to pairs, (..., options, hidden), and
        scores.
        """
        return times(options, self.weights["pair.option"]) + self.weights["pair.bias"], (
            options @ self.weights["score.option"]
        )

    def rated(self, encoded: Floats32, of_options: Floats32, around: Floats32) -> Floats32:
        """Return the scores of pairs, (..., jobs, options), without the contributions of options."""
        pairs = (times(encoded, self.weights["pair.job"]) + around)[..., None, :] + of_options
        deep = times(np.maximum(pairs, 0, out=pairs), self.weights["deep.weight"]) + self.weights["deep.bias"]
        return np.asarray(np.maximum(deep, 0, out=deep) @ self.weights["score.weight"])

    def stop(self, pooled: Floats32, cluster: Floats32) -> Floats32:
        """Return the score of "stop", (...)."""
        w = self.weights
        stop = np.maximum(pooled @ w["stop.pooled"].T + cluster @ w["stop.cluster"].T + w["stop.bias"], 0)
        return np.asarray(stop @ w["stop.weight"] + w["stop.offset"][0])


def times(values: Floats32, weight: Floats32) -> Floats32:
    """Return values (..., in) times the transpose of a weight (out, in): one product, not many small ones."""
    if values.ndim <= 2:
        return values @ weight.T
    return (values.reshape(-1, values.shape[-1]) @ weight.T).reshape(*values.shape[:-1], weight.shape[0])
