"""State of all random generators that training may draw from, without pickle, and of those held by a model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch: they belong to the process, as user code expects."""
    random.seed(seed)
    np.random.seed(seed)
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # `manual_seed` records the stack for each kind of accelerator that may appear: half a millisecond
        torch.default_generator.manual_seed(seed)


def capture(device: torch.device) -> tuple[dict[str, object], dict[str, Tensor]]:
    """Return (states of Python and numpy as JSON types, states of torch as tensors by `random.<device>`)."""
    numpy_state: dict[str, Any] = np.random.get_state(legacy=False)
    inner = {**numpy_state["state"], "key": numpy_state["state"]["key"].tolist()}
    tensors = {"random.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(device)
    return {"python": random.getstate(), "numpy": {**numpy_state, "state": inner}}, tensors


def restore(values: dict[str, Any], tensors: dict[str, Tensor], device: torch.device) -> None:
    """Set the generators to a captured state; skip that of a device that is missing."""
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
def kept(
    device: torch.device, seed: int | None = None, *, model: nn.Module | None = None
) -> Iterator[Callable[[], bool]]:
    """Restore all generators, also those held by modules of `model`, afterwards; seed them first if `seed` is given.

    Yields a function that returns whether one of them was drawn from.
    """
    own = [] if model is None else _held(model)
    before, states = capture(device), [_state(one) for one in own]
    if seed is not None:
        seed_everything(seed)
        for one in own:
            _seed(one, seed)
    values, tensors = before if seed is None else capture(device)
    first = [_comparable(one) for one in own]

    def drawn() -> bool:
        now, of_torch = capture(device)
        return (
            now != values
            or any(not torch.equal(of_torch[name], state) for name, state in tensors.items())
            or first != [_comparable(one) for one in own]
        )

    try:
        yield drawn
    finally:
        restore(*before, device)
        for one, state in zip(own, states, strict=True):
            _restore(one, state)


def _held(model: nn.Module) -> list[Any]:
    """Return the generators in the attributes of a model's modules, and in lists and dictionaries there."""
    found: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            several = (
                value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
            )
            for one in several:  # most are empty, and growth runs this often over all modules
                if isinstance(one, _GENERATORS):
                    found[id(one)] = one
    return [one for one in found.values() if not isinstance(one, random.SystemRandom)]


_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


def _state(generator: Any) -> Any:
    match generator:
        case random.Random():
            return generator.getstate()
        case np.random.Generator():
            return generator.bit_generator.state
        case _:
            return generator.get_state()


def _comparable(generator: Any) -> Any:
    """Return a generator's state in a form that `==` compares."""
    state = _state(generator)
    return state.tolist() if isinstance(state, Tensor) else repr(state)


def _restore(generator: Any, state: Any) -> None:
    match generator:
        case random.Random():
            generator.setstate(state)
        case np.random.Generator():
            generator.bit_generator.state = state
        case _:
            generator.set_state(state)


def _seed(generator: Any, seed: int) -> None:
    match generator:
        case torch.Generator():
            generator.manual_seed(seed)
        case np.random.Generator():
            generator.bit_generator.state = type(generator.bit_generator)(seed).state
        case _:
            generator.seed(seed)
