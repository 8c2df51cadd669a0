"""Many of the paper's policy networks as one: the same arithmetic, each with weights of its own.

The paper's learner updates after each episode, so one run cannot be batched, and with three small LSTMs an update is
mostly overhead. Runs are independent, so their weights are stacked, and each operation is done for all of them at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

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
    ahead = _lstm(weights, "encoder.layers_forward", models.ahead)
    behind = _lstm(weights, "encoder.layers_backward", models.behind)
    turned = behind.gather(2, models.mirror[..., None].expand(-1, -1, -1, behind.shape[3]))
    hidden = _lstm(weights, "encoder.model", torch.cat([ahead, turned], dim=3))
    last = (models.lengths - 1)[:, :, None, None].expand(-1, -1, 1, hidden.shape[3])
    return hidden.gather(2, last).squeeze(2)


def decide(weights: Weights, model_encodings: Tensor, time_encodings: Tensor) -> Tensor:
    """Return logits (runs, states, outputs) for encodings (runs, states, 16) and (runs, states, 8)."""
    at = torch.cat([time_encodings, model_encodings], dim=2)
    for layer in _DECIDER_LAYERS:
        bias = weights[f"decider.{layer}.bias"][:, None]
        at = torch.baddbmm(bias, at, weights[f"decider.{layer}.weight"].transpose(1, 2))
        if layer != _DECIDER_LAYERS[-1]:
            at = torch.relu(at)
    return at


def _lstm(weights: Weights, name: str, inputs: Tensor) -> Tensor:
    """Do what `nn.LSTM` does, for each run: (runs, models, layers, features) → (runs, models, layers, hidden)."""
    runs, models, longest, features = inputs.shape
    of_input, of_hidden = weights[f"{name}.weight_ih_l0"], weights[f"{name}.weight_hh_l0"].transpose(1, 2)
    bias = (weights[f"{name}.bias_ih_l0"] + weights[f"{name}.bias_hh_l0"])[:, None]
    size = of_hidden.shape[1]
    given = torch.baddbmm(bias, inputs.reshape(runs, models * longest, features), of_input.transpose(1, 2))
    steps = given.view(runs, models, longest, 4 * size).unbind(2)
    hidden = inputs.new_zeros(runs, models, size)
    cell = hidden
    found = []
    for step in steps:
        gates = torch.baddbmm(step, hidden, of_hidden)
        entering, forgetting, candidate, leaving = gates.chunk(4, dim=2)
        cell = torch.sigmoid(forgetting) * cell + torch.sigmoid(entering) * torch.tanh(candidate)
        hidden = torch.sigmoid(leaving) * torch.tanh(cell)
        found.append(hidden)
    return torch.stack(found, dim=2)
