"""Starting models: the small nets of the examples, the paper's two CNNs, a GPT, torchvision's, the user's own.

In the small nets and the paper's, each block that can grow is a `DeepenBlock`; block i is growth point `block<i>`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from espalier_core.causes import in_one_line
from espalier_core.types.job import ModelSpec
from espalier_core.types.task import Task
from espalier_trainer.data.objective import objective_of
from espalier_trainer.errors import ModelError
from espalier_trainer.models.gpt import gpt
from espalier_trainer.net2net import DeepenBlock
from espalier_trainer.net2net.modules import mode
from espalier_trainer.process.entrypoint import call_entrypoint, load_entrypoint

_FIELD = "training.model"
_TORCHVISION_DEFAULTS: dict[str, dict[str, Any]] = {
    # Their auxiliary classifiers return tuples in train mode; `init_weights` unset warns.
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}


def build_model(
    spec: ModelSpec, classes: int, example_input: Tensor, task: Task | None = Task.CLASSIFICATION
) -> nn.Module:
    """Return the starting model, untrained, on the CPU; `ModelError` names the field and the allowed values.

    `classes` is the number of outputs unless `options` say otherwise. Weights are drawn from torch's global
    generator. The model is tried once on `example_input`; `task` None accepts any output.
    """
    if spec.entrypoint is not None:
        function = load_entrypoint(spec.entrypoint, f"{_FIELD}.entrypoint", ModelError)
        model: object = call_entrypoint(
            function, spec.entrypoint, f"{_FIELD}.entrypoint", dict(spec.options), ModelError
        )
        name = spec.entrypoint
    else:
        name = spec.name or ""
        options = {"classes": classes, **_FROM_DATA.get(name, _nothing)(example_input), **spec.options}
        if name.startswith("torchvision:"):
            model = _torchvision(name.partition(":")[2], options)
        else:
            model = call_entrypoint(_ZOO[name], name, f"{_FIELD}.options", options, ModelError)
    if not isinstance(model, nn.Module):
        raise ModelError(f"{_FIELD}: {name} returned {type(model).__name__}, not a torch.nn.Module")
    _try_out(model, name, classes, example_input, task)
    if problem := untrainable(model):
        raise ModelError(f"{_FIELD}: {name}: {problem}")
    return model


def untrainable(model: nn.Module) -> str:
    """Return why `model` cannot be trained: nothing is trainable, or a state cannot be kept; '' if it can."""
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            return (
                f"{name!r} in its state_dict() is a {type(value).__name__}, and checkpoints hold tensors: return one "
                "from get_extra_state(), or register a buffer instead"
            )
    parameters = list(model.parameters())
    if any(parameter.requires_grad for parameter in parameters):
        return ""
    if not parameters:
        return "the model has no parameters, so there is nothing to train"
    return (
        f"all {len(parameters)} parameters of the model are frozen (requires_grad is False); unfreeze the ones to train"
    )


def signature_of(model: nn.Module) -> str:
    """Return the class of `model`, and a hash of the names and shapes of its parameters and buffers."""
    shapes = [(name, list(tensor.shape)) for name, tensor in model.state_dict().items()]
    return f"{type(model).__name__} {hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16]}"


def conv_block(inputs: int, outputs: int, kernel: int, padding: int = 0) -> DeepenBlock:
    """Return Conv2d, BatchNorm2d, ReLU: a place where a convolution can be added."""
    return DeepenBlock(nn.Conv2d(inputs, outputs, kernel, padding=padding), nn.BatchNorm2d(outputs), nn.ReLU())


def linear_block(inputs: int, outputs: int) -> DeepenBlock:
    """Return Linear, ReLU: a place where a linear layer can be added."""
    return DeepenBlock(nn.Linear(inputs, outputs), nn.ReLU())


class SmallNet(nn.Module):
    """Conv 3x3, Conv 1x1, global average, Linear ReLU, Linear; only the first block sees more than a pixel.

    Growing block 0 enlarges the receptive field, which the net needs; blocks 1 and 2 are decoys.
    """

    def __init__(self, channels: int, first: int, second: int, classes: int) -> None:
        super().__init__()
        self.block0 = conv_block(channels, first, 3, padding=1)
        self.block1 = conv_block(first, second, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.block2 = linear_block(second, second)
        self.classifier = nn.Linear(second, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [N, classes] of images [N, channels, H, W]."""
        features = self.pool(self.block1(self.block0(images)))
        logits: Tensor = self.classifier(self.block2(torch.flatten(features, 1)))
        return logits


