"""The time and the error of growth at every growth point and of widening, against what was published.

*Deepening*: ours is `deepen` with its defaults. The published insertion (Lamelas, section 4.3) inserts convolution +
batch norm with mean 0, variance 1, gamma 1 where the model has a batch norm. It uses the same code to change the model
here, so only the inserted layers differ. Times are medians over the points. `deepen` makes a deep copy of the model and
grows the copy; the two are timed separately.

*Widening* first a convolution, a batch norm, a ReLU and a convolution, 16 x 16 maps of a batch of 2: `widen` by a group
that `widening_groups` found, by the group's id, and the published widening of the same layers (Chen et al. 2016,
equations 4 and 6: random copies, outgoing weights divided equally) with the batch norm of a new channel as Lamelas's
program makes it, mean 0, variance 1, gamma 1, beta 0. The batch norm has the batch's statistics, its gamma and beta are
random. Then every group of the models: the time to widen one (median over the groups), and the error with all groups
widened together by half. Batch norm over few values (in train mode) and depth multiply rounding: `reordered` is the
error of the same model with its channels in another order, which computes the same sums; `float64` is the error of the
wider model there.

An error is the greatest absolute difference over a batch of 4, relative to the greatest absolute output, in float32
unless stated otherwise, with one thread, without dropout and stochastic depth. The models have torchvision's full width
and initial weights (zeros made random), and running statistics from one batch. Times are without garbage collection (as
in `timeit`). Not reported: the time of a training step after growth, which depends on what is grown.
"""

from __future__ import annotations

import argparse
import copy
import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torchvision import models
from torchvision.ops import StochasticDepth

from bench.command import Option
from bench.printing import Columns, Parts, Table, progress
from espalier_trainer.net2net import Insertion, WideningGroup, deepen, widen, widening_groups
from espalier_trainer.net2net.deepening.deepen import deepen_in_place, insertion_points
from espalier_trainer.net2net.deepening.points import InsertionPoint
from espalier_trainer.net2net.widening.groups import Replication, apply_in_place

T = TypeVar("T")
Row = dict[str, Any]

MODELS: dict[str, dict[str, object]] = {
    "resnet18": {},
    "resnet50": {},
    "vgg11_bn": {},
    "mobilenet_v2": {},
    "densenet121": {},
    "googlenet": {"init_weights": False},
    "efficientnet_b0": {},
    "convnext_tiny": {},
    "regnet_y_400mf": {},
    "shufflenet_v2_x0_5": {},
    "vit_b_16": {"image_size": 64},
}


OPTIONS = {
    "models": Option(list(MODELS), "only these models", tuple(MODELS)),
    "size": Option(64, "height and width of the images"),
}
QUICK = {"models": ["resnet18"]}
POINTS: Columns = (
    ("model", "model", ""),
    ("points", "points", ""),
    ("deepen", "deepen_ms", ".1f"),
    ("+ copy", "copy_ms", ".1f"),
    ("ours, eval", "ours_eval", ".1e"),
    ("train", "ours_train", ".1e"),
    ("published at", "published_points", ""),
    ("eval", "published_eval", ".1e"),
    ("train", "published_train", ".1e"),
)
"""The figures of one model; errors are the worst over its points, times medians in milliseconds. The published one is
defined and differs at some points: the block has a batch norm, the activation is idempotent."""


def published_insertion(model: nn.Module, place: InsertionPoint, example: Tensor) -> nn.Module:
    """Return the model grown as published: gamma 1 in a batch norm of mean 0 and variance 1."""
    grown = deepen(model, place.id, example, Insertion.IDENTITY_BATCH_NORM)
    norm = grown.get_submodule(f"{place.stack}.{place.grown}.norm")
    nn.init.ones_(cast(Tensor, norm.weight))
    return grown


def built(name: str, size: int) -> tuple[nn.Module, Tensor]:
    """Return a model with running statistics from one batch, and that batch."""
    torch.manual_seed(0)
    model: nn.Module = getattr(models, name)(weights=None, **MODELS[name])
    for module in model.modules():
        if isinstance(module, nn.Dropout | StochasticDepth):
            module.p = 0.0
    for parameter in model.parameters():
        if not parameter.any():  # a head that begins at zero would hide every error
            nn.init.normal_(parameter, std=0.02)
    example = torch.randn(4, 3, size, size)
    with torch.no_grad():
        model.train()(example)
    return model, example


