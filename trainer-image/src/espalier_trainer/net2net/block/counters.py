"""What a model knows of the number and the places of its blocks, besides the blocks themselves.

- `layer_idx` and the like in a block: its place, by which caches tell blocks apart.
- `num_layers` and the like in the modules around a list of blocks: how many there are.
- The `config` of a Hugging Face model, by which `from_pretrained` builds it again. Which of its fields counts the list
  (a T5 has two lists) is found by building the model from the changed config: it must have the grown model's tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from espalier_core.growth.architecture import GrowthError
from espalier_trainer.net2net.blocks import STACK

PLACES = ("layer_idx", "layer_id", "layer_index", "layer_number", "layer_num", "block_idx", "block_id")
"""Attributes of a module that say which block of the list it belongs to."""

COUNTS = (
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth"),
    *("num_decoder_layers", "num_encoder_layers", "encoder_layers", "decoder_layers"),
)
"""Attributes of a module or a config that say how many blocks there are."""


def count(model: nn.Module, container: str, length: int, new: Sequence[tuple[str, str]]) -> None:
    """Let the model know that blocks were added to a run of `length` blocks: pairs of originals and copies, by path.

    Raises `GrowthError` where a config describes the model, and no change of it describes the grown one.
    """
    blocks = model.get_submodule(container)
    keys = list(blocks._modules)
    total = len(keys)
    for original, target in new:
        old, now = (keys.index(path.rpartition(".")[2]) for path in (original, target))
        for module in model.get_submodule(target).modules():
            for name in PLACES:
                if vars(module).get(name) == old and not isinstance(vars(module)[name], bool):
                    setattr(module, name, now)
    before = total - len(new)
    around = list(_around(model, container))
    owner = next((module for _, module in reversed(around) if not isinstance(module, _CONTAINERS)), model)
    for holder in (owner, *(vars(owner).get(name) for name in ("config", "cfg", "args"))):
        if hasattr(holder, "__dict__") and _config(holder) is None and not hasattr(holder, "to_dict"):
            for name in COUNTS:
                if type(vars(holder).get(name)) is int and vars(holder)[name] in (before, length):
                    setattr(holder, name, vars(holder)[name] + len(new))
    described = [(path, module) for path, module in around if _config(module) is not None]
    if described:
        originals = [keys.index(path.rpartition(".")[2]) for path, _ in new]
        _configure(described, container, before, originals)


_CONTAINERS = (nn.ModuleDict, nn.ModuleList, nn.Sequential)


def _around(model: nn.Module, container: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that hold the container, outermost first; a model that is its own container comes alone."""
    parts = container.split(".") if container else [""]
    for depth in range(len(parts)):
        path = ".".join(parts[:depth])
        yield path, model.get_submodule(path)


def _config(module: object) -> Any:
    """Return the config of a Hugging Face model."""
    config = getattr(module, "config", None)
    return config if hasattr(config, "to_dict") and hasattr(type(module), "save_pretrained") else None


def _configure(
    described: Sequence[tuple[str, nn.Module]], container: str, before: int, originals: Sequence[int]
) -> None:
    (path, outer), *inner = described
    inside = container.removeprefix(f"{path}.") if path else container
    wanted = _tensors(outer, inside)
    config = _config(outer)
    for name in _choices(config, before):
        if _built(type(outer), _changed(copy.deepcopy(config), name, before, originals), inside) == wanted:
            break
    else:
        raise GrowthError(
            f"the config of {type(outer).__name__} counts its blocks in a way that is not known (looked for "
            f"{', '.join(COUNTS)} of {before}), so the grown model could not be loaded; grow another part"
        )
    _changed(config, name, before, originals)
    _check_cache(outer, config, name)
    done = {id(config)}
    for _, module in inner:
        own = _config(module)
        if id(own) not in done:
            done.add(id(own))
            for name in list(_choices(own, before))[:1]:
                _changed(own, name, before, originals)


def _check_cache(model: nn.Module, config: Any, name: str) -> None:
    """Raise `GrowthError` where the caches of a model that generates would have fewer places than it has blocks.

    `transformers` 5 makes caches by the `num_hidden_layers` of `get_text_config(decoder=True)`. A T5's is the number of
    its encoder's blocks: with a longer decoder, `generate` fails, of a model that was built so from the start, too.
    """
    if "decoder" not in name or not hasattr(model, "generate"):
        return
    places = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)
    if places is not None and places < getattr(config, name):
        raise GrowthError(
            f"{type(model).__name__} would have {getattr(config, name)} decoder blocks, but `transformers` makes its "
            f"caches for {places}, as many as the encoder has; add a block to the encoder before"
        )


def _choices(config: Any, before: int) -> Iterator[str]:
    """Yield the fields that may count the blocks."""
    for name in COUNTS:
        value = getattr(config, name, None)
        if value == before and type(value) is int:
            yield name


def _changed(config: Any, count: str, before: int, originals: Sequence[int]) -> Any:
    """Count copies of the originals in a field of a config, and repeat their entries in its lists of one a block."""
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == before and "layer" in name and _is_a_kind_each(value):
            setattr(config, name, [*value, *(value[place] for place in originals)])
    setattr(config, count, before + len(originals))
    return config


def _is_a_kind_each(value: list[Any]) -> bool:
    """Return whether a list says of what kind each block is (`full_attention`, a flag), and is no list of numbers."""
    return all(isinstance(one, str) or one in (0, 1) for one in value)


def _built(kind: type[nn.Module], config: Any, inside: str) -> dict[str, tuple[int, ...]] | None:
    """Return the tensors of a model that is built from a config, on the meta device; None where it cannot be."""
    try:
        with torch.device("meta"):
            built = kind(config)
    # Whatever a constructor raises for a config that does not fit.
    except Exception:
        return None
    return _tensors(built, inside)


def _tensors(model: nn.Module, container: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in a container, without those that growth has added within blocks."""
    return {
        name: tuple(tensor.shape)
        for name, tensor in model.state_dict().items()
        if name.startswith(f"{container}.") and f".{STACK}." not in name
    }
