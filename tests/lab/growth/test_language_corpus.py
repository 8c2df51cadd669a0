"""Families of language models: their texts, their designs, and how they are judged."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import nn

from espalier_core.types.job import Insertion, OptimizerSpec
from espalier_core.types.outcomes import CaseRecord
from espalier_core.types.task import Task
from espalier_lab.growth.corpus.language import LANGUAGE, LANGUAGE_SETS, LANGUAGE_UNSEEN, LanguageModel, drawn, turned
from espalier_lab.growth.corpus.texts import TEXTS, windows_of
from espalier_lab.growth.judge.case import CaseError, JudgeCase, JudgeSplit, checked
from espalier_lab.growth.judge.case_run import CaseRun
from espalier_lab.growth.judge.deciding import Setting, decided


@pytest.mark.parametrize("text", sorted(TEXTS))
def test_a_text_is_the_same_for_the_same_seed_and_its_targets_are_the_next_tokens(text: str) -> None:
    windows = windows_of(text, "characters", 96, 32, 3)
    inputs, targets = windows.train.inputs, windows.train.targets
    assert inputs.shape == targets.shape
    assert torch.equal(inputs.flatten()[1:], targets.flatten()[:-1])
    assert len(inputs) > 10_000
    assert int(targets.max()) < windows.vocabulary <= 96
    again = windows_of.__wrapped__(text, "characters", 96, 32, 3)
    assert torch.equal(again.train.targets, targets)


def test_the_characters_of_a_token_are_counted() -> None:
    assert windows_of("prose", "characters", 96, 32, 0).characters_per_token == 1
    assert 1.5 < windows_of("prose", "bpe", 512, 32, 0).characters_per_token < 4


@pytest.mark.parametrize("body", ["attention", "convolution", "recurrent"])
def test_no_design_sees_the_future(body: str) -> None:
    """A token changes no output before it."""
    chance = random.Random(7)
    for _ in range(4):
        design = drawn(body, chance)
        model = LanguageModel(design, 20).eval()
        tokens = torch.randint(20, (1, design.context), generator=torch.Generator().manual_seed(1))
        other = tokens.clone()
        other[0, 20] = (other[0, 20] + 1) % 20
        before, after = model(tokens), model(other)
        torch.testing.assert_close(before[:, :20], after[:, :20])
        assert not torch.equal(before[:, 20:], after[:, 20:])


def test_products_of_rotary_heads_depend_on_the_distance_of_places_alone() -> None:
    query, key = (torch.randn(1, 1, 1, 8, dtype=torch.float64).expand(1, 1, 12, 8) for _ in range(2))
    scores = (turned(query) @ turned(key).transpose(-1, -2))[0, 0]
    torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1])


def test_families_are_many_and_those_that_judge_are_others() -> None:
    learned, unseen = [case for families in LANGUAGE_SETS[:-1] for case in families()], LANGUAGE_UNSEEN()
    assert len({case.family for case in learned}) >= 60
    assert len(unseen) >= 10
    designs = [{case.family.split("-", 2)[2].split("-", 1)[1] for case in cases} for cases in (learned, unseen)]
    assert not designs[0] & designs[1]
    for families in LANGUAGE_SETS:
        steps = [case.steps for case in families()]
        assert steps == [case.steps for case in families()]
        assert families.long < 1 or families.steps[0] / 3 <= min(steps) <= max(steps) <= families.steps[1]


def test_a_language_model_is_judged_by_the_probability_of_the_right_character() -> None:
    vocabulary, characters = 5, 2.0

    class Uniform(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(vocabulary))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.weight.expand(*tokens.shape, vocabulary)

    tokens = torch.randint(vocabulary, (8, 4))
    split = JudgeSplit(tokens, tokens)
    case = JudgeCase(
        "uniform", "uniform", lambda _: Uniform(), split, split, split, 1, 4, OptimizerSpec(name="SGD"),
        Task.LANGUAGE_MODEL, characters,
    )  # fmt: skip
    score = CaseRun.begin(case, 0).score(split)
    assert score.accuracy == pytest.approx(2 ** -(math.log2(vocabulary) / characters))


def test_the_agent_is_asked_about_a_language_model_as_its_trainer_would_ask() -> None:
    case = next(case for case in LANGUAGE() if "1x32" in case.family)
    short = JudgeCase(**{name: getattr(case, name) for name in JudgeCase.__slots__} | {"steps": 10})
    record = decided(short, 0, Setting(moments=(0.5,), most=1))
    (moment,) = record.moments
    request = CaseRecord.model_validate_json(record.model_dump_json(by_alias=True)).request(moment)
    figures = {metric.name: metric.value for metric in request.progress.metrics}
    assert "validation_accuracy" not in figures
    assert figures["validation_bits_per_character"] == pytest.approx(moment.validation_loss / math.log(2), rel=1e-3)
    ways = (Insertion.SCALED, Insertion.UNFOLD)
    again = decided(short, 0, Setting(moments=(0.3, 0.6), most=2, grown=True, inserted=ways))
    (before,), (moment,) = again.grown, again.moments
    assert before.insertion in (None, *ways)
    assert again.architecture.parameters > record.architecture.parameters
    assert {arm.action.insertion for arm in moment.every} == {None, *ways}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"task": "Poetry"}, "'task' is 'Poetry'; allowed: Classification, Regression, LanguageModel"),
        ({"task": "Regression"}, "'task' is Regression, and the targets are integers"),
        ({"charactersPerToken": 0}, "'charactersPerToken' is 0; give a number above 0"),
    ],
)
def test_a_task_that_does_not_fit_is_refused(given: dict[str, object], message: str) -> None:
    pair = (torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))
    case = {
        "name": "one", "family": "one", "module": lambda _: nn.Linear(2, 2), "train": pair, "validation": pair,
        "test": pair, "steps": 5, "batchSize": 2, "optimizer": {"name": "Adam"},
    }  # fmt: skip
    with pytest.raises(CaseError, match=message):
        checked(case | given)
