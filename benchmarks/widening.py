"""Measures the time and the error of widening, against Net2WiderNet as published.

    python benchmarks/widening.py [--json] [--models resnet18 ...] [--size 64]

First a convolution, a batch norm, a ReLU and a convolution, 16 x 16 maps of a batch of 2: `widen` by a group that
`widening_groups` found, by the group's id, and the published widening of the same layers (Chen et al. 2016, equations
4 and 6: random copies, outgoing weights divided equally) with the batch norm of a new channel as Lamelas's program
makes it, mean 0, variance 1, gamma 1, beta 0. The batch norm has the batch's statistics, its gamma and beta are random.

Then every group of torchvision's models at full width: the time to widen one (median over the groups), and the error
with all groups widened together by half. Batch norm over few values (in train mode) and depth multiply rounding:
`reordered` is the error of the same model with its channels in another order, which computes the same sums; `float64`
is the error of the wider model there.

Errors are relative to the greatest absolute output, in float32 unless stated otherwise. One thread; times without
garbage collection. Batch of 4, without dropout and stochastic depth, running statistics from one batch.

Not reported: the time of a training step after growth, which depends on the width that is chosen.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
from growth import MODELS, built, environment, errors, outputs, timed
from harness.printed import Columns, columned, described, progress
from torch import Tensor, nn

from espalier_trainer.net2net import WideningGroup, widen, widening_groups
from espalier_trainer.net2net.widening.groups import Replication, apply_in_place

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
Row = dict[str, Any]


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


def published(model: nn.Module, new_width: int) -> nn.Module:
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
    theirs_ms, _, theirs = repeated(partial(published, model, new_width))
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What widening costs and how exact it is.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the tables")
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS), help="only these models")
    parser.add_argument("--size", type=int, default=64, help="height and width of the images (default 64)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    small = [measure_widening(*widths) for widths in WIDTHS]
    large = [measure_model(name, arguments.size) for name in arguments.models]
    if arguments.json:
        found = {"layers": small, "models": large}
        print(json.dumps(found | {"environment": environment()}, indent=2))
        return
    print(columned("Milliseconds, and greatest errors", LAYERS, small))
    if large:
        print(columned("Milliseconds, and greatest errors", WHOLE, large))
    print(described(environment()))


if __name__ == "__main__":
    main()