class PaperNet(nn.Module):
    """The paper's starting models (Lamelas, figure 6): no padding, and a ReLU on the logits, as printed there."""

    def __init__(self, widths: tuple[int, int], pool: bool, classes: int) -> None:
        super().__init__()
        first, second = widths
        self.block0 = conv_block(3, first, 3)
        self.downsample = nn.AvgPool2d(2) if pool else nn.Identity()
        self.block1 = conv_block(first, second, 3)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.block2 = linear_block(second, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [N, classes], none below zero, of images [N, 3, H, W]."""
        features = self.pool(self.block1(self.downsample(self.block0(images))))
        logits: Tensor = self.block2(torch.flatten(features, 1))
        return logits


def digits(classes: int = 10) -> nn.Module:
    """Return the example's net for 8x8 grey images."""
    return SmallNet(1, 6, 8, classes)


def cifar8(classes: int = 10) -> nn.Module:
    """Return the net for 8x8 RGB images."""
    return SmallNet(3, 16, 16, classes)


def cnn1(classes: int = 10) -> nn.Module:
    """Return the paper's CNN#1."""
    return PaperNet((32, 32), pool=True, classes=classes)


def cnn2(classes: int = 10) -> nn.Module:
    """Return the paper's CNN#2."""
    return PaperNet((64, 32), pool=False, classes=classes)


def mlp(classes: int = 1, inputs: int = 10, width: int = 16) -> nn.Module:
    """Return a net for rows of numbers: Linear ReLU, twice, and Linear."""
    return nn.Sequential(linear_block(inputs, width), linear_block(width, width), nn.Linear(width, classes))


_ZOO: dict[str, Callable[..., nn.Module]] = {
    "digits": digits,
    "cifar8": cifar8,
    "cnn1": cnn1,
    "cnn2": cnn2,
    "gpt": gpt,
    "mlp": mlp,
}
_FROM_DATA: dict[str, Callable[[Tensor], dict[str, Any]]] = {
    "gpt": lambda tokens: {"context": tokens.shape[-1]},
    "mlp": lambda rows: {"inputs": rows.shape[-1]},
}
"""Options derived from the data set where the job does not set them."""


def _nothing(example_input: Tensor) -> dict[str, Any]:
    return {}


def _torchvision(name: str, options: dict[str, Any]) -> nn.Module:
    from torchvision import models  # half a second to import, so only for the job that needs it

    known = models.list_models(module=models)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ModelError(f"{_FIELD}.name: torchvision has no classification model {name!r}{hint}")
    arguments = {**_TORCHVISION_DEFAULTS.get(name, {}), "num_classes": options.pop("classes"), **options}

    def build(**given: Any) -> nn.Module:
        model: nn.Module = models.get_model(name, weights=None, **given)
        return model

    model: nn.Module = call_entrypoint(build, f"torchvision:{name}", f"{_FIELD}.options", arguments, ModelError)
    return model


def _try_out(model: nn.Module, name: str, classes: int, example_input: Tensor, task: Task | None) -> None:
    """Run the model once in eval mode, to report a mismatch with the data before the budget runs."""
    shape = tuple(example_input.shape)
    try:
        with torch.no_grad(), mode(model, training=False):
            outputs = model(example_input)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        said = in_one_line(str(error)) or type(error).__name__
        raise ModelError(
            f"{_FIELD}: {name} does not take this data set's inputs of shape {shape} ({example_input.dtype}): {said}; "
            "its forward must take one tensor, a batch of these inputs (another forward: a loop of your own)"
        ) from error
    if task is None:
        return
    if not isinstance(outputs, Tensor):
        raise ModelError(
            f"{_FIELD}: {name} returned {type(outputs).__name__} for inputs {shape}; it must return a tensor"
        )
    if problem := objective_of(task).misfit(outputs, shape[0], classes):
        got = f"returned {tuple(outputs.shape)} for inputs {shape}; " if problem.startswith("it ") else ""
        raise ModelError(f"{_FIELD}: {name} {got}{problem}")