def measure_points(name: str, size: int) -> Row:
    """Grow one model at each of its points."""
    progress(name)
    model, example = built(name, size)
    wanted = outputs(model, example)
    places = insertion_points(model, example).found
    deepen(model, places[0].id, example)  # imports that torch does on first use
    times, copies = [], []
    worst = [0.0, 0.0, 0.0, 0.0]
    defined = [place for place in places if place.block.norm is not None and not place.block.residual]
    for place in places:
        copying, grown = timed(partial(copy.deepcopy, model))
        growing, _ = timed(partial(deepen_in_place, grown, place.id, example))
        copies.append(copying)
        times.append(growing)
        worst[:2] = map(max, worst[:2], errors(outputs(grown, example), wanted))
        if place in defined:
            naive = published_insertion(model, place, example)
            worst[2:] = map(max, worst[2:], errors(outputs(naive, example), wanted))
    if not defined:
        worst[2:] = math.nan, math.nan
    return _row(
        POINTS,
        *(name, len(places), statistics.median(times), statistics.median(copies), *worst[:2], len(defined)),
        *worst[2:],
    )


def outputs(model: nn.Module, example: Tensor) -> list[Tensor]:
    """Return the outputs in eval and in train mode; buffers are put back."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    found = []
    with torch.no_grad():
        for training in (False, True):
            result = model.train(training)(example)
            found.append(torch.cat([leaf.flatten() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]))
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
    return found


def errors(found: list[Tensor], wanted: list[Tensor]) -> list[float]:
    """Return the relative errors in eval and in train mode."""
    return [float((one - other).abs().max() / other.abs().max()) for one, other in zip(found, wanted, strict=True)]


def timed(action: Callable[[], T]) -> tuple[float, T]:
    """Return the milliseconds of one run, without the garbage collector, and what it returned."""
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        result = action()
        return (time.perf_counter() - start) * 1e3, result
    finally:
        gc.enable()


WIDTHS = ((32, 48), (256, 512), (512, 1024))
REPEATS = 15
LAYERS: Columns = (
    ("operation", "operation", ""),
    ("ms by group", "by_group_ms", ".1f"),
    ("(greatest)", "by_group_max_ms", ".1f"),
    ("by id", "by_id_ms", ".1f"),
    ("(greatest)", "by_id_max_ms", ".1f"),
    ("ours, eval", "ours_eval", ".1e"),
    ("train", "ours_train", ".1e"),
    ("published, ms", "published_ms", ".1f"),
    ("eval", "published_eval", ".1e"),
    ("train", "published_train", ".1e"),
)
"""One operation on convolution, batch norm, ReLU, convolution; times are medians, with the greatest."""
WHOLE: Columns = (
    ("model", "model", ""),
    ("groups", "groups", ""),
    ("ms to find all", "find_ms", ".0f"),
    ("widen", "widen_ms", ".1f"),
    ("copy", "copy_ms", ".1f"),
    ("float32, eval", "error_eval", ".1e"),
    ("float32, train", "error_train", ".1e"),
    ("reordered, eval", "reordered_eval", ".1e"),
    ("reordered, train", "reordered_train", ".1e"),
    ("float64, eval", "double_eval", ".1e"),
    ("float64, train", "double_train", ".1e"),
)
"""The figures of one model: all groups are found by a trial on values; to widen one of them includes a copy."""


def layers(width: int) -> tuple[nn.Module, Tensor]:
    """Return convolution, batch norm as if trained, ReLU and convolution, and the batch of its statistics."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
    )
    example = torch.randn(2, width, 16, 16)
    norm = cast(nn.BatchNorm2d, model[1])
    nn.init.normal_(norm.weight, 1, 0.2)
    nn.init.normal_(norm.bias, 0, 0.2)
    norm.momentum = None  # the statistics are those of the batch
    with torch.no_grad():
        model(example)
    norm.momentum = 0.1
    return model, example


