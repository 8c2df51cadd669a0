"""The features of growths as tensors: what the networks read that were learned from corpora."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from espalier_agent.policies.network import Prepared
from espalier_agent.policies.tree_features import STATIC, Facts, dynamic_features, static_features
from espalier_core.growth import operation
from espalier_core.growth.architecture import Architecture


def prepared_features(
    operations: Sequence[str], architectures: Sequence[Architecture], facts: Sequence[Facts]
) -> Prepared:
    """Return `static` (M, growths, features), `dynamic` (M, features) and `counts`: of each operation, the targets."""
    counts = {name: max((len(operation(name).targets(one)) for one in architectures), default=0) for name in operations}
    static = np.full((len(architectures), sum(counts.values()), len(STATIC)), -1.0, dtype=np.float32)
    for row, (architecture, known) in enumerate(zip(architectures, facts, strict=True)):
        features = {(one.kind, one.target): found for one, found in static_features(architecture, known).items()}
        first = 0
        for name, count in counts.items():
            for place, target in enumerate(operation(name).targets(architecture)):
                if (name, target) in features:
                    static[row, first + place] = features[name, target]
            first += count
    dynamic = [dynamic_features(one, known) for one, known in zip(architectures, facts, strict=True)]
    return {
        "static": torch.from_numpy(static),
        "dynamic": torch.tensor(dynamic, dtype=torch.float32),
        "counts": torch.tensor(list(counts.values())),
    }


def rows_of(prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor) -> Tensor:
    """Return the `FEATURES` of each growth in n states, (n, growths, features), in float32."""
    static = prepared["static"][models]
    share = (time_left_s.double() / time_budget_s.double()).clamp(0.0, 1.0).float()
    dynamic = torch.cat([share[:, None], prepared["dynamic"][models]], dim=1)
    return torch.cat([static, dynamic[:, None].expand(-1, static.shape[1], -1)], dim=2)
