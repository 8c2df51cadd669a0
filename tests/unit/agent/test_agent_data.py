"""What the agent carries is what it says."""

from __future__ import annotations

import pytest
import torch
from bodies import ask

from espalier_agent.data import NAMED_MODELS, carried_tables, lamelas_tables, named_architecture, table_sets
from espalier_agent.evaluation.evaluate import evaluate
from espalier_agent.learners.expected import FIT, ExpectedConfig, learn
from espalier_agent.policies.advice import decide
from espalier_agent.policies.policy import Policy
from espalier_agent.tables.tree import table_digest
from espalier_core.growth.deepen import deepened
from espalier_core.types.advice import Action
from espalier_core.types.job import Insertion
from espalier_core.types.outcomes import OutcomeTable
from espalier_trainer.models import zoo as models
from espalier_trainer.net2net.description import describe

SETS = ("lamelas", "digits", "cifar8")
"""Of tables that the shipped policy has learnt."""


def test_the_papers_starting_models_have_the_papers_layers() -> None:
    def weights(name: str) -> list[tuple[object, ...]]:
        keys = ("in_channels", "out_channels", "kernel_size", "in_features", "out_features")
        layers = [layer for layer in named_architecture(name).layers if layer.operator in ("Conv2d", "Linear")]
        return [tuple(layer.attributes[key] for key in keys if key in layer.attributes) for layer in layers]

    assert weights("cnn1") == [(3, 32, (3, 3)), (32, 32, (3, 3)), (32, 10)]
    assert weights("cnn2") == [(3, 64, (3, 3)), (64, 32, (3, 3)), (32, 10)]


@pytest.mark.parametrize("name", NAMED_MODELS)
def test_growing_a_starting_model_adds_the_papers_layers(name: str) -> None:
    """A convolution of the same kernel, padded by half of it, normalisation and activation; or linear, activation."""
    start = named_architecture(name)
    for point, added in (("block0", 3), ("block1", 3), ("block2", 2)):
        grown = deepened(start, point)
        assert len(grown.layers) == len(start.layers) + added
        assert grown.depth == start.depth + 1
    convolution = deepened(start, "block0").layers[4]
    assert convolution.attributes["padding"] == (1, 1)
    assert convolution.attributes["in_channels"] == convolution.attributes["out_channels"]


@pytest.mark.parametrize("name", NAMED_MODELS)
def test_a_starting_model_is_described_as_the_trainer_describes_it(name: str) -> None:
    """With the paper's insertion. The files are this description's `to_json()`, indented by one."""
    built = getattr(models, name)()
    described = describe(built, torch.zeros(2, 3, 32, 32), Insertion.IDENTITY_BATCH_NORM)
    assert named_architecture(name) == described


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        named_architecture("cnn3")
    with pytest.raises(KeyError):
        carried_tables("cnn3")


def test_the_papers_tables_are_there_with_their_published_figures() -> None:
    found = {
        table.name: (table.outcome((3, 3, 3)).accuracy, max(o.accuracy for o in table.sequences))
        for table in lamelas_tables()
    }
    assert found == {
        "cnn1-early": (0.6221, 0.7391),
        "cnn1-middle": (0.6045, 0.7348),
        "cnn1-late": (0.5912, 0.6827),
        "cnn2-early": (0.3079, 0.4190),
        "cnn2-middle": (0.3249, 0.4092),
        "cnn2-late": (0.2950, 0.3707),
    }


def carried() -> dict[str, OutcomeTable]:
    return {table_digest(table): table for name in table_sets() for table in carried_tables(name)}


def test_the_shipped_policy_was_learnt_from_carried_tables(policy: Policy) -> None:
    learnt = {table_digest(table) for name in SETS for table in carried_tables(name)}
    assert {table.sha256 for table in policy.lineage.tables} == learnt
    assert policy.lineage.learner == "expected"
    assert policy.lineage.parent is None


def test_the_shipped_policy_is_better_than_the_papers_agents(policy: Policy) -> None:
    evaluation = evaluate(policy, lamelas_tables())
    for result in evaluation.tables:
        assert result.accuracy > result.random_mean_accuracy > result.none.accuracy
    # The best curriculum agent of the paper has a mean regret of .0184 on the three tables of cnn1 that it learnt.
    assert sum(result.regret for result in evaluation.tables if result.model == "cnn1") / 3 < 0.0184


def test_the_shipped_policy_can_be_made_again_from_its_lineage(policy: Policy) -> None:
    """In a tenth of its updates: the same words and shapes, and better than chance where it was learnt."""
    lineage = policy.lineage
    tables = [carried()[table.sha256] for table in lineage.tables]
    config = ExpectedConfig.model_validate(lineage.config)
    assert config == FIT.model_copy(update={"time_jitter": 0.1})
    short = config.model_copy(update={"updates": config.updates // 10})
    again = learn(tables, config=short, seed=lineage.seed, name=policy.name)
    assert again.lineage.tables == lineage.tables
    assert again.vocabulary.keys == policy.vocabulary.keys
    assert torch.equal(again.vocabulary.embeddings, policy.vocabulary.embeddings)
    assert again.network.config == policy.network.config
    results = evaluate(again, tables).tables
    assert sum(result.accuracy - result.random_mean_accuracy for result in results) > 0.02 * len(results)


def test_tables_of_our_own_have_seeds_and_controls() -> None:
    """As they were collected: at least five scenarios of the example, three of cifar8, three seeds each."""
    for name, scenarios in (("digits", 5), ("cifar8", 3)):
        tables = carried_tables(name)
        assert len({table.scenario for table in tables}) == len(tables) >= scenarios
        for table in tables:
            assert table.seeds == (0, 1, 2)
            controls = {control.name.partition(" ")[0] for control in table.controls}
            assert controls == {"restart", "throughput", "scratch"}
            assert all(len(each.accuracies or ()) == 3 for each in (*table.sequences, *table.controls))


def test_tables_of_cifar8_teach_when() -> None:
    """Growing block 0 pays early and in the middle; late nothing is better than doing nothing, but by noise."""
    gains = {}
    for table in carried_tables("cifar8"):
        nothing = table.outcome((3, 3))
        best = max(table.sequences, key=lambda outcome: outcome.accuracy)
        gains[table.scenario] = best.accuracy - nothing.accuracy
        assert table.scenario == "80%" or best.actions[0] == 0
    assert gains["20%"] > gains["50%"] > 0.04
    assert gains["80%"] < 0.01


def test_the_shipped_policy_deepens_the_useful_block_of_the_example(policy: Policy) -> None:
    """At any time: what its own tables teach of the digits net (deepening block 0 pays, the others do not)."""
    architecture = carried_tables("digits")[0].architecture
    for percent in range(5, 100, 5):
        asked = ask(architecture, left=percent / 5, time_budget_seconds=20)
        assert decide(policy, asked).action == Action.deepen("block0")
