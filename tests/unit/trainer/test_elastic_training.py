"""What several workers come to together, beside one alone: threads that are workers, over real connections."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from espalier_core.types.job import AdaptiveTrainingJob, Fallback
from espalier_lab.virtual_time import ReplicaChange
from espalier_trainer.builtin_loop.worker import BuiltinWorker
from espalier_trainer.data import Data, load_data
from espalier_trainer.distillation import ShrinkRule
from espalier_trainer.distillation.shrinking import Shrinker, ShrinkOptions
from espalier_trainer.elastic import Team, generations, group, member
from espalier_trainer.elastic.membership import WorkerIdentity
from espalier_trainer.elastic.states import digest
from espalier_trainer.growth.advisor import FallbackPolicy, NoAgent, WithFallback
from espalier_trainer.models.zoo import build_model
from espalier_trainer.net2net.randomness import seed_everything
from espalier_trainer.process.settings import Rendezvous
from espalier_trainer.run import optimising
from espalier_trainer.run.journal import RunJournal
from espalier_trainer.training.method import Method
from espalier_trainer.training.network import Network, new_network, resumed_network
from waiting import PATIENCE, until

pytestmark = pytest.mark.slow

Run = Callable[..., Any]
CPU = torch.device("cpu")


class Workers:
    """Followers in threads."""

    def __init__(self, job: AdaptiveTrainingJob, data: Data, place: Path) -> None:
        self.job, self.data, self.place = job, data, place
        self.stopped = threading.Event()
        self.followers: list[BuiltinWorker] = []
        self.ended: list[bool] = []
        self._threads: list[threading.Thread] = []

    def start(self, count: int) -> None:
        for index in range(count):
            training, data = self.job.spec.training, self.data
            seed_everything(training.seed + 1)  # their own starting weights do not matter
            model = build_model(training.model, data.classes, data.example_input(), data.task)
            network, _ = new_network(
                model, training.optimizer, data.example_input(), self.job.spec.adaptation.described_insertion
            )
            follower = BuiltinWorker(
                self.job, network, data, CPU, training.seed, WorkerIdentity(index=index), stop=self.stopped.is_set
            )
            self.followers.append(follower)
            self._threads.append(threading.Thread(target=self._run, args=(follower,), daemon=True))
            self._threads[-1].start()

    def _run(self, follower: BuiltinWorker) -> None:
        self.ended.append(follower.run(Rendezvous(str(self.place))))

    def close(self) -> None:
        self.stopped.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Let no generation break because a busy machine holds up one of these threads while it forms."""
    for module in (group, member, generations):
        monkeypatch.setattr(module, "FORM_SECONDS", 30.0)


@pytest.fixture
def together(run, digits, tmp_path):
    """Run a job with so many workers from its beginning; returns the run, and its workers."""
    crews: list[Workers] = []

    def start(job: AdaptiveTrainingJob, count: int, **options: Any) -> tuple[Any, Workers]:
        workers = Workers(job, options.get("data", digits), tmp_path / f"rendezvous-{len(crews)}")
        crews.append(workers)

        def team(journal: RunJournal) -> Team:
            found = Team(Rendezvous(str(workers.place)), CPU, journal.warn, journal.workers_changed)
            seed = torch.get_rng_state()
            workers.start(count - 1)
            torch.set_rng_state(seed)
            until(lambda: found.waiting == count - 1)
            return found

        arrivals = options.pop("arrivals", (ReplicaChange(0, count),))
        done = run(job, team=team, arrivals=arrivals, **options)
        return done, workers

    yield start
    for workers in crews:
        workers.close()


def losses(done: Any) -> list[float]:
    return [event.train_loss for event in done.reporter.events if event.type == "EpochFinished"]


