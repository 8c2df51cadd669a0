"""The network in torch, for learning: the same arithmetic as `network`, as a test checks."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from espalier_lab.scheduling.learned.description import OPTION_FEATURES
from espalier_lab.scheduling.learned.network import HIDDEN, MASKED, JobScorer, Weights, shapes


class Twin(nn.Module):
    """Trainable weights, and the value of each job, which is not used in serving."""

    def __init__(self, options: int, hidden: int = HIDDEN, seed: int = 0) -> None:
        """Draw weights from this seed."""
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.options, self.hidden = options, hidden
        self.weights = nn.ParameterDict()
        for name, shape in shapes(options, hidden).items():
            bound = 1 / math.sqrt(shape[-1])
            drawn = torch.zeros(shape) if name.endswith(("bias", "offset")) else torch.rand(shape, generator=generator)
            if not name.endswith(("bias", "offset")):
                drawn = (2 * drawn - 1) * bound
            self.weights[name.replace(".", "_")] = nn.Parameter(drawn)
        values = 2 * hidden + len(OPTION_FEATURES)
        self.value = nn.Sequential(nn.Linear(values, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        with torch.no_grad():
            for parameter in self.value.parameters():
                bound = 1 / math.sqrt(parameter.shape[-1])
                parameter.copy_((2 * torch.rand(parameter.shape, generator=generator) - 1) * bound)

    def forward(
        self, jobs: Tensor, options: Tensor, cluster: Tensor, present: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return scores (..., jobs × options + 1), as `JobScorer.scores`, and the value of each job (..., jobs)."""
        w = {name: self.weights[name.replace(".", "_")] for name in shapes(self.options, self.hidden)}
        context = cluster @ w["job.cluster"].T + w["job.bias"]
        encoded = torch.relu(jobs @ w["job.weight"].T + context.unsqueeze(-2))
        weight = present.unsqueeze(-1)
        pooled = (encoded * weight).sum(-2) / weight.sum(-2).clamp(min=1)
        pair = (encoded @ w["pair.job"].T + (pooled @ w["pair.pooled"].T).unsqueeze(-2)).unsqueeze(-2)
        pairs = torch.relu(options @ w["pair.option"].T + pair + w["pair.bias"])
        deep = torch.relu(pairs @ w["deep.weight"].T + w["deep.bias"])
        score = deep @ w["score.weight"] + options @ w["score.option"]
        stop = torch.relu(pooled @ w["stop.pooled"].T + cluster @ w["stop.cluster"].T + w["stop.bias"])
        last = (stop @ w["stop.weight"] + w["stop.offset"]).unsqueeze(-1)
        scores = torch.cat([score.flatten(-2), last], dim=-1).masked_fill(~mask, MASKED)
        around = pooled.unsqueeze(-2).expand_as(encoded)
        value = self.value(torch.cat([encoded, around, options.mean(-2)], dim=-1)).squeeze(-1)
        return scores, value * present

    def frozen(self) -> JobScorer:
        """Return the network for serving: a copy of the weights in numpy."""
        return JobScorer(
            {
                name: self.weights[name.replace(".", "_")].detach().cpu().numpy().astype(np.float32).copy()
                for name in shapes(self.options, self.hidden)
            }
        )

    @classmethod
    def of(cls, weights: Weights, options: int) -> Twin:
        """Return a twin with these weights; its values are initialised again."""
        twin = cls(options, weights["job.bias"].shape[0])
        with torch.no_grad():
            for name, value in weights.items():
                twin.weights[name.replace(".", "_")].copy_(torch.from_numpy(np.array(value)))
        return twin
