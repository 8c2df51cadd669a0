"""The cost of a training step in virtual time, measured for the starting model and each growth, or given."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from espalier_core.growth.architecture import Architecture
from espalier_core.growth.channel_groups import ChannelGroup
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_trainer.data.source import Data
from espalier_trainer.models.zoo import build_model
from espalier_trainer.net2net import deepen, widen
from espalier_trainer.optimizers.building import build_optimizer

ROUNDS = 7
STEPS = 60
"""Steps in a round."""


class StepCostError(ValueError):
    """A step cost is invalid. The message names it and the expected form."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds per step: of the starting model, with additions for each layer at a growth point and for channels.

    Additions are summed: the higher cost of a layer behind doubled channels is ignored.
    """

    base: float
    added: tuple[tuple[str, float], ...]
    doubled: tuple[tuple[str, int, float], ...] = ()
    """For each group of channels: its width in the starting model, and the cost of as many additional channels."""

    def __call__(self, architecture: Architecture | None) -> float:
        """Return the seconds of a step of `architecture`."""
        history = architecture.growth_history if architecture else {}
        deeper = sum(seconds * history.get(point, 0) for point, seconds in self.added)
        widths = {group.id: group.width for group in architecture.channel_groups} if architecture else {}
        wider = sum(seconds * (widths.get(group, width) / width - 1) for group, width, seconds in self.doubled)
        return self.base + deeper + wider

    def __str__(self) -> str:
        """Return it in milliseconds."""
        layers = ", ".join(f"{point} {seconds * 1e3:.3f} ms" for point, seconds in self.added)
        groups = ", ".join(f"{group} {seconds * 1e3:.3f} ms" for group, _, seconds in self.doubled)
        doubled = f", for channels doubled {groups}" if groups else ""
        return f"a step costs {self.base * 1e3:.3f} ms and for a layer added {layers}{doubled}"


def parse_cost(text: str, points: Sequence[str], groups: Sequence[ChannelGroup] = ()) -> StepCost:
    """Return the cost in `1.9,0.6,0.5,0.2`: ms per step, then additional ms for a layer at each growth point.

    If there are groups, additional ms for doubling the channels of each follow.
    """
    growths = len(points) + len(groups)
    wanted = f"write {1 + growths} numbers of ms: a step, then what a layer adds at {', '.join(points)}"
    if groups:
        wanted += f", then what twice the channels add in {', '.join(group.id for group in groups)}"
    try:
        base, *added = (float(part) / 1e3 for part in text.split(","))
    except ValueError as error:
        raise StepCostError(f"--step-cost {text!r}: not numbers; {wanted}") from error
    if len(added) != growths:
        raise StepCostError(f"--step-cost {text!r}: {1 + len(added)} numbers; {wanted}")
    if not all(map(math.isfinite, (base, *added))) or base <= 0 or min(added, default=0.0) < 0:
        raise StepCostError(f"--step-cost {text!r}: a step must cost more than 0, a layer not less than 0; {wanted}")
    return cost_of(base, added, points, groups)


def cost_of(base: float, added: Sequence[float], points: Sequence[str], groups: Sequence[ChannelGroup]) -> StepCost:
    """Return the cost in s of a step, of a layer at each point and of doubling each group, in their order."""
    deeper, wider = added[: len(points)], added[len(points) :]
    doubled = ((group.id, group.width, seconds) for group, seconds in zip(groups, wider, strict=True))
    return StepCost(base, tuple(zip(points, deeper, strict=True)), tuple(doubled))


def measure_cost(
    job: AdaptiveTrainingJob,
    data: Data,
    points: Sequence[str],
    device: torch.device,
    groups: Sequence[ChannelGroup] = (),
) -> StepCost:
    """Time training steps of the starting model and of the model grown once at each point and group, in turn.

    The fastest round of each counts, as other load only makes rounds slower.
    """
    training = job.spec.training
    data = data.to(device)
    example = data.example_input()
    start = build_model(training.model, data.classes, example).to(device)
    insertion = job.spec.adaptation.described_insertion
    models = [start, *(deepen(start, point, example, insertion) for point in points)]
    models += [widen(start, group.id, 2 * group.width, example, seed=0) for group in groups]
    inputs, labels = data.train.batch(torch.arange(min(training.batch_size, len(data.train)), device=device), None)
    fastest = [math.inf] * len(models)
    for _ in range(ROUNDS):
        for place, model in enumerate(models):
            model.train()
            optimizer = build_optimizer(training.optimizer, model)
            began = time.perf_counter()
            for _ in range(STEPS):
                optimizer.zero_grad(set_to_none=True)
                loss = torch.nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                loss.item()
            fastest[place] = min(fastest[place], (time.perf_counter() - began) / STEPS)
    base, *grown = fastest
    return cost_of(base, [max(0.0, seconds - base) for seconds in grown], points, groups)
