"""The state of all random generators that training may draw from, without pickle."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's global generators: they belong to the process, as user code expects."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def capture(device: torch.device) -> tuple[dict[str, object], dict[str, Tensor]]:
    """Return (Python's and numpy's states as JSON types, torch's as tensors by `random.<device>`)."""
    numpy_state: dict[str, Any] = np.random.get_state(legacy=False)
    inner = {**numpy_state["state"], "key": numpy_state["state"]["key"].tolist()}
    tensors = {"random.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(device)
    return {"python": random.getstate(), "numpy": {**numpy_state, "state": inner}}, tensors


def restore(values: dict[str, Any], tensors: dict[str, Tensor], device: torch.device) -> None:
    """Set the generators to a captured state; one of a device that is not there is left alone."""
    version, state, gauss = values["python"]
    random.setstate((version, tuple(state), gauss))
    numpy_state = values["numpy"]
    inner = {**numpy_state["state"], "key": np.array(numpy_state["state"]["key"], dtype=np.uint32)}
    np.random.set_state({**numpy_state, "state": inner})
    # Cloned: torch reads a state from where its storage begins, and a view may begin later.
    torch.set_rng_state(tensors["random.cpu"].clone())
    if device.type == "cuda" and "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"].clone(), device)


@contextmanager
def kept(device: torch.device, seed: int | None = None) -> Iterator[Callable[[], bool]]:
    """Restore all generators afterwards, seeded with `seed` meanwhile; yields what tells whether one was drawn from."""
    before = capture(device)
    if seed is not None:
        seed_everything(seed)
    values, tensors = before if seed is None else capture(device)

    def drawn() -> bool:
        now, of_torch = capture(device)
        return now != values or any(not torch.equal(of_torch[name], state) for name, state in tensors.items())

    try:
        yield drawn
    finally:
        restore(*before, device)
