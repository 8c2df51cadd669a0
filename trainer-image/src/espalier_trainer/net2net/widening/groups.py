"""Widening groups of a model, and widening in place. Trials are in `trial`.

The arithmetic is that of Chen, Goodfellow, Shlens, "Net2Net" (2016), section 2.2. A wider layer has the old units and
random copies of them (equation 4's map g); incoming weights are copied, outgoing weights divided among the copies
(equation 6) so that their sum is unchanged. The paper divides equally; with deterministic training the copies then stay
equal forever. Here the shares differ (Wang et al., "LEMON", 2024), which needs no noise and keeps the function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from espalier_core.growth.architecture import GrowthError
from espalier_trainer.net2net.refusals import Refusal, refusal, why_parametrized, why_transposed
from espalier_trainer.net2net.trace.graph import Graph, Operation
from espalier_trainer.net2net.trace.operators import LAYER_CLASSES
from espalier_trainer.net2net.widening.flow import Flow
from espalier_trainer.net2net.widening.spaces import Edit, Layout, Resize, Segment

_UNIT = 2.0**-20
"""Unit of all shares: its multiples are exact in float32 and sum to exactly 1, so each product is rounded once."""


@dataclass(frozen=True, eq=False)
class Replication:
    """A widening of `width` channels: for each new channel the old channel that it copies, and its share."""

    width: int
    source: Tensor
    """The map g, int64."""
    share: Tensor
    """Shares, float64; those of one old channel's copies sum to 1, and no two of them are equal."""

    def __len__(self) -> int:
        return len(self.source)