def test_with_the_batch_kept_several_workers_learn_what_one_learns(make_job, together):
    """Three: of a batch of 64 their shares differ."""
    job = make_job(
        maxReplicas=4,
        adaptation={"mode": "Off"},
        training={
            "elasticBatch": "keepGlobal",
            "syncBatchNorm": True,
            "optimizer": {"name": "SGD", "momentum": 0.9, "learningRate": 0.05},
        },
    )
    alone, _ = together(job, 1)
    many, workers = together(job, 3)
    assert many.result.steps == alone.result.steps >= 100
    assert losses(many) == pytest.approx(losses(alone), rel=1e-3)
    for name, tensor in alone.trainer.network.module.state_dict().items():
        torch.testing.assert_close(many.trainer.network.module.state_dict()[name], tensor, rtol=1e-2, atol=1e-3)
    assert_all_hold_the_same(many, workers)


def assert_all_hold_the_same(done: Any, workers: Workers) -> None:
    """Assert that the workers were told of the end, and hold the leader's bits."""
    until(lambda: len(workers.ended) == len(workers.followers))
    assert all(workers.ended)
    held = [follower.network for follower in workers.followers]
    assert {digest(network) for network in held if network is not None} == {digest(done.trainer.network)}


TWICE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(1, 8, 3), nn.Linear(8 * 36, 10)

    def forward(self, inputs):
        return self.last((torch.relu(self.conv(inputs)) + torch.tanh(self.conv(inputs))).flatten(1))

def net():
    return Net()
