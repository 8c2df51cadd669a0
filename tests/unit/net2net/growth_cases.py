"""Models to grow: torchvision's architectures in full depth, narrow where their constructors have a width."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torchvision import models
from torchvision.models.convnext import CNBlockConfig
from torchvision.models.densenet import DenseNet
from torchvision.models.vision_transformer import VisionTransformer
from torchvision.ops import StochasticDepth

_IMAGE = (2, 3, 32, 32)


def _vgg11_bn() -> nn.Module:
    model = models.vgg11_bn(weights=None, num_classes=10)
    # The features are the whole of VGG; its head has 119 of its 133 million parameters, so a narrow one stands in.
    model.classifier = nn.Sequential(
        nn.Linear(512 * 49, 16), nn.ReLU(True), nn.Dropout(), nn.Linear(16, 16), nn.ReLU(True), nn.Dropout(),
        nn.Linear(16, 10),
    )  # fmt: skip
    return model


def _convnext_tiny() -> nn.Module:
    widths = (8, 16, 24, 32)
    depths = (3, 3, 9, 3)
    following = (*widths[1:], None)
    return models.ConvNeXt([CNBlockConfig(*one) for one in zip(widths, following, depths, strict=True)], 0.1, 1.0)


def _regnet_y_400mf() -> nn.Module:
    with torch.device("cpu"):  # its constructor computes its widths with tensors
        return models.regnet_y_400mf(num_classes=10)


TORCHVISION: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: models.resnet18(num_classes=10),
    "resnet50": lambda: models.resnet50(num_classes=10, width_per_group=8),
    "vgg11_bn": _vgg11_bn,
    "mobilenet_v2": lambda: models.mobilenet_v2(num_classes=10, width_mult=0.25),
    "densenet121": lambda: DenseNet(8, (6, 12, 24, 16), 16, num_classes=10),
    "googlenet": lambda: models.googlenet(num_classes=10, init_weights=False, aux_logits=False),
    "googlenet-aux": lambda: models.googlenet(num_classes=10, init_weights=False, aux_logits=True),
    "efficientnet_b0": lambda: models.efficientnet_b0(num_classes=10),
    "convnext_tiny": _convnext_tiny,
    "regnet_y_400mf": _regnet_y_400mf,
    "shufflenet_v2_x0_5": lambda: models.shufflenet_v2_x0_5(num_classes=10),
    "vit_b_16": lambda: VisionTransformer(32, 16, 12, 4, 32, 64, num_classes=10),
}


def materialise(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """Build on the meta device and fill with small random values: torchvision's own initialisation is slow."""
    with torch.device("meta"):
        model = build()
    model = model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Dropout | StochasticDepth):
                module.p = 0.0
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.reset_running_stats()
            for name, parameter in module.named_parameters(recurse=False):
                spread = parameter[0].numel() ** -0.5 if parameter.dim() > 1 else 0.1
                parameter.normal_(0, spread, generator=generator)
                if name == "weight" and parameter.dim() == 1:
                    parameter.add_(1)
    return model


@dataclass(frozen=True)
class Case:
    """One model in train mode, with an input."""

    model: nn.Module
    example: Tensor


def torchvision_case(name: str) -> Case:
    """Return one of torchvision's models."""
    example = torch.randn(_IMAGE, generator=torch.Generator().manual_seed(1))
    return Case(materialise(TORCHVISION[name]).train(), example)


def tensors(result: object) -> list[Tensor]:
    """Return the tensors of a model's result (several of GoogLeNet in train mode)."""
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


@dataclass(frozen=True)
class Behaviour:
    """What growth must keep: outputs in both modes, the old parameters' gradients, buffers after a step."""

    outputs: list[Tensor]
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]


def behaviour(model: nn.Module, example: Tensor) -> Behaviour:
    """Run the model once in eval mode and once, with a backward pass, in train mode; its buffers move."""
    model.eval()
    with torch.no_grad():
        evaluated = tensors(model(example))
    model.train()
    model.zero_grad()
    trained = tensors(model(example))
    generator = torch.Generator().manual_seed(2)
    loss = torch.zeros(())
    for output in trained:
        loss = loss + (output * torch.randn(output.shape, generator=generator)).sum()
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return Behaviour(evaluated + [output.detach() for output in trained], gradients, dict(model.named_buffers()))


def assert_same_behaviour(grown: nn.Module, before: Behaviour, example: Tensor, where: str) -> Behaviour:
    """Compare a grown model, which is used up, with what its model did; returns what it does."""
    found = behaviour(grown, example)
    assert len(found.outputs) == len(before.outputs), where
    for output, wanted in zip(found.outputs, before.outputs, strict=True):
        assert relative_error(output, wanted) <= 1e-6, where
    for name, wanted in before.gradients.items():
        assert relative_error(found.gradients[name], wanted) <= 1e-5, (where, name)
    for name, wanted in before.buffers.items():
        assert relative_error(found.buffers[name].float(), wanted.float()) <= 1e-6, (where, name)
    return found


def assert_learns(found: Behaviour, stack: str, where: str) -> None:
    """Every new weight gets a gradient at once; a PReLU's slope only when its layer has moved."""
    new = {name: g for name, g in found.gradients.items() if name.startswith(f"{stack}.")}
    assert new, where
    for name, gradient in new.items():
        if name.endswith(("conv.weight", "linear.weight", "norm.weight")):
            assert gradient.abs().max() > 0, (where, name)


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """Return the greatest absolute difference relative to the greatest absolute value wanted."""
    difference = (found - wanted).abs().max().item()
    return difference / max(wanted.abs().max().item(), 1e-30)
