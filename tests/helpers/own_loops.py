"""Loops of a user's own in the process of a test: what scripts do, their job's file, and what was recorded of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from espalier_core.types.events import EVENT
from espalier_trainer.elastic.states import StateCopy
from espalier_trainer.user_loop.state import UserState

DATA = TensorDataset(torch.arange(24.0).view(12, 2) / 24, torch.zeros(12, dtype=torch.int64))


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the mean loss of a batch of inputs and labels."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def trained(
    loop: Any,
    batches: Any,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    epochs: int,
    after: Callable[[], object] = lambda: None,
) -> list[float]:
    """Take a step for each batch, and call `after` each of them; returns their losses."""
    losses = []
    for _ in loop.epochs(epochs):
        for batch in batches:
            optimizer.zero_grad()
            losses.append(loop.backward(loss_of(model, batch)))
            optimizer.step()
            after()
    return losses


class Shadow:
    """An average of the weights as many scripts have it: a dictionary by parameter name."""

    def __init__(self, model: nn.Module) -> None:
        """Begin with the weights of the model."""
        self.decay, self.shadow = 0.9, {name: each.detach().clone() for name, each in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        """Take a step towards the weights."""
        for name, each in model.named_parameters():
            self.shadow[name].lerp_(each.detach(), 1 - self.decay)

    def state_dict(self) -> dict[str, Any]:
        """Return the average."""
        return {"decay": self.decay, "shadow": self.shadow}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up an average."""
        self.shadow = {name: each.clone() for name, each in state["shadow"].items()}


def change_job(folder: Path, **parts: dict[str, Any]) -> None:
    """Change fields of the job in `job.json`, by the part of its spec."""
    job = json.loads((folder / "job.json").read_text())
    for part, fields in parts.items():
        job["spec"][part] = job["spec"].get(part, {}) | fields
    (folder / "job.json").write_text(json.dumps(job))


def recorded(folder: Path, kind: str) -> list[Any]:
    """Return the events of a kind in `events.jsonl`."""
    events = [EVENT.validate_json(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event for event in events if event.type == kind]


def held_copy(state: UserState, make_checkpoint: Callable[..., Any], **fields: Any) -> StateCopy:
    """Return a copy of the state as the checkpoint of `make_checkpoint` holds it, with other fields."""
    held = StateCopy(state)
    known = {"schedule": state.state(), "optimizer_groups": (), **fields}
    held.note(make_checkpoint().state.model_copy(update=known))
    return held