def published_widening(model: nn.Module, new_width: int) -> nn.Module:
    """Return the layers widened as published: equal shares, and a new batch norm for new channels."""
    wider = copy.deepcopy(model)
    first, norm, last = (cast(nn.Module, wider.get_submodule(name)) for name in "013")
    kept = cast(Tensor, first.weight).shape[0]
    source = torch.cat([torch.arange(kept), torch.randint(kept, (new_width - kept,))])
    share = 1 / torch.bincount(source, minlength=kept)[source]
    with torch.no_grad():
        for name in ("weight", "bias"):
            setattr(first, name, nn.Parameter(cast(Tensor, getattr(first, name)).index_select(0, source)))
        weight = cast(Tensor, last.weight).index_select(1, source) * share.view(1, -1, 1, 1)
        setattr(last, "weight", nn.Parameter(weight))  # noqa: B010 a module's attributes are typed as modules
        fresh = nn.BatchNorm2d(new_width)
        for name, value in norm.state_dict().items():
            target = fresh.state_dict()[name]
            target[: value.numel()].copy_(value) if value.dim() else target.copy_(value)
    wider.add_module("1", fresh)
    return wider


def repeated(action: partial[nn.Module]) -> tuple[float, float, nn.Module]:
    """Return the median and greatest milliseconds, and the last result; the first run is not counted."""
    timed(action)
    times = [timed(action)[0] for _ in range(REPEATS)]
    return statistics.median(times), max(times), action()


def measure_widening(width: int, new_width: int) -> Row:
    """Widen the channels between the two convolutions."""
    model, example = layers(width)
    wanted = outputs(model, example)
    group = widening_groups(model, example)[0]
    by_group, by_group_max, wider = repeated(partial(widen, model, group, new_width, example, seed=0))
    by_id, by_id_max, _ = repeated(partial(widen, model, group.id, new_width, example, seed=0))
    ours = errors(outputs(wider, example), wanted)
    theirs_ms, _, theirs = repeated(partial(published_widening, model, new_width))
    naive = errors(outputs(theirs, example), wanted)
    figures = (by_group, by_group_max, by_id, by_id_max, *ours, theirs_ms, *naive)
    return _row(LAYERS, f"widen {width} to {new_width}", *figures)


def by_half(group: WideningGroup) -> Replication:
    """Return a widening by half, or as little more as the group allows."""
    width = math.ceil(1.5 * group.width / group.multiple_of) * group.multiple_of
    return group.replication(max(width, group.next_width), seed=0)


def reordered(group: WideningGroup) -> Replication:
    """Return the same channels in another order, within the parts that a widening keeps apart."""
    blocks = 1 if group.even else group.multiple_of
    part = group.width // blocks
    chance = torch.Generator().manual_seed(0)
    order = torch.cat([block * part + torch.randperm(part, generator=chance) for block in range(blocks)])
    return Replication(group.width, order, torch.ones(group.width, dtype=torch.float64))


def changed(model: nn.Module, example: Tensor, changes: Mapping[WideningGroup, Replication]) -> list[Tensor]:
    """Return the outputs of a changed copy."""
    other = copy.deepcopy(model)
    apply_in_place(other, changes)
    return outputs(other, example)


def measure_model(name: str, size: int) -> Row:
    """Widen each of one model's groups, and all together."""
    progress(name)
    model, example = built(name, size)
    finding, groups = timed(partial(widening_groups, model, example))
    times = [timed(partial(widen, model, group, len(by_half(group)), example, seed=0))[0] for group in groups]
    copying, _ = timed(partial(copy.deepcopy, model))
    wider = {group: by_half(group) for group in groups}
    wanted = outputs(model, example)
    ours = errors(changed(model, example, wider), wanted)
    plain = errors(changed(model, example, {group: reordered(group) for group in groups}), wanted)
    model, example = model.double(), example.double()
    double = errors(changed(model, example, wider), outputs(model, example))
    return _row(WHOLE, name, len(groups), finding, statistics.median(times), copying, *ours, *plain, *double)


def _row(columns: Columns, *figures: Any) -> Row:
    return {name: figure for (_, name, _), figure in zip(columns, figures, strict=True)}


def run(options: argparse.Namespace) -> Parts:
    """Measure, and give a table of points, one of layers and one of groups."""
    points = [measure_points(name, options.size) for name in options.models]
    yield Table.of("Milliseconds of a growth, and greatest errors", POINTS, points)
    layers = [measure_widening(*widths) for widths in WIDTHS]
    yield Table.of("Milliseconds of a widening, and greatest errors", LAYERS, layers)
    groups = [measure_model(name, options.size) for name in options.models]
    yield Table.of("Milliseconds of a widening, and greatest errors", WHOLE, groups)
