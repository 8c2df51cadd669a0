"""The graph network that is regressed on what growths gained: it learns where, keeps through a file, and repeats."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from espalier_agent.data import named_architecture
from espalier_agent.learners.learning import LEARNERS, LearningError
from espalier_agent.policies.advice import decide
from espalier_agent.policies.policy import Policy, load_policy, save_policy
from espalier_core.types.advice import Action, offered
from espalier_core.types.outcomes import ArmRecord, CaseRecord, GrowthCorpus, MomentRecord
from espalier_lab.learners.graph_gains import LEARNER, GraphGainsConfig

MODELS = [named_architecture(name) for name in ("cnn1", "cnn2")]
EARLY, LATE = 0.2, 0.7


def record(family: int) -> CaseRecord:
    """Return a case where the first growth gains early, and all others harm."""
    model = MODELS[family % 2]

    def moment(share: float) -> MomentRecord:
        first, *others = offered(model)
        gains = {first: 0.06 if share == EARLY else -0.06, **dict.fromkeys(others, -0.06)}
        arms = ((Action.nothing(), 0.0), *gains.items())
        return MomentRecord(
            share=share,
            validation_accuracy=0.4,
            arms=tuple(ArmRecord(action=action, accuracy=0.5 + gain, step_cost=1.0) for action, gain in arms),
        )

    return CaseRecord(
        case=f"case{family}",
        family=f"family{family}",
        seed=0,
        steps=100,
        batch_size=32,
        architecture=model,
        moments=(moment(EARLY), moment(LATE)),
    )


CORPUS = GrowthCorpus(name="made", source="test", cases=tuple(record(family) for family in range(8)))
CONFIG = GraphGainsConfig(epochs=20, batch=1, learning_rate=0.01)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return LEARNERS.load("graph-gains").with_corpora([CORPUS]).learn([], config=CONFIG, seed=1)


@pytest.mark.parametrize("family", [0, 1])
def test_it_says_where_and_when(policy: Policy, family: int) -> None:
    case = record(family)
    early, late = (case.request(moment) for moment in case.moments)
    assert decide(policy, early).action == offered(early.architecture)[0]
    assert decide(policy, late).action == Action.nothing()


def test_a_file_and_the_same_seed_give_the_same_policy(policy: Policy, tmp_path: Path) -> None:
    save_policy(policy, tmp_path)
    assert load_policy(tmp_path).version == policy.version
    before = torch.random.get_rng_state()
    few = CONFIG.model_copy(update={"epochs": 1})
    one, two = (LEARNER.with_corpora([CORPUS]).learn([], config=few, seed=2) for _ in range(2))
    assert one.version == two.version
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("steps", [1, 2, 9, 10, 11, 20])
def test_it_learns_in_any_number_of_steps(steps: int) -> None:
    config = CONFIG.model_copy(update={"epochs": steps, "batch": 100})
    assert LEARNER.with_corpora([CORPUS]).learn([], config=config, seed=1).lineage.learner == "graph-gains"


def test_no_other_learner_learns_it() -> None:
    with pytest.raises(LearningError, match="--learner graph-gains"):
        LEARNERS.load("expected").check("graph-gains", None)
