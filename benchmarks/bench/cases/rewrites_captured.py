"""Which models can be rewritten, and where do which rules hold? Counts, and the costs of the table; nothing is trained.

Models of torch, torchvision, timm and Hugging Face, small and built at random: nothing is downloaded. *traced by* says
by what, or why by nothing. *rules* counts the places where rules hold on the model as it is. *table* is the gain of the
cheapest graph of best-first by the costs of operators, measured here, forward and backward, on one thread. What steps
gain is another question. *error* is the largest relative one of that graph in float64: above 1e-9, jobs refuse it.

Takes 2 minutes of a core.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bench.command import Option
from bench.printing import Parts, Table, progress
from bench.zoo.models import Case, cases
from espalier_lab.rewriting.engine import OperatorCosts, RewritesRefusedError, apply, capture, search, verify
from espalier_lab.rewriting.engine.matching import Matches
from espalier_lab.rewriting.learned.nets import NETS
from espalier_trainer.net2net.modules import ExampleInput

Built = tuple[nn.Module, ExampleInput]
OPTIONS: Final = {"models": Option([], "some of them", type=str)}
QUICK: Final = {"models": ["handwritten", "timm resnet10t"]}
EVALUATIONS: Final = 100
WIDE: Final = 70
"""Letters of a reason."""

LOGITS: Final = ("gpt2", "llama", "opt", "bert", "distilbert", "vit", "swin", "convnext", "resnet")
"""Of transformers: within a module that takes one tensor and returns the logits, as jobs need it."""
OF_TIMM: Final = (
    "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "convnext_atto", "efficientnet_b0", "resnet10t",
)  # fmt: skip
OF_TORCHVISION: Final = ("mobilenet_v3_small", "googlenet", "shufflenet_v2_x0_5", "densenet, small")


class Logits(nn.Module):
    """A model of transformers for jobs: its first input alone, and of what it returns the logits."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(**{self.name: x}).logits
        return logits


class TwoInputs(nn.Module):
    """Two inputs, or a dictionary of them."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        result: Tensor = self.last(torch.relu(self.left(batch["left"]) + self.right(batch["right"])))
        return result


def models() -> Mapping[str, Callable[[], Built]]:
    """Return how to build each model, with a batch."""
    zoo = cases()
    found: dict[str, Callable[[], Built]] = {name: net for name, net in NETS.items() if name != "cifar8 grown"}
    found["dictionary of two inputs"] = lambda: (
        TwoInputs(), ({"left": torch.randn(4, 8), "right": torch.randn(4, 8)},)
    )  # fmt: skip
    found["torch.nn.TransformerEncoder"] = lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2), torch.randn(4, 16, 64)
    )  # fmt: skip
    found |= {f"transformers {name}, logits": logits_of(zoo[f"transformers: {name}"]) for name in LOGITS}
    found["transformers bert itself"] = plain(zoo["transformers: bert"])
    found |= {f"timm {name}": plain(zoo[f"timm: {name}"]) for name in OF_TIMM}
    return found | {f"torchvision {name}": plain(zoo[f"torchvision: {name}"]) for name in OF_TORCHVISION}


def plain(case: Case) -> Callable[[], Built]:
    def build() -> Built:
        model = case.build()
        return model, case.example(model)

    return build


def logits_of(case: Case) -> Callable[[], Built]:
    def build() -> Built:
        model = case.build()
        example: Any = case.example(model)
        name = next(iter(example))
        return Logits(model, name), example[name]

    return build


def run(options: argparse.Namespace) -> Parts:
    """Look at each model, and give the table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    known = models()
    rows = []
    for name in options.models or known:
        torch.manual_seed(0)
        rows.append([name, *row_of(*known[name]())])
        progress(" | ".join(rows[-1]))
    head = ["model", "traced by", "operators", "s", "rules", "table", "error"]
    yield Table("Which models can be rewritten", head, rows)


def row_of(model: nn.Module, inputs: ExampleInput) -> list[str]:
    """Return by what a model is traced, its operators, seconds of CPU, where rules hold, and its cheapest graph."""
    began = time.process_time()
    try:
        graph = capture(model, inputs)
    except RewritesRefusedError as error:
        reason = str(error).rpartition("torch.export: ")[2]
        return [f"– ({reason[:WIDE]}{'…' * (len(reason) > WIDE)})", *"-----"]
    seconds = time.process_time() - began
    found = search(graph, OperatorCosts(model, clock=time.process_time), evaluations=EVALUATIONS)
    errors = verify(model, apply(model, found.plan, inputs), inputs, loss)
    rules = Counter(match.rule.name for match in Matches(graph).all())
    return [
        "torch.fx" if by_fx(model, inputs) else "torch.export", f"{graph.operators()}", f"{seconds:.1f}",
        ", ".join(f"{count} {rule}" for rule, count in rules.items()) or "none",
        f"{found.start / found.best[0][0]:.2f}", f"{errors.largest:.0e}",
    ]  # fmt: skip


def by_fx(model: nn.Module, inputs: ExampleInput) -> bool:
    """Return whether torch.fx traces a model."""
    try:
        capture(model, inputs, exports=False)
    except RewritesRefusedError:
        return False
    return True


def loss(outputs: Any) -> Tensor:
    """Return a loss that every output matters to."""
    tensors = [one for one in tree_leaves(outputs) if isinstance(one, Tensor) and one.is_floating_point()]
    return torch.stack([one.square().mean() for one in tensors]).sum()
