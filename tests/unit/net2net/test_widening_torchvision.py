"""All groups of torchvision's models, widened together, leave the outputs as they were; other layers say why not.

In train mode batch norm divides by the spread of few values, which multiplies float32's rounding: there the deviation
is held beside that of the same model with its channels in another order, which computes the same sums, and in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import pytest
import torch
from growth_cases import TORCHVISION, materialise, relative_error, tensors, torchvision_case
from torch import Tensor, nn

from espalier_trainer.net2net import GrowthError, WideningGroup, widen
from espalier_trainer.net2net.trace.tracing import trace, traces
from espalier_trainer.net2net.widening.groups import Groups, Replication, apply_in_place
from espalier_trainer.net2net.widening.trial import executes_alike, tried_groups

GROUPS = {
    "resnet18": 12, "resnet50": 37, "vgg11_bn": 10, "mobilenet_v2": 24, "densenet121": 120, "googlenet": 57,
    "googlenet-aux": 61, "efficientnet_b0": 40, "convnext_tiny": 22, "regnet_y_400mf": 53,
    "shufflenet_v2_x0_5": 18, "vit_b_16": 12,
}  # fmt: skip
"""Widening groups of each model. torch-pruning 1.6.1 finds as many in resnet18 and densenet121, and the output's."""

REFUSED = {
    "shufflenet_v2_x0_5": {
        "stage2.0.branch2.5": "'stage2.0.view' (View) reads it, through which channels cannot be followed",
        "stage2.1.branch2.5": "'stage2.1.concat' (Concat) concatenates it with one of several results in unknown order",
        "fc": "'fc' is an output of the model",
    },
    "vit_b_16": {
        "conv_proj": "'concat' (Concat) concatenates along an axis other than the channel axis",
        "encoder.layers.encoder_layer_0.self_attention.out_proj": "it is not called by itself in the model's forward",
        "heads.head": "'heads.head' is an output of the model",
    },
    "googlenet-aux": {"aux1.fc2": "'aux1.fc2' is an output of the model"},
}
"""Reasons for some of the layers that keep their width; all other models refuse their last layer only."""


def _model_and_example(name: str) -> tuple[nn.Module, Tensor]:
    size = 32 if name == "vit_b_16" else 64  # batch norm's last maps then have 16 values or more
    return materialise(TORCHVISION[name]), torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(1))


def _reordered(group: WideningGroup) -> Replication:
    """The same channels in another order, within the parts that a widening keeps apart."""
    blocks = 1 if group.even else group.multiple_of
    part = group.width // blocks
    chance = torch.Generator().manual_seed(5)
    order = torch.cat([block * part + torch.randperm(part, generator=chance) for block in range(blocks)])
    return Replication(group.width, order, torch.ones(group.width, dtype=torch.float64))


def _outputs(model: nn.Module, example: Tensor, changes: Mapping[WideningGroup, Replication]) -> list[Tensor]:
    """What the changed model returns in eval and in train mode."""
    changed = copy.deepcopy(model)
    apply_in_place(changed, changes)
    with torch.no_grad():
        return [
            torch.cat([one.flatten() for one in tensors(changed.train(training)(example))])
            for training in (False, True)
        ]


def _accounted(model: nn.Module, groups: Groups) -> None:
    """Every layer makes channels of a group, follows one, or is refused."""
    following = {
        path.rpartition(".")[0]
        for group in groups.found
        for edit in group.edits
        if edit.dim == 0
        for path in edit.paths
    }
    layers = {path for path, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)}
    assert layers <= following | set(groups.refused)
    assert all(one.reason and one.remedy for one in groups.refused.values())


@pytest.mark.sweep("torchvision models")
@pytest.mark.parametrize("name", TORCHVISION)
def test_all_groups_together_keep_what_the_model_computes(name: str) -> None:
    model, example = _model_and_example(name)
    graph = trace(model, example)
    groups = tried_groups(model, graph, example)
    assert len(groups.found) == GROUPS[name]
    _accounted(model, groups)
    if name not in REFUSED:
        assert [one.reason for one in groups.refused.values()] == [
            f"{next(iter(groups.refused))!r} is an output of the model"
        ]
    for layer, reason in REFUSED.get(name, {}).items():
        assert groups.refused[layer].reason == reason
        with pytest.raises(GrowthError, match=f"'{layer}' cannot be widened"):
            widen(model, layer, 10_000, example, seed=0)
    wider = {group: group.replication(group.next_width, seed=3) for group in groups.found}
    changed = copy.deepcopy(model)
    apply_in_place(changed, wider)
    # ConvNeXt hands the number of channels to a functional layer norm.
    assert executes_alike(changed, traces(model, example), groups, wider, example) == (name != "convnext_tiny")
    reordered = {group: _reordered(group) for group in groups.found}
    wanted = _outputs(model, example, {})
    evaluated, trained = map(relative_error, _outputs(model, example, wider), wanted)
    plain = relative_error(_outputs(model, example, reordered)[1], wanted[1])
    assert evaluated <= 1e-6
    assert trained <= max(1e-6, 2 * plain)
    model, example = model.double(), example.double()
    for output, exact in zip(_outputs(model, example, wider), _outputs(model, example, {}), strict=True):
        assert relative_error(output, exact) <= 1e-12


def test_rounding_after_batch_norms_of_two_values_is_no_failure() -> None:
    """On images of 32 pixels the last maps are one pixel of each example: rounding is multiplied a millionfold."""
    case = torchvision_case("regnet_y_400mf")
    groups = tried_groups(case.model, trace(case.model, case.example), case.example)
    assert len(groups.found) == GROUPS["regnet_y_400mf"]
