"""Growth at every place of torchvision's models leaves outputs, gradients and running statistics as they were."""

from __future__ import annotations

import copy

import pytest
import torch
from growth_cases import TORCHVISION, assert_learns, assert_same_behaviour, behaviour, relative_error, torchvision_case
from torchvision import models

import sweeps
from espalier_core.growth.deepen import deepened
from espalier_core.types.job import Insertion
from espalier_trainer.net2net import deepen, growth_points
from espalier_trainer.net2net.deepening.deepen import insert, insertion_points
from espalier_trainer.net2net.description import describe
from espalier_trainer.net2net.modules import remembering

pytestmark = pytest.mark.slow

POINTS = {
    "resnet18": 17, "resnet50": 49, "vgg11_bn": 10, "mobilenet_v2": 35, "densenet121": 59, "googlenet": 57,
    "googlenet-aux": 61, "efficientnet_b0": 65, "convnext_tiny": 18, "regnet_y_400mf": 81,
    "shufflenet_v2_x0_5": 37, "vit_b_16": 12,
}  # fmt: skip
"""Growth points of each model: one for every layer with an activation behind it."""


@pytest.mark.sweep("torchvision models")
@pytest.mark.parametrize("name", TORCHVISION)
def test_every_place_keeps_what_the_model_computes(name: str) -> None:
    case = torchvision_case(name)
    before_run = copy.deepcopy(case.model.state_dict())
    places = insertion_points(case.model, case.example).found
    assert len(places) == POINTS[name]
    before = behaviour(copy.deepcopy(case.model), case.example)
    for place in sweeps.sample("places of a torchvision model", places, name):
        grown = copy.deepcopy(case.model)
        insert(grown, place, case.example, Insertion.EXACT)
        state = grown.state_dict()
        assert all(torch.equal(state[key], value) for key, value in before_run.items()), place.id
        found = assert_same_behaviour(grown, before, case.example, place.id)
        assert_learns(found, place.stack, place.id)


@pytest.mark.sweep("torchvision models")
@pytest.mark.parametrize("name", TORCHVISION)
def test_growing_the_description_and_growing_the_model_commute(name: str) -> None:
    case = torchvision_case(name)
    with remembering(case.model, case.example):
        described = describe(case.model, case.example)
        assert described.parameters == sum(p.numel() for p in case.model.parameters())
        for point in described.growth_points[:: max(1, len(described.growth_points) // 3)]:
            grown = deepen(case.model, point.id, case.example)
            assert describe(grown, case.example) == deepened(described, point.id), point.id


@pytest.mark.sweep("torchvision models")
@pytest.mark.parametrize("name", ["resnet18", "convnext_tiny", "shufflenet_v2_x0_5"])
def test_all_points_one_after_the_other(name: str) -> None:
    case = torchvision_case(name)
    described = describe(case.model, case.example)
    before = behaviour(copy.deepcopy(case.model), case.example)
    grown = case.model
    for point in sweeps.sample("places of a torchvision model", growth_points(case.model, case.example), name):
        grown = deepen(grown, point.id, case.example)
        described = deepened(described, point.id)
    assert describe(grown, case.example) == described
    assert_same_behaviour(grown, before, case.example, name)


@pytest.mark.sweep("torchvision models")
@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, 64) for name in ("resnet18", "resnet50", "vgg11_bn", "mobilenet_v2", "densenet121", "googlenet")),
        *((name, 64) for name in ("efficientnet_b0", "convnext_tiny", "shufflenet_v2_x0_5")),
        ("vit_b_16", 224),
    ],
)
def test_the_full_width_offers_the_same_points(name: str, size: int) -> None:
    with torch.device("meta"):
        options = {"init_weights": False} if name == "googlenet" else {}
        full = getattr(models, name)(weights=None, **options)
        found = growth_points(full, torch.empty(2, 3, size, size))
    narrow = torchvision_case("googlenet-aux" if name == "googlenet" else name)
    known = [point.id for point in growth_points(narrow.model, narrow.example)]
    if name == "vgg11_bn":  # whose head the narrow one replaces layer by layer
        known = [point for point in known if not point.startswith("classifier")] + ["classifier.0", "classifier.3"]
    assert [point.id for point in found] == known


def test_the_calibrated_batch_norm_is_nearly_exact_in_train_mode() -> None:
    """In double precision: batch norms of two images amplify single roundings, how much depends on the processor."""
    case = torchvision_case("resnet18")
    model, example = case.model.double(), case.example.double()
    with torch.no_grad():
        wanted = copy.deepcopy(model)(example)
        naive = deepen(model, "layer1.0.conv1", example, Insertion.IDENTITY_BATCH_NORM)(example)
        fitted = deepen(model, "layer1.0.conv1", example, Insertion.CALIBRATED_BATCH_NORM)(example)
    assert relative_error(fitted, wanted) < 1e-9
    assert relative_error(naive, wanted) > 1e-1
