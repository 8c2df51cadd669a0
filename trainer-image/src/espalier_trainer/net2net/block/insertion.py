"""Runs of equal blocks: finding them, inserting copies of their blocks into a model, and closing or scaling the copies.

A run is children of one `nn.Sequential` or `nn.ModuleList`, next to each other, of one class and shape. Numbered
children of another module (`b1`, `b2`) may be a run, too: its forward decides. A run has at least one block. It is
named by the path of its first one. Blocks added by growth belong to the run that they continue, and layers grown inside
a block do not count, so names are the same before and after any growth.

Copies are inserted in one of two ways:

- Exact: the copy's closing parameters are zero, so it returns its input.
- Scaled: the whole run is copied, and the closing parameters of all its blocks, old ones too, are divided by 2, so that
  the copied run adds about as much to its input as the run did. The outputs change.

`torch.nn.Module`s are copied as they are: blocks have no common constructor. The model's records of the number and
places of its blocks change with them:

- `layer_idx` and the like in a block: its place, which caches use as a key.
- `num_layers` and the like in the modules around a list of blocks: the number of blocks.
- The `config` of a Hugging Face model, from which `from_pretrained` rebuilds it. The field that counts the list (a T5
  has two lists) is found by building the model from the changed config: it must have the grown model's tensors.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import nn

from espalier_core.growth.architecture import GrowthError
from espalier_trainer.net2net.blocks import STACK, GrownStack, InsertedBlock, added, base_class, mark_added
from espalier_trainer.net2net.modules import copied
from espalier_trainer.net2net.trace.operators import is_leaf

FUSED = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
"""Blocks that a trace records as one operation: in eval mode torch runs them as one."""


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Equal blocks next to each other in one container."""

    container: str
    keys: tuple[str, ...]
    """Names of the blocks in the container, in order; blocks added by growth come last."""
    grown: int
    """Number of these blocks that growth has added."""
    last: bool
    """Whether no module comes after them in the container."""
    indexed: bool
    """Whether the container's children may be read by name, so that names must stay."""
    listed: bool = True
    """Whether the container is a Sequential or a ModuleList, not a module of another class with numbered children."""

    @property
    def blocks(self) -> tuple[str, ...]:
        """Paths of the blocks."""
        return tuple(map(self._path, self.keys))

    @property
    def id(self) -> str:
        """Path of the first block."""
        return self._path(self.keys[0])

    @property
    def stem_and_number(self) -> tuple[str, int]:
        """Prefix of the next block's path, and the number that follows it.

        At the end of a container, numbering continues: `blocks.3`, `layer_3`. Elsewhere the modules that come after
        keep their names, and new blocks are named after the last block of the starting model: `2_added_0`.
        """
        numbered = re.fullmatch(r"(.*?)(\d+)", self.keys[-1])
        if self.last and numbered:
            return self._path(numbered[1]), int(numbered[2]) + 1
        first = self.keys[len(self.keys) - self.grown - 1]
        return self._path(f"{first}_added_"), self.grown

    def _path(self, key: str) -> str:
        return f"{self.container}.{key}" if self.container else key


def candidates(model: nn.Module) -> Iterator[BlockRun]:
    """Yield the runs of modules that have parameters and are not single layers, outer containers first."""
    found = [
        (path, module)
        for path, module in model.named_modules()
        if not isinstance(module, GrownStack | InsertedBlock)
        and not is_leaf(module)
        and f".{STACK}." not in f".{path}."
    ]
    for path, container in sorted(found, key=lambda one: one[0].count(".") if one[0] else -1):
        yield from _runs_of(path, container)


def _runs_of(path: str, container: nn.Module) -> Iterator[BlockRun]:
    listed = isinstance(container, nn.Sequential | nn.ModuleList)
    children = [(key, child) for key, child in container.named_children() if key != STACK]
    place = 0
    for signature, group in groupby(children, key=lambda one: _signature(one[1])):
        members = list(group)
        place += len(members)
        named = isinstance(container, nn.ModuleDict) or members[-1][0][-1:].isdecimal()
        if signature is not None and (listed or named):
            yield BlockRun(
                container=path,
                keys=tuple(key for key, _ in members),
                grown=sum(added(block) is not None for _, block in members),
                last=place == len(children),
                indexed=not isinstance(container, nn.Sequential),
                listed=listed,
            )


def _signature(module: nn.Module) -> object:
    """Return the properties that equal blocks share; None for a layer, a stage or a module without parameters.

    Buffers may differ: a shifted window has a mask.
    """
    if (is_leaf(module) and not isinstance(module, FUSED)) or not any(True for _ in module.parameters()):
        return None
    if _lists_blocks(module):
        return None
    shapes = tuple(
        (name, tuple(tensor.shape)) for name, tensor in module.named_parameters() if f".{STACK}." not in f".{name}."
    )
    return base_class(module), shapes


def _lists_blocks(module: nn.Module) -> bool:
    """Return whether a module is a stage: a sequence of equal blocks, whose blocks can be repeated, but not itself."""
    if type(module).forward is not nn.Sequential.forward or isinstance(module, GrownStack):
        return False
    return any(len(run.keys) > 1 or run.keys == tuple(module._modules) for run in _runs_of("", module))


