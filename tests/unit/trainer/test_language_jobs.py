"""Jobs of other tasks: a language model that gets blocks, with all that its training can ask for; a regression."""

from __future__ import annotations

import pytest
import torch

from espalier_core.types.advice import Action, AdviceRequest
from espalier_core.types.events import EpochFinished, TrainerFinished
from espalier_core.types.job import Insertion, OptimizerSpec
from espalier_core.types.report import AdaptationResult, TrainerPhase
from espalier_core.types.task import Task
from espalier_lab.virtual_time import Scripted
from espalier_trainer.data import load_data
from espalier_trainer.data.objective import objective_of
from espalier_trainer.errors import ModelError
from espalier_trainer.growth.consultation import allowed_actions
from espalier_trainer.models.zoo import build_model
from espalier_trainer.optimizers.averaging import AVERAGE, averaged
from espalier_trainer.optimizers.building import build_optimizer
from espalier_trainer.training.method import blocks_of, evaluate, recomputed

pytestmark = pytest.mark.slow

ADD = Action(kind="AddBlock", target="blocks.0")
OPTIMIZER = {
    "name": "AdamW",
    "learningRate": 0.01,
    "weightDecay": 0.1,
    "decayMatricesOnly": True,
    "betas": [0.9, 0.98],
    "maxGradientNorm": 0.5,
}
ALL = {
    "optimizer": OPTIMIZER,
    "schedule": {"name": "BudgetLinear", "warmup": 0.1, "restartOnGrowth": False},
    "accumulation": 2,
    "precision": "BFloat16",
    "weightAveraging": 0.9,
    "gradientCheckpointing": True,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.txt").write_text("".join(f"{number} and {number + 1} are {2 * number + 1}. " for number in range(400)))
    return folder / "a.txt"


@pytest.fixture
def language(make_job, corpus):
    """Return what makes jobs of a tiny GPT, and their data."""

    def make(adaptation=None, model=None, **training):
        job = make_job(
            timeBudgetSeconds=0.2,
            adaptation={"actions": ["AddBlock"]} | (adaptation or {}),
            training={
                "task": "LanguageModel",
                "model": {"name": "gpt", "options": {"width": 16} | (model or {})},
                "dataset": {"name": "text", "path": str(corpus), "options": {"context": 16, "windows": 80}},
                "batchSize": 8,
                "optimizer": {"name": "AdamW", "learningRate": 0.01},
            }
            | training,
        )
        return job, load_data(job.spec.training.dataset, Task.LANGUAGE_MODEL)

    return make


@pytest.mark.sweep("kinds of insertion")
@pytest.mark.parametrize("insertion", ["Exact", "Scaled"])
def test_a_language_model_grows_and_is_the_same_after_a_stop(run, language, tmp_path, stop_after, insertion):
    job, data = language({"insertion": insertion, "maxAdaptations": 2}, **ALL)
    arguments = {"advisor": Scripted((ADD, ADD)), "up_at": 0.06, "data": data}
    whole = run(job, **arguments)
    assert [one.result for one in whole.result.adaptations] == [AdaptationResult.GROWN] * 2
    assert len(whole.trainer.network.module.blocks) == (4 if insertion == "Scaled" else 3)
    score = whole.result.test_score
    assert score.measure == "bits_per_character"
    first, *_ = [event for event in whole.reporter.events if isinstance(event, EpochFinished)]
    assert score.ahead_of(first.score) > 0.5
    assert first.validation_accuracy is None
    (done,) = [event for event in whole.reporter.events if isinstance(event, TrainerFinished)]
    assert (done.score, done.test_accuracy) == (score, None)
    assert whole.result.adaptations[0].before is not None
    assert whole.result.adaptations[0].gained is not None

    stopped = run(job, **arguments, store=tmp_path / "run", stop=stop_after(40))
    assert stopped.result.phase is TrainerPhase.STOPPED
    again = run(job, **arguments, store=tmp_path / "run")
    wanted, found = whole.trainer.network, again.trainer.network
    again.assert_same_weights(whole)
    assert again.result.test_score == score
    assert [len(group["params"]) for group in found.optimizer.param_groups] == [
        len(group["params"]) for group in wanted.optimizer.param_groups
    ]


@pytest.mark.parametrize(
    ("advised", "blocks"), [(Insertion.UNFOLD, 6), (Insertion.SCALED, 6), (Insertion.EXACT, 4)], ids=str
)
def test_advice_says_how_blocks_are_inserted(run, language, advised, blocks):
    job, data = language({"maxAdaptations": 1}, model={"blocks": 3})
    done = run(job, advisor=Scripted((ADD.model_copy(update={"insertion": advised}),)), up_at=0.02, data=data)
    (grown,) = done.result.adaptations
    assert (grown.action, grown.result) == (f"AddBlock(blocks.0, {advised})", AdaptationResult.GROWN)
    assert len(done.trainer.network.module.blocks) == blocks
    assert (grown.loss_before is not None) is (advised is Insertion.SCALED)


@pytest.mark.parametrize(
    ("adaptation", "ways"),
    [
        ({}, [Insertion.UNFOLD, Insertion.EXACT, Insertion.SCALED]),
        ({"insertion": "Scaled"}, [Insertion.SCALED]),
        ({"insertion": "Exact"}, [None]),
    ],
)
def test_a_language_model_is_asked_about_in_each_way_that_its_job_allows(run, language, adaptation, ways):
    job, data = language(adaptation)
    trainer = run(job, data=data).trainer
    network, spec = trainer.network, job.spec.adaptation
    scalable = frozenset(point.id for point in network.architecture.blocks)
    found = allowed_actions(
        spec, network.architecture, network.parameters, frozenset(), Task.LANGUAGE_MODEL, lambda: scalable
    )
    wanted = tuple(ADD.model_copy(update={"insertion": way}) for way in ways)
    request = AdviceRequest(
        job="default/gpt",
        architecture=network.architecture,
        time_left_seconds=1,
        time_budget_seconds=2,
        allowed_actions=found,
    )
    assert request.actions() == (*wanted, Action.nothing())
    assert request.meant(ADD) == wanted[0]
    assert request.meant(Action.deepen("blocks.0")) is None


def test_what_nobody_asks_for_changes_nothing(run, language):
    job, data = language()
    off = {"accumulation": 1, "precision": "Float32", "weightAveraging": 0.0, "gradientCheckpointing": False}
    run(language(**off)[0], data=data).assert_same_weights(run(job, data=data))


@pytest.mark.parametrize("option", [{"accumulation": 4}, {"gradientCheckpointing": True}])
def test_steps_in_less_memory_are_the_same_steps(run, language, option):
    plain = run(language()[0], data=language()[1]).trainer.network.module.state_dict()
    other = run(language(**option)[0], data=language()[1]).trainer.network.module.state_dict()
    for name, tensor in plain.items():
        torch.testing.assert_close(other[name], tensor, atol=2e-3, rtol=0.05)


def test_blocks_are_computed_again_with_their_dropout(language):
    job, data = language(model={"dropout": 0.3, "blocks": 2})
    training = job.spec.training
    model = build_model(training.model, data.classes, data.example_input(), training.task)
    assert len(blocks_of(model)) == 2
    gradients = []
    for again in (False, True):
        torch.manual_seed(3)
        model.zero_grad()
        calls = []
        handle = model.blocks[0].attention.register_forward_hook(lambda *_: calls.append(1))  # noqa: B023
        if again:
            with recomputed(model):
                outputs = model(data.example_input())
        else:
            outputs = model(data.example_input())
        outputs.square().sum().backward()
        handle.remove()
        assert len(calls) == (2 if again else 1)
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    assert "forward" not in vars(model.blocks[0])


def test_only_matrices_decay(language):
    job, data = language(optimizer=OPTIMIZER)
    training = job.spec.training
    model = build_model(training.model, data.classes, data.example_input(), training.task)
    decayed, spared = build_optimizer(training.optimizer, model).param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    assert {parameter.ndim for parameter in decayed["params"]} == {2}
    assert {parameter.ndim for parameter in spared["params"]} == {1}
    assert decayed["betas"] == (0.9, 0.98)
    (single,) = build_optimizer(OptimizerSpec(decay_matrices_only=True), torch.nn.Linear(2, 2, bias=False)).param_groups
    assert single["weight_decay"] == 0.0


def test_the_average_of_the_weights_is_evaluated_also_of_those_that_growth_changes(run, language):
    job, data = language({"insertion": "Scaled", "maxAdaptations": 1}, weightAveraging=0.99)
    done = run(job, advisor=Scripted((ADD,)), up_at=0.1, data=data)
    network = done.trainer.network
    state = network.optimizer.state
    assert all(AVERAGE in state[parameter] for parameter in network.module.parameters())
    (steps,) = {state[parameter]["average_steps"] for parameter in network.module.parameters()}
    assert steps == done.result.steps
    before = {name: parameter.detach().clone() for name, parameter in network.module.named_parameters()}
    with averaged(network.optimizer):
        assert not torch.equal(network.module.head.weight, before["head.weight"])
        inside = evaluate(network.module, data.test, 8, objective=objective_of(Task.LANGUAGE_MODEL))
    assert inside.score == done.result.test_score
    assert all(torch.equal(parameter, before[name]) for name, parameter in network.module.named_parameters())


def test_a_regression_is_judged_by_r2(run, make_job):
    job = make_job(
        timeBudgetSeconds=0.4,
        training={
            "task": "Regression",
            "model": {"name": "mlp"},
            "dataset": {"name": "diabetes"},
            "batchSize": 32,
            "optimizer": {"learningRate": 0.003},
        },
    )
    data = load_data(job.spec.training.dataset, Task.REGRESSION)
    seedless = build_model(job.spec.training.model, 1, data.example_input(), Task.REGRESSION)
    assert sum(parameter.numel() for parameter in seedless.parameters()) == 10 * 16 + 16 + 16 * 16 + 16 + 16 + 1
    done = run(job, data=data, advisor=Scripted((Action.deepen("0"),)), up_at=0.1)
    assert done.result.test_score.measure == "r2"
    assert done.result.test_score.value > 0.3
    assert done.trainer.network.depth == 4
    assert "validation_rmse" in done.trainer._run.progress.metrics


def test_a_model_without_blocks_cannot_be_checkpointed(run, make_job):
    with pytest.raises(ModelError, match=r"^training.gradientCheckpointing: is true, and the model has no blocks"):
        run(make_job(training={"gradientCheckpointing": True}))


def test_outcomes_of_other_tasks_reach_the_agent_as_quality(run, language):
    job, data = language({"maxAdaptations": 1})
    advisor = Scripted((ADD,))
    done = run(job, advisor=advisor, up_at=0.1, data=data)
    (outcome,) = advisor.outcomes
    assert outcome.measure == "bits_per_character"
    assert outcome.final_accuracy == pytest.approx(2.0**-done.result.test_score.value)