"""


@pytest.fixture
def _traced_alone(monkeypatch):
    """Let no worker compute while another traces: `torch.fx` takes all calls of modules in the process for its own.

    Workers are threads here; outside of tests each has a process.
    """
    alone = threading.RLock()

    def locked(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            with alone:
                return function(*given, **named)

        return run

    monkeypatch.setattr(torch.fx.Tracer, "trace", locked(torch.fx.Tracer.trace))
    monkeypatch.setattr(Method, "forward", locked(Method.forward))


@pytest.mark.usefixtures("_traced_alone")
def test_members_compute_steps_by_the_leaders_rules(make_job, together, users_module, monkeypatch):
    """It finds a convolution that is computed twice; whatever a busy machine lets it measure is enough of a gain."""
    users_module("twice_shared", TWICE)
    monkeypatch.setattr(optimising, "too_little", lambda *_: "")
    job = make_job(
        adaptation={"mode": "Off", "optimise": "Rewrites", "optimiseShare": 0.5},
        timeBudgetSeconds=0.6,
        training={"elasticBatch": "keepGlobal", "model": {"entrypoint": "twice_shared:net"}, "batchSize": 32},
    )
    done, workers = together(job, 2, clock=time.process_time)
    (found,) = done.result.adaptations
    assert found.result == "Rewritten", found.message
    (follower,) = workers.followers
    network = follower.network
    assert network.execution.plan == done.trainer.network.execution.plan
    assert_all_hold_the_same(done, workers)


@pytest.mark.sweep("kinds of insertion")
@pytest.mark.parametrize("insertion", ["Scaled", "Unfold"])
def test_members_of_a_language_model_clip_average_and_grow_alike(make_job, together, tmp_path, insertion):
    (tmp_path / "text.txt").write_text("".join(f"{number} and one are {number + 1}. " for number in range(500)))
    job = make_job(
        timeBudgetSeconds=0.2,
        adaptation={
            "actions": ["AddBlock"],
            "insertion": insertion,
            "maxAdaptations": 1,
            "fallback": "Heuristic",
            "trials": "Off",
        },
        training={
            "task": "LanguageModel",
            "model": {"name": "gpt", "options": {"width": 16}},
            "dataset": {"name": "text", "path": str(tmp_path / "text.txt"), "options": {"context": 16, "windows": 80}},
            "batchSize": 8,
            "elasticBatch": "keepGlobal",
            "optimizer": {"name": "AdamW", "decayMatricesOnly": True, "weightDecay": 0.1, "maxGradientNorm": 0.1},
            "schedule": {"name": "BudgetLinear", "warmup": 0.1, "restartOnGrowth": False},
            "weightAveraging": 0.9,
            "accumulation": 2,
            "gradientCheckpointing": True,
        },
    )
    data = load_data(job.spec.training.dataset, job.spec.training.task)
    advisor = WithFallback(NoAgent(), FallbackPolicy(Fallback.HEURISTIC))
    done, workers = together(job, 2, data=data, advisor=advisor)
    assert len(done.trainer.network.module.blocks) == 2
    assert_all_hold_the_same(done, workers)


def test_all_members_teach_a_smaller_model_together(make_job, together):
    job = make_job(
        maxReplicas=3,
        timeBudgetSeconds=0.6,
        adaptation={"maxAdaptations": 2, "trials": "Off", "onReclaim": "Distill"},
        training={"elasticBatch": "keepGlobal"},
    )
    advisor = WithFallback(NoAgent(), FallbackPolicy(Fallback.HEURISTIC, 0))
    shrink_options = ShrinkOptions(rule=ShrinkRule(slower=0, share=0.5, least_steps=10), insist=True)
    gone = (ReplicaChange(0, 3), ReplicaChange(0.2, 2))
    done, workers = together(job, 3, advisor=advisor, arrivals=gone, shrink_options=shrink_options)
    assert [each.result for each in done.result.adaptations] == ["Grown", "Grown", "Shrunk"]
    assert done.result.depth_after < done.result.depth_before + 2
    teachers = [each.hooks.teacher for each in workers.followers if isinstance(each.hooks, Shrinker)]
    taught = [teacher for teacher in teachers if teacher is not None]
    # Of the one that went on, whose examples are not those that the leader had answered.
    assert len(taught) == 1
    leaders = done.trainer.hooks.teacher
    assert leaders.keeps
    assert not torch.equal(leaders.tensors()["known"], torch.zeros(len(leaders.tensors()["known"]), dtype=torch.bool))
    held = [follower.network for follower in workers.followers if follower.network is not None]
    assert digest(done.trainer.network) in {digest(network) for network in held}


def test_with_the_batch_scaled_an_epoch_has_fewer_steps(make_job, together):
    training = {"elasticBatch": "scaleLinear", "schedule": {"name": "Constant"}, "optimizer": {"learningRate": 0.004}}
    job = make_job(maxReplicas=3, adaptation={"mode": "Off"}, training=training)
    alone, _ = together(job, 1)
    many, workers = together(job, 3)
    assert many.result.steps == alone.result.steps
    assert set(_steps_of_epochs(many, 3)) == {math.ceil(max(_steps_of_epochs(alone, 1)) / 3)}
    assert many.trainer.network.optimizer.param_groups[0]["lr"] in (0.004, 0.008, 0.012)  # the last step of an epoch
    assert_all_hold_the_same(many, workers)


def _steps_of_epochs(done: Any, workers: int) -> list[int]:
    """Return the optimizer steps of the epochs that so many workers trained from their first step to their last."""
    steps, count, began, whole = [], 1, 0, True
    for event in done.reporter.events:
        if event.type == "WorkersChanged":
            count, whole = event.workers, False
        elif event.type == "EpochFinished":
            if whole and count == workers:
                steps.append(event.step - began)
            began, whole = event.step, True
    return steps


def test_a_worker_gives_up_its_network_before_it_builds_another(make_job, digits, run, tmp_path, monkeypatch):
    job = make_job(training={"elasticBatch": "keepGlobal"})
    state = run(job).trainer._run.saver.capture()
    workers = Workers(job, digits, tmp_path / "nowhere")
    workers.stopped.set()
    workers.start(1)
    follower, build, held = workers.followers[0], resumed_network, []

    def building(*given: Any) -> Network:
        held.append(follower.network)
        return build(*given)

    monkeypatch.setattr("espalier_trainer.builtin_loop.state.resumed_network", building)
    for _ in range(2):
        assert follower.held.take(state) is follower.network
    assert held == [None, None]
    workers.close()