SCALE = 0.5
"""Factor of the closing parameters where the run becomes twice as long."""


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """A run of blocks that can be continued."""

    run: BlockRun
    reads: tuple[str, ...]
    """For each call, the operation whose output the last block passes on."""
    gives: tuple[str, ...]
    """For each call, the operation whose output the last block returns."""
    first: tuple[str, ...]
    """For each call, the operation whose output the first block of the run passes on."""
    entry: int
    """Index, among the tensors of a block's arguments, of the one that the block passes on."""
    closing: tuple[frozenset[str], ...]
    """Names of the closing parameters within each block of the run."""
    exact: bool = True

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.run.id

    def new(self, *, whole: bool) -> dict[str, str]:
        """Return the path of each block that the next growth copies, with the path of its copy."""
        stem, number = self.run.stem_and_number
        blocks = self.run.blocks if whole else self.run.blocks[-1:]
        return {block: f"{stem}{number + place}" for place, block in enumerate(blocks)}


def add_blocks(model: nn.Module, place: BlockPlace, *, whole: bool, scale: float = SCALE) -> tuple[str, ...]:
    """Continue a run of `model`, in place, by copies of the last block or of all blocks; return the copies' paths.

    With `whole`, the closing parameters of the run are multiplied by `scale`; otherwise the copy is closed. Raises
    `GrowthError` where a block cannot be copied, or where the recorded number of blocks cannot be updated.
    """
    new = place.new(whole=whole)
    container = model.get_submodule(place.run.container)
    length = len(place.run.keys)
    after = place.run.keys[-1]
    for original, target in new.items():
        block = copied(model.get_submodule(original))
        mark_added(block, place.entry)
        key = target.rpartition(".")[2]
        _insert(container, after, key, block)
        after = key
    if whole:
        for path, names in zip(place.run.blocks, place.closing, strict=True):
            multiply(model.get_submodule(path), names, scale)
            multiply(model.get_submodule(new[path]), names, scale)
    else:
        multiply(container.get_submodule(after), place.closing[-1], 0.0)
    count(model, place.run.container, length, tuple(new.items()))
    return tuple(new.values())


@torch.no_grad()
def multiply(block: nn.Module, names: Iterable[str], factor: float) -> None:
    """Multiply parameters of a block; a factor of 0 clears non-finite values, too."""
    for name in names:
        parameter = block.get_parameter(name)
        parameter.zero_() if factor == 0 else parameter.mul_(factor)


def _insert(container: nn.Module, after: str, key: str, block: nn.Module) -> None:
    """Make `block` the child `key` of a container, next to the child `after`."""
    container.add_module(key, block)
    children: Mapping[str, nn.Module | None] = dict(container._modules)
    container._modules.clear()
    for name, child in children.items():
        if name != key:
            container._modules[name] = child
        if name == after:
            container._modules[key] = block


PLACES = ("layer_idx", "layer_id", "layer_index", "layer_number", "layer_num", "block_idx", "block_id")
"""Attributes of a module that hold the index of its block in the list."""

COUNTS = (
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth"),
    *("num_decoder_layers", "num_encoder_layers", "encoder_layers", "decoder_layers"),
)
"""Attributes of a module or a config that hold the number of blocks."""


def count(model: nn.Module, container: str, length: int, new: Sequence[tuple[str, str]]) -> None:
    """Update the model's records after blocks were added to a run of `length` blocks; `new` pairs originals and copies.

    Raises `GrowthError` where the model has a config and no change of it describes the grown model.
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
    """Return the config of a Hugging Face model; None for another module."""
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
    """Raise `GrowthError` where the caches of a generating model would have fewer places than the model has blocks.

    `transformers` 5 sizes caches by the `num_hidden_layers` of `get_text_config(decoder=True)`. For a T5 that is the
    number of encoder blocks: with a longer decoder `generate` fails, even on a model that was built that way.
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
    """Yield the fields that may hold the number of blocks."""
    for name in COUNTS:
        value = getattr(config, name, None)
        if value == before and type(value) is int:
            yield name


def _changed(config: Any, count: str, before: int, originals: Sequence[int]) -> Any:
    """Raise a config's count by the copies, and repeat the originals' entries in its lists of one entry per block."""
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == before and "layer" in name and _is_a_kind_each(value):
            setattr(config, name, [*value, *(value[place] for place in originals)])
    setattr(config, count, before + len(originals))
    return config


def _is_a_kind_each(value: list[Any]) -> bool:
    """Return whether a list holds the kind of each block (`full_attention`, a flag) rather than other numbers."""
    return all(isinstance(one, str) or one in (0, 1) for one in value)


def _built(kind: type[nn.Module], config: Any, inside: str) -> dict[str, tuple[int, ...]] | None:
    """Return the tensor shapes of a model built from a config on the meta device; None where it cannot be built."""
    try:
        with torch.device("meta"):
            built = kind(config)
    # A constructor may raise anything for a config that does not fit.
    except Exception:
        return None
    return _tensors(built, inside)


def _tensors(model: nn.Module, container: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in a container, without tensors that growth has added within blocks."""
    return {
        name: tuple(tensor.shape)
        for name, tensor in model.state_dict().items()
        if name.startswith(f"{container}.") and f".{STACK}." not in name
    }
