"""A policy says whether it has learned from models like that of a request."""

from __future__ import annotations

import pytest
from bodies import ask

from espalier_agent.data import named_architecture
from espalier_agent.policies.familiarity import Domain, familiarity
from espalier_core.types.advice import AdviceRequest, Progress
from espalier_core.types.task import Task

MODEL = named_architecture("cnn1")
LIKE = Domain.of(Task.CLASSIFICATION, [MODEL], [500.0])


def asked(*, task: Task = Task.CLASSIFICATION, step: int = 0) -> AdviceRequest:
    return ask(MODEL, left=50, task=task, progress=Progress(step=step))


@pytest.mark.parametrize("step", [0, 250, 500, 1000])
def test_what_it_has_learned_from_is_known_up_to_twice_the_size(step: int) -> None:
    found = familiarity(LIKE, asked(step=step))
    assert found.known
    assert found.outside == ()


def test_what_is_outside_is_named() -> None:
    conv = sorted({layer.operator for layer in MODEL.layers} - {"Linear"})
    less = LIKE.model_copy(update={"operators": tuple(conv)})
    small = MODEL.model_copy(
        update={"layers": MODEL.layers[:3], "growth_points": (), "outputs": (MODEL.layers[2].name,)}
    )
    of_small = Domain.of(Task.CLASSIFICATION, [small], [])
    for domain, request, outside in (
        (LIKE, asked(step=1001), ["steps left 1,001 (learned from 500 to 500)"]),
        (LIKE, asked(step=249), ["steps left 249 (learned from 500 to 500)"]),
        (LIKE, asked(task=Task.LANGUAGE_MODEL), ["task LanguageModel"]),
        (less, asked(), ["operator Linear"]),
        (
            of_small.model_copy(update={"operators": LIKE.operators}),
            asked(),
            [
                f"parameters {MODEL.parameters:,} (learned from {small.parameters:,} to {small.parameters:,})",
                f"layers {MODEL.depth} (learned from {small.depth} to {small.depth})",
            ],
        ),
        (None, asked(task=Task.REGRESSION), ["task Regression"]),
    ):
        found = familiarity(domain, request)
        assert (found.known, list(found.outside)) == (False, outside)
    assert familiarity(None, asked()) is None
