"""What runs report of themselves: under virtual time, and two real processes that train together."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from espalier_core.types.job import AdaptiveTrainingJob
from espalier_trainer.checkpoints.store import CheckpointStore
from trainer_processes import ended, until

Runner = Callable[..., Any]


def test_a_run_reports_its_steps_noise_and_loss(run: Runner) -> None:
    done = run()
    found = done.reporter.report.measurements
    (speed,) = found.speeds
    assert (speed.nodes, speed.workers, speed.batch_size) == (1, 1, 64)
    assert speed.parameters == done.trainer.network.parameters
    assert 0 < speed.step_seconds < 1
    assert found.gradient is not None
    assert found.gradient.variance > 0
    assert found.losses[0].step == 0
    assert found.losses[-1].loss < found.losses[0].loss


def test_measuring_does_not_change_how_a_run_trains(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = run().trainer.network.module.state_dict()
    monkeypatch.setattr("espalier_trainer.run.meter.RunMeter.begin", lambda meter: False)
    plain = run()
    assert plain.reporter.report.measurements.gradient is None
    for name, tensor in plain.trainer.network.module.state_dict().items():
        assert torch.equal(tensor, measured[name]), name


def test_a_run_that_resumes_knows_what_it_measured(
    run: Runner, tmp_path: Path, stop_after: Callable[[int], Any]
) -> None:
    first = run(store=tmp_path, stop=stop_after(60)).reporter.report.measurements
    kept = CheckpointStore(tmp_path).load_latest()
    assert kept is not None
    assert kept.state.measurements.losses == first.losses
    again = run(store=tmp_path).reporter.report.measurements
    assert again.losses[0] == kept.state.measurements.losses[0] or again.losses[0].step == 0
    assert again.gradient.samples > first.gradient.samples


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_two_processes_report_both_configurations(
    workplace: Callable[..., Any], make_job: Callable[..., AdaptiveTrainingJob], nodes: int
) -> None:
    training = {"elasticBatch": "keepGlobal", "schedule": {"name": "Constant"}}
    job = make_job(timeBudgetSeconds=3600, maxReplicas=2, adaptation={"mode": "Off"}, training=training)
    # The process knows the name of its node from its environment.
    name = "os.environ['ESPALIER_NODE'] = os.environ.get('ESPALIER_WORKER_ROLE', 'base')" if nodes > 1 else ""
    place = workplace(job, prelude=name)
    place.allocate(1)
    leader = place.start()
    place.start(0)

    def measured(condition: Callable[[Any], bool]) -> Any:
        until(lambda: place.has_report() and condition(place.report().measurements), place)
        return place.report().measurements

    alone = measured(lambda found: found.speeds and found.gradient and found.gradient.samples >= 2)
    assert [(speed.nodes, speed.workers, speed.batch_size) for speed in alone.speeds] == [(1, 1, 64)]
    place.allocate(2)
    enough = alone.gradient.samples + 1
    both = measured(lambda found: found.gradient.samples >= enough and found.speeds[1:])
    together = both.speeds[-1]
    assert (together.nodes, together.workers, together.batch_size) == (nodes, 2, 32)
    assert together.sync_seconds > 0
    assert both.gradient.variance > 0
    os.kill(leader.pid, signal.SIGTERM)
    assert ended(leader, place) == 143


def test_a_script_of_the_user_is_measured_too(
    workplace: Callable[..., Any], make_job: Callable[..., AdaptiveTrainingJob]
) -> None:
    script = """
import torch
from torch import nn
from espalier_trainer.own import join
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(200, 8), torch.randint(0, 3, (200,)))
loader = torch.utils.data.DataLoader(data, batch_size=20, shuffle=True)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=.01)
loop, batches = join(model, optimizer, loader)
for epoch in loop.epochs(60):
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loop.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
"""
    place = workplace(make_job(timeBudgetSeconds=3600, adaptation={"mode": "Off"}), run=script)
    place.allocate(1)
    leader = place.start()
    assert ended(leader, place) == 0, place.log
    found = place.report().measurements
    assert [(speed.workers, speed.batch_size) for speed in found.speeds] == [(1, 20)]
    assert found.gradient is not None
    assert found.losses
