"""What does `adaptation.optimise: Rewrites` cost jobs, and what does it bring? Jobs of the ready trainer, mixed nets.

The budget of a job and all durations are CPU seconds of its process on one thread, so that other work on the machine
counts little. Nothing is evaluated before the end. `spent` is the share of the budget that all attempts have taken: the
steps that a job loses where nothing is gained. So these jobs are stopped once what is due was tried, or a tenth of the
budget is used. The model `grown` deepens three times after the first hundredth of the budget.
`handwritten` (a layer norm, a GELU and an attention by hand, two linear layers in a row, a mean after a 1x1
convolution) runs `--pairs` seeds more, each with and without `optimise`, in turn: the steps within the budget, and how
many more they are, the mean with its 95 % interval.

Takes 15 minutes.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from bench.command import Option
from bench.printing import Parts, Table, progress, share
from bench.statistics import paired
from espalier_core.types.advice import Action
from espalier_core.types.allocation import Allocation, Direction
from espalier_core.types.events import AdaptationFinished
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.report import AdaptationSource
from espalier_lab.virtual_time import Scripted
from espalier_trainer.builtin_loop.trainer import Trainer
from espalier_trainer.data import load_data
from espalier_trainer.models.zoo import build_model
from espalier_trainer.net2net.randomness import seed_everything
from espalier_trainer.run.services import Services
from espalier_trainer.signals.report import MemoryReporter
from espalier_trainer.signals.scheduler import DocumentScheduler
from espalier_trainer.training.progress import TrainingResult

_HERE: Final = "bench.cases.optimised_jobs"
_GROWS_AT: Final = 0.01
_STOPS_AT: Final = 0.1


def images() -> tuple[tuple[Tensor, Tensor], ...]:
    """Return random images [N, 3, 32, 32] with labels: what is learnt does not matter here."""
    random = torch.Generator().manual_seed(0)
    return tuple((torch.rand(n, 3, 32, 32, generator=random), torch.arange(n) % 10) for n in (640, 32, 32))


class ByHand(nn.Module):
    """What people write themselves, each part as one finds it in scripts."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.wide, self.narrow = nn.Linear(width, width), nn.Linear(width, 512), nn.Linear(512, width)
        self.channels = nn.Conv2d(width, 256, 1)
        self.last = nn.Linear(256, 10)

    def norm(self, inputs: Tensor) -> Tensor:
        """Return the layer norm."""
        mean = inputs.mean(-1, keepdim=True)
        spread = ((inputs - mean) ** 2).mean(-1, keepdim=True)
        return (inputs - mean) / torch.sqrt(spread + 1e-5) * self.scale + self.shift

    def attention(self, inputs: Tensor) -> Tensor:
        """Return the attention of all places to all."""
        batch, places, width = inputs.shape
        each = [part(inputs).view(batch, places, self.heads, width // self.heads).transpose(1, 2)
                for part in (self.query, self.key, self.value)]  # fmt: skip
        weights = torch.softmax(each[0] @ each[1].transpose(-2, -1) / math.sqrt(width // self.heads), -1)
        return self.out((weights @ each[2]).transpose(1, 2).reshape(batch, places, width))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits [N, 10]."""
        hidden = self.patches(inputs).flatten(2).transpose(1, 2)
        hidden = hidden + self.attention(self.norm(hidden))
        hidden = hidden + self.narrow(self.wide(self.norm(hidden)))
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        size = math.isqrt(hidden.shape[1])
        planes = hidden.transpose(1, 2).unflatten(2, (size, size))
        logits: Tensor = self.last(self.channels(planes).mean((2, 3)))
        return logits


class Branches(nn.Module):
    """A block of RepVGG in training: a 3x3 and a 1x1 convolution and the input, added up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.three, self.one = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the sum of the branches."""
        return torch.relu(self.three(inputs) + self.one(inputs) + inputs)


def handwritten() -> nn.Module:
    """Return the net whose parts have faster forms."""
    return ByHand()


def branches() -> nn.Module:
    """Return a net like RepVGG's, without batch norms."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1),
        *(Branches(32) for _ in range(4)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def multilayer() -> nn.Module:
    """Return a plain perceptron."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


_IMAGES: Final = {"dataset": {"entrypoint": f"{_HERE}:images"}, "batchSize": 4}


def _of(entry: str, **training: Any) -> dict[str, Any]:
    return {"model": {"entrypoint": f"{_HERE}:{entry}"}, **_IMAGES, **training}


def _torchvision(name: str) -> dict[str, Any]:
    return {"model": {"name": f"torchvision:{name}"}, **_IMAGES}


NETS: Final[dict[str, dict[str, Any]]] = {
    "digits": {},
    "grown": {},
    "gpt": {
        "task": "LanguageModel",
        "model": {"name": "gpt", "options": {"blocks": 2, "width": 64, "heads": 2}},
        "dataset": {
            "name": "python-library",
            "options": {"context": 64, "vocabulary": 128, "windows": 512, "evaluationWindows": 256},
        },
        "batchSize": 8,
        "optimizer": {"name": "AdamW", "learningRate": 0.004},
    },
    "resnet18": _torchvision("resnet18"),
    "squeezenet1_1": _torchvision("squeezenet1_1"),
    "mobilenet_v3_small": _torchvision("mobilenet_v3_small"),
    "shufflenet_v2_x0_5": _torchvision("shufflenet_v2_x0_5"),
    "multilayer": _of("multilayer"),
    "branches": _of("branches"),
    "handwritten": _of("handwritten"),
}


OPTIONS: Final = {
    "seeds": Option(3),
    "pairs": Option(5),
    "time_budget": Option(60.0, "CPU seconds of a job"),
    "format": Option("Contiguous", "training.memoryFormat", ("Contiguous", "Auto")),
    "nets": Option(list(NETS), choices=tuple(NETS)),
}
QUICK: Final = {"seeds": 1, "pairs": 2, "time_budget": 5.0, "nets": ["digits", "handwritten"]}


@dataclass
class CpuScheduler(DocumentScheduler):
    """The job's budget in CPU seconds; the second worker comes when `grows_at` of it is used."""

    grows_at: float = math.inf

    def allocation(self) -> Allocation:
        """Return one worker, or two."""
        if self.used_seconds() < self.grows_at * self.time_budget():
            return super().allocation()
        return Allocation(generation=1, replicas=2, gpus=2, direction=Direction.UP)


def trained(net: str, seed: int, options: argparse.Namespace, *, optimise: bool, whole: bool = True) -> TrainingResult:
    """Run one job; not `whole`: until all attempts were made, or `_STOPS_AT` of its budget."""
    job = AdaptiveTrainingJob.model_validate(
        {
            "apiVersion": "espalier.dev/v1alpha1",
            "kind": "AdaptiveTrainingJob",
            "metadata": {"name": net.replace("_", "-")},
            "spec": {
                "timeBudgetSeconds": options.time_budget,
                "maxReplicas": 2,
                "adaptation": {"optimise": "Rewrites" if optimise else "Off"},
                "training": {
                    "evaluateEveryEpochs": 10**6,
                    "memoryFormat": options.format if optimise else "Contiguous",
                    "seed": seed,
                    **NETS[net],
                },
            },
        }
    )
    training = job.spec.training
    data = load_data(training.dataset, training.task)
    seed_everything(seed)
    model = build_model(training.model, data.classes, data.example_input(), data.task)
    clock = time.process_time
    scheduler = CpuScheduler((), job, 1.0, clock, grows_at=_GROWS_AT if net == "grown" else math.inf)
    advisor = Scripted((Action.deepen("block0"),) * 3) if net == "grown" else None
    reporter, attempts = MemoryReporter(), 4 if net == "grown" else 1

    def stop() -> bool:
        made = [event for event in reporter.events if isinstance(event, AdaptationFinished)]
        tried = sum(event.adaptation.source is AdaptationSource.MEASUREMENT for event in made)
        return not whole and (tried == attempts or scheduler.used_seconds() > _STOPS_AT * options.time_budget)

    services = Services(scheduler, reporter, advisor, stop=stop, clock=clock)
    return Trainer(job, model, data, services).run()


def run(options: argparse.Namespace) -> Parts:
    """Run the jobs, and give the table and the pairs."""
    rows, shares = [], []
    for seed in range(options.seeds):
        for net in options.nets:
            result = trained(net, seed, options, optimise=True, whole=False)
            tried = [one for one in result.adaptations if one.source == "measurement"]
            spent = sum(one.seconds for one in tried) / options.time_budget
            shares.append(spent)
            what = "; ".join(f"{one.action} {one.result}: {one.message}" for one in tried) or "nothing tried"
            rows.append((f"{net} {seed}", share(spent), share(result.used_seconds / options.time_budget), what))
            progress(" | ".join(rows[-1]))
    if rows:
        yield Table("Jobs with optimise: Rewrites", ("net, seed", "spent", "ran for", "attempts"), rows)
        yield f"{len(shares)} jobs; largest share of a budget that was spent: {max(shares):.4f}\n"
    if "handwritten" in options.nets and options.pairs > 1:
        more = paired([ratio - 1 for ratio in pairs(options)])
        yield f"handwritten, steps with optimise / without, {options.pairs} seeds: {more} more"


def pairs(options: argparse.Namespace) -> Iterator[float]:
    """Give the steps within the budget with `optimise` over those without, seed by seed."""
    for seed in range(options.pairs):
        order: tuple[bool, ...] = (True, False) if seed % 2 else (False, True)
        steps = {optimise: trained("handwritten", 100 + seed, options, optimise=optimise).steps for optimise in order}
        progress(f"handwritten {100 + seed}: {steps[False]:,} steps, {steps[True]:,} with optimise")
        yield steps[True] / steps[False]