def replicate(width: int, new_width: int, *, blocks: int = 1, even: bool = False, seed: int) -> Replication:
    """Return a random widening, the same for the same seed on every machine.

    `blocks` is the number of equal parts of the channels; each part copies only its own channels. `even` repeats
    every channel equally often, with adjacent copies, and so needs a multiple of `width`.
    """
    generator = torch.Generator().manual_seed(seed)
    if even:
        source = torch.arange(width).repeat_interleave(new_width // width)
    else:
        part, new_part = width // blocks, new_width // blocks
        kept = torch.arange(part).expand(blocks, part)
        drawn = torch.randint(part, (blocks, new_part - part), generator=generator)
        source = (torch.cat([kept, drawn], 1) + part * torch.arange(blocks)[:, None]).flatten()
    return Replication(width, source, _shares(source, width, generator))


def _shares(source: Tensor, width: int, generator: torch.Generator) -> Tensor:
    copies = torch.bincount(source, minlength=width)
    order = torch.argsort(source, stable=True)
    first = torch.cumsum(copies, 0) - copies
    rank = torch.empty_like(source)
    rank[order] = torch.arange(len(source)) - first[source[order]]
    jitter = torch.rand(len(source), generator=generator, dtype=torch.float64)
    # Ranks separate the shares of a channel's copies, by at least a sixth of the mean for two copies.
    weight = 0.5 + (rank + 0.5 * jitter) / copies[source]
    total = torch.zeros(width, dtype=torch.float64).index_add_(0, source, weight)
    share = torch.floor(weight / total[source] / _UNIT) * _UNIT
    rest = 1 - torch.zeros(width, dtype=torch.float64).index_add_(0, source, share)
    last = rank == copies[source] - 1
    share[last] += rest[source[last]]
    return share


def gathered(values: Tensor, dim: int, index: Tensor, factor: Tensor | None = None, groups: int = 1) -> Tensor:
    """Return `values` with entry `index[k]` along `dim` at place k, times `factor[k]`.

    With `groups`, dimension 0 has that many parts, and part b is made from the b-th part of `index` alone, whose
    entries lie in the b-th part of the whole axis (a grouped convolution's inputs).
    """
    exact = torch.promote_types(values.dtype, torch.float32)
    index = index.to(values.device)
    scale = None if factor is None else factor.to(values.device, exact)
    length = values.shape[dim]
    parts = []
    for number, rows in enumerate(values.chunk(groups) if groups > 1 else [values]):
        own = slice(number * len(index) // groups, (number + 1) * len(index) // groups)
        part = rows.index_select(dim, index[own] - number * length)
        if scale is not None:
            shape = [1] * part.dim()
            shape[dim] = -1
            wanted = scale[own].view(shape)
            part = part.mul_(wanted) if part.dtype == exact else (part.to(exact) * wanted).to(part.dtype)
        parts.append(part)
    result = parts[0] if groups == 1 else torch.cat(parts)
    if values.dim() == 4 and not values.is_contiguous() and values.is_contiguous(memory_format=torch.channels_last):
        return result.contiguous(memory_format=torch.channels_last)
    return result


def along(parts: Sequence[tuple[int, int, Replication | None]]) -> tuple[Tensor, Tensor]:
    """Return index and share of an axis composed of consecutive parts `(channels, repeat, replication)`."""
    indices, shares, offset = [], [], 0
    for channels, repeat, replication in parts:
        source = torch.arange(channels) if replication is None else replication.source
        share = torch.ones(channels, dtype=torch.float64) if replication is None else replication.share
        indices.append((offset + source[:, None] * repeat + torch.arange(repeat)).flatten())
        shares.append(share.repeat_interleave(repeat))
        offset += channels * repeat
    return torch.cat(indices), torch.cat(shares)


@dataclass(frozen=True)
class WideningGroup:
    """Channels that can only change together, and the tensors and attributes that change with them."""

    id: str
    """Path of the first layer that produces the channels."""
    width: int
    multiple_of: int
    """Number of which a new width must be a multiple."""
    even: bool
    """Whether a norm takes its mean over the channels, so that each must be repeated equally often."""
    makers: tuple[str, ...]
    """Layers that produce the channels as their outputs."""
    space: int
    edits: tuple[Edit, ...]
    resizes: tuple[Resize, ...]

    @property
    def readers(self) -> tuple[str, ...]:
        """Weights whose columns read the channels."""
        return tuple(edit.paths[0] for edit in self.edits if edit.split)

    @property
    def followers(self) -> tuple[str, ...]:
        """Modules that map each channel to itself: norms, depthwise convolutions, scales; may include producers."""
        return tuple(
            dict.fromkeys(path.rpartition(".")[0] for edit in self.edits if not edit.split for path in edit.paths)
        )

    @property
    def next_width(self) -> int:
        """The smallest width that the group can be widened to."""
        return self.width + self.multiple_of

    def check(self, model: nn.Module) -> None:
        """Raise `GrowthError` unless the model has the group's tensors with the same sizes."""
        for edit in self.edits:
            for path in edit.paths:
                owner, _, name = path.rpartition(".")
                try:
                    tensor = cast(Tensor, getattr(model.get_submodule(owner), name))
                except AttributeError as error:
                    raise GrowthError(f"the model has no {path!r}; find the widening groups of this model") from error
                wanted = sum(one.width for one in edit.segments) // (edit.groups if edit.split else 1)
                if tensor.shape[edit.dim] != wanted:
                    raise GrowthError(
                        f"{path!r} has {tensor.shape[edit.dim]} entries along dimension {edit.dim}, and its group was "
                        f"found for {wanted}; ask the model for its widening groups again"
                    )

    def replication(self, new_width: int, seed: int) -> Replication:
        """Return the old channel and the share of each new one; raise `GrowthError` if the width is impossible."""
        if new_width <= self.width or new_width % self.multiple_of:
            cause = "a norm over its channels, exact where each is repeated equally often" if self.even else "groups"
            why = f" (because of {cause})" if self.multiple_of > 1 else ""
            raise GrowthError(
                f"{self.id!r} has {self.width} channels and cannot be widened to {new_width}; "
                f"give a multiple of {self.multiple_of} above {self.width}{why}"
            )
        blocks = 1 if self.even else self.multiple_of
        return replicate(self.width, new_width, blocks=blocks, even=self.even, seed=seed)


@dataclass(frozen=True)
class Groups:
    """All widening groups of a model in execution order, and the refusals of other channels."""

    found: tuple[WideningGroup, ...]
    refused: dict[str, Refusal]
    layouts: Mapping[str, Layout]
    """Position of the channels in each operation's output that has any."""

    def get(self, group_id: str) -> WideningGroup:
        """Return the group with this id; raise `GrowthError` with the refusal's reason, or with the known ids."""
        for group in self.found:
            if group.id == group_id:
                return group
        for group in self.found:
            if group_id in group.makers or group_id in group.followers:
                raise GrowthError(f"{group_id!r} changes together with {group.id!r}; name that group instead")
        if group_id in self.refused:
            raise GrowthError(f"{group_id!r} cannot be widened: {self.refused[group_id]}")
        known = ", ".join(group.id for group in self.found) or "none"
        raise GrowthError(f"{group_id!r} is not a widening group of this model; its groups: {known}")

    def without(self, model: nn.Module, failed: Mapping[str, str]) -> Groups:
        """Return the groups without those that failed a trial, which are refused with the reasons."""
        reasons = {maker: failed[group.id] for group in self.found if group.id in failed for maker in group.makers}
        found = tuple(group for group in self.found if group.id not in failed)
        return Groups(found, self.refused | _refusals(model, reasons), self.layouts)

    def widened_shape(self, operation: Operation, widening: Mapping[int, Replication]) -> tuple[int, ...] | None:
        """Return the shape of an operation's output when spaces are widened."""
        layout = self.layouts.get(operation.name)
        if layout is None or operation.shape is None:
            return operation.shape
        width = sum(_new_width(segment, widening) for segment in layout.segments)
        return (*operation.shape[: layout.axis], width, *operation.shape[layout.axis + 1 :])


def find_groups(model: nn.Module, graph: Graph) -> Groups:
    """Return the groups of `model`, derived from the shapes in its trace `graph`; they have not been tried yet."""
    if graph.data_dependent:
        raise GrowthError(
            f"{type(model).__name__} branches on a tensor's values ({graph.data_dependent}), so "
            "its channels cannot be followed; compute both branches and choose with torch.where"
        )
    flow = Flow(model, graph)
    spaces = flow.spaces
    makers: dict[int, list[str]] = {}
    for space, layers in flow.makers.items():
        makers.setdefault(spaces.root(space), []).extend(layers)
    refused = {
        layer: spaces.reason(root) or "" for root, layers in makers.items() if spaces.reason(root) for layer in layers
    }
    refused |= {
        path: "it is not called by itself in the model's forward"
        for path, module in model.named_modules()
        if isinstance(module, LAYER_CLASSES) and path not in graph.calls
    }
    refused |= {
        path: why
        for path, module in model.named_modules()
        if isinstance(module, LAYER_CLASSES) and path in graph.calls and (why := why_parametrized(path, module))
    }
    refused |= why_transposed(dict(model.named_modules()))
    open_spaces = {root: layers[0] for root, layers in makers.items() if spaces.reason(root) is None}
    edits, resizes = flow.book.named(open_spaces)
    found = []
    for root, name in open_spaces.items():
        mine = tuple(edit for edit in edits if _has(edit.segments, root))
        if not any(edit.split for edit in mine):
            refused |= dict.fromkeys(makers[root], "no layer reads its channels")
            continue
        even = spaces.even(root)
        width = spaces.channels(root)
        found.append(
            WideningGroup(
                id=name,
                width=width,
                multiple_of=width if even else spaces.blocks(root),
                even=even,
                makers=tuple(makers[root]),
                space=root,
                edits=mine,
                resizes=tuple(one for one in resizes if _has(one.segments, root)),
            )
        )
    widened = {group.space for group in found}
    for path, given in flow.depthwise.items():
        roots = [spaces.root(segment.space) for segment in given if segment.space is not None]
        if not widened & set(roots):
            reasons = [reason for root in roots if (reason := spaces.reason(root))]
            refused[path] = reasons[0] if reasons else "its channels are those of its input, whose number is fixed"
    return Groups(tuple(found), _refusals(model, refused), flow.named_layouts(open_spaces))


def _refusals(model: nn.Module, reasons: Mapping[str, str]) -> dict[str, Refusal]:
    return {path: refusal(model, path, why, _REMEDY) for path, why in reasons.items()}


_REMEDY = "give its channels a separate layer on the way there, or widen another group"
"""Remedy where a reason names none."""


@torch.no_grad()
def apply_in_place(model: nn.Module, widened: Mapping[WideningGroup, Replication]) -> None:
    """Widen groups of `model` together; tied parameters stay tied."""
    replications = {group.space: replication for group, replication in widened.items()}
    for edit in dict.fromkeys(edit for group in widened for edit in group.edits):
        owner, _, name = edit.paths[0].rpartition(".")
        old = cast(Tensor, getattr(model.get_submodule(owner), name))
        values = edited(old, edit, replications)
        new = nn.Parameter(values, old.requires_grad) if isinstance(old, nn.Parameter) else values
        for path in edit.paths:
            owner, _, name = path.rpartition(".")
            module = model.get_submodule(owner)
            held: Any = module._parameters if name in module._parameters else module._buffers
            held[name] = new
    for one in dict.fromkeys(one for group in widened for one in group.resizes):
        module = model.get_submodule(one.module)
        size = sum(_new_width(segment, replications) for segment in one.segments)
        before = getattr(module, one.attribute)
        setattr(module, one.attribute, (size,) if isinstance(before, tuple) else size)


def edited(old: Tensor, edit: Edit, replications: Mapping[int, Replication], moment: int | None = None) -> Tensor:
    """Return a tensor with one axis widened.

    For values, copies on a summed axis get their shares. For an optimizer's moments (`moment` is the power of the
    gradient, 0 to 2) it is reversed: the gradient of an outgoing weight is unchanged, and that of an incoming weight is
    multiplied by its share.
    """
    index, share = along([(one.channels, one.repeat, _replication(one, replications)) for one in edit.segments])
    power = int(edit.split) if moment is None else 0 if edit.split else moment
    return gathered(old, edit.dim, index, share**power if power else None, edit.groups if edit.split else 1)


def _replication(segment: Segment, replications: Mapping[int, Replication]) -> Replication | None:
    return None if segment.space is None else replications.get(segment.space)


def _new_width(segment: Segment, replications: Mapping[int, Replication]) -> int:
    replication = _replication(segment, replications)
    return segment.width if replication is None else len(replication) * segment.repeat


def _has(segments: tuple[Segment, ...], space: int) -> bool:
    return any(segment.space == space for segment in segments)
