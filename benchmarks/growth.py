"""Measures the time and the error of growth at every growth point, against the published identity-batch-norm insertion.

    python benchmarks/growth.py [--json] [--models resnet18 ...] [--size 64]

Ours is `deepen` with its defaults. The published insertion (Lamelas, section 4.3) inserts convolution + batch norm with
mean 0, variance 1, gamma 1 where the model has a batch norm. It uses the same code to change the model here, so only
the inserted layers differ. An error is the greatest absolute difference over a batch of 4, relative to the greatest
absolute output, in float32 with one thread, without dropout and stochastic depth. The models have torchvision's full
width and initial weights (zeros made random), and running statistics from one batch. Times are medians over the points
without garbage collection (as in `timeit`). `deepen` makes a deep copy of the model and grows the copy; the two are
timed separately.

Not reported: the time of a training step after growth, which depends on the layer that growth repeats.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TypeVar, cast

import torch
from harness.printed import command, described, machine, progress, rendered, versions
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torchvision import models
from torchvision.ops import StochasticDepth

from espalier_trainer.net2net import Insertion, deepen
from espalier_trainer.net2net.deepening.deepen import deepen_in_place, insertion_points
from espalier_trainer.net2net.deepening.points import InsertionPoint

T = TypeVar("T")

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


@dataclass(frozen=True)
class Row:
    """The figures of one model; errors are the worst over its points, times medians in milliseconds."""

    model: str
    points: int
    deepen_ms: float
    copy_ms: float
    ours_eval: float
    ours_train: float
    published_points: int
    """Points for which it is defined and differs: the block has a batch norm, the activation is idempotent."""
    published_eval: float
    published_train: float


def published(model: nn.Module, place: InsertionPoint, example: Tensor) -> nn.Module:
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


def measure(name: str, size: int) -> Row:
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
            naive = published(model, place, example)
            worst[2:] = map(max, worst[2:], errors(outputs(naive, example), wanted))
    return Row(
        model=name,
        points=len(places),
        deepen_ms=statistics.median(times),
        copy_ms=statistics.median(copies),
        ours_eval=worst[0],
        ours_train=worst[1],
        published_points=len(defined),
        published_eval=worst[2],
        published_train=worst[3],
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


def table(rows: list[Row]) -> str:
    """Return the figures for reading."""
    head = ["model", "points", "deepen", "+ copy", "ours, eval", "train", "published at", "eval", "train"]
    cells = [
        [row.model, f"{row.points}", f"{row.deepen_ms:.1f}", f"{row.copy_ms:.1f}"]
        + [f"{row.ours_eval:.1e}", f"{row.ours_train:.1e}", f"{row.published_points}"]
        + ([f"{row.published_eval:.1e}", f"{row.published_train:.1e}"] if row.published_points else ["–", "–"])
        for row in rows
    ]
    return rendered("Milliseconds of a growth, and greatest errors", head, cells)


def environment() -> dict[str, object]:
    """Return what the figures depend on."""
    return {
        "machine": machine(),
        "threads": torch.get_num_threads(),
        **versions("torch", "torchvision"),
        "command": command(),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What growth costs and how exact it is, at every growth point.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS), help="only these models")
    parser.add_argument("--size", type=int, default=64, help="height and width of the images (default 64)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(name, arguments.size) for name in arguments.models]
    where = environment()
    if arguments.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "environment": where}, indent=2))
        return
    print(table(rows))
    print(described(where))


if __name__ == "__main__":
    main()
