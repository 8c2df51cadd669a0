"""Many of the paper's policy networks as one: the same arithmetic, each with weights of its own.

The paper's learner updates after each episode, so one run cannot be batched, and with three small LSTMs an update is
mostly overhead. Runs are independent, so their weights are stacked, and each operation is done for all of them at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from espalier_agent.study.many_lstms import lstms

Weights = dict[str, Tensor]
"""By their name in a network's state dict, with the runs before their own dimensions."""
_DECIDER_LAYERS = (0, 2, 4)


def stacked(networks: Sequence[Mapping[str, Tensor]]) -> Weights:
    """Return the state dicts of networks of one shape as one, copied; they take gradients."""
    return {
        name: torch.stack([network[name].detach().clone() for network in networks]).requires_grad_()
        for name in networks[0]
    }


def unstacked(weights: Weights, run: int) -> dict[str, Tensor]:
    """Return the state dict of one run, copied."""
    return {name: value[run].detach().clone() for name, value in weights.items()}


class Models:
    """The models that each run's states have, as padded batches: what `encode` reads. Runs have equally many."""

    def __init__(self, embedded: Sequence[Sequence[Tensor]]) -> None:
        """`embedded`: for each run, its models, each as its layers' embeddings (layers, 16)."""
        runs, models = len(embedded), len(embedded[0])
        self.lengths = torch.tensor([[len(layers) for layers in of_run] for of_run in embedded])
        longest = int(self.lengths.max())
        size = embedded[0][0].shape[1]
        self.ahead = torch.zeros(runs, models, longest, size)
        self.behind = torch.zeros(runs, models, longest, size)
        places = torch.arange(longest).expand(runs, models, longest)
        mirrored = self.lengths[:, :, None] - 1 - places
        # Padding stays where it is.
        self.mirror = torch.where(mirrored >= 0, mirrored, places)
        for run, of_run in enumerate(embedded):
            for model, layers in enumerate(of_run):
                self.ahead[run, model, : len(layers)] = layers
                self.behind[run, model, : len(layers)] = layers.flip(0)


def encode(weights: Weights, models: Models) -> Tensor:
    """Encode all models of all runs, as `PolicyNetwork.encode` does for one: (runs, models, 16)."""
    # Both directions at once, as if they were other runs: few and many cost about the same.
    both = ("encoder.layers_forward", "encoder.layers_backward")
    ahead, behind = _lstm(weights, both, torch.cat([models.ahead, models.behind])).chunk(2, dim=1)
    turned = behind.gather(0, models.mirror.permute(2, 0, 1)[..., None].expand_as(behind))
    each = torch.cat([ahead, turned], dim=3).permute(1, 2, 0, 3)
    hidden = _lstm(weights, ("encoder.model",), each)
    last = (models.lengths - 1)[None, :, :, None].expand(1, -1, -1, hidden.shape[3])
    return hidden.gather(0, last).squeeze(0)


def decide(weights: Weights, model_encodings: Tensor, time_encodings: Tensor) -> Tensor:
    """Return logits (runs, states, outputs) for encodings (runs, states, 16) and (runs, states, 8)."""
    at = torch.cat([time_encodings, model_encodings], dim=2)
    for layer in _DECIDER_LAYERS:
        bias = weights[f"decider.{layer}.bias"][:, None]
        at = torch.baddbmm(bias, at, weights[f"decider.{layer}.weight"].transpose(1, 2))
        if layer != _DECIDER_LAYERS[-1]:
            at = torch.relu(at)
    return at


def _lstm(weights: Weights, names: Sequence[str], inputs: Tensor) -> Tensor:
    """Do what `nn.LSTM` does, for each run: (runs, models, layers, features) → (layers, runs, models, hidden).

    Of several `names`, the first runs are of the first name's weights, and so on.
    """

    def of(kind: str) -> Tensor:
        return torch.cat([weights[f"{name}.{kind}_l0"] for name in names])

    runs, models, longest, features = inputs.shape
    bias = (of("bias_ih") + of("bias_hh"))[:, None]
    given = torch.baddbmm(bias, inputs.reshape(runs, models * longest, features), of("weight_ih").transpose(1, 2))
    steps = given.view(runs, models, longest, -1).permute(2, 0, 1, 3).contiguous()
    return lstms(steps, of("weight_hh").transpose(1, 2).contiguous())
