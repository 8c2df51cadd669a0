"""Accelerate, Lightning and the Trainer of Hugging Face as workers of a job: they join, grow, and end in time."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from espalier_api.validation import load_jobs
from espalier_trainer.own import OwnLoopError
from own_scripts import members
from trainer_processes import Workplace, ended, until

pytestmark = pytest.mark.slow

LOOPS = Path(__file__).parents[3] / "examples" / "loops"
BATCHES = DataLoader(TensorDataset(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)), batch_size=2)
# Warnings of these libraries about each other are not ours.
QUIET = "import warnings\nwarnings.simplefilter('ignore')\n"


@pytest.mark.sweep("loops of other libraries")
@pytest.mark.parametrize(("name", "grown"), [("accelerate", 8), ("lightning", 8), ("transformers", 4)])
def test_workers_join_and_the_model_grows(scripted: Callable[..., Workplace], name: str, grown: int) -> None:
    (job,) = load_jobs(LOOPS / f"{name}.yaml")
    adaptation = job.spec.adaptation.to_json()
    place = scripted(LOOPS / f"{name}_loop.py", "1000000", budget=3600, adaptation=adaptation)
    place.prelude = QUIET
    place.allocate(1)
    leader = place.start()
    extra = place.start(0)
    until(lambda: place.has_report() and place.report().step > 30, place)
    place.allocate(2)
    until(lambda: members(place)[-1:] == [2], place)
    report = until(lambda: found if len((found := place.report()).adaptations) == 2 else None, place)
    assert [each.result for each in report.adaptations] == ["Grown", "Grown"]
    until(lambda: place.report().step > report.step + 60, place)
    # Nobody was sent a state because he had another one.
    assert not any(event.type == "Warned" and event.reason == "MembersDiffer" for event in place.events())
    assert leader.is_alive()
    assert extra.is_alive()
    place.allocate(2, budget=1)
    assert ended(leader, place) == 0, place.log
    count = int(re.findall(r"(\d+) (?:parameters|layers)", place.log)[-1])
    assert count == grown
    accuracy = float(re.findall(r"^accuracy (.*?)(?:,|$)", place.log, re.M)[0])
    figures = {metric.name: metric.value for metric in place.report().metrics}
    assert figures["test_accuracy"] == pytest.approx(accuracy, abs=1e-3)
    assert place.report().phase == "Completed"


def test_what_would_go_wrong_is_refused_with_the_remedy(tmp_path: Path) -> None:
    import lightning
    import transformers
    from accelerate import Accelerator

    from espalier_trainer.integrations.accelerate import join
    from espalier_trainer.integrations.lightning import ElasticWorker
    from espalier_trainer.integrations.transformers import ElasticTrainer

    class Two(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    with pytest.raises(OwnLoopError, match="its batches are for `fit` of a Trainer that has it among its callbacks"):
        next(iter(ElasticWorker(BATCHES).batches))
    elastic = ElasticWorker(BATCHES)
    with pytest.raises(OwnLoopError, match="Two has parameters in first, second; put all that is trained into one"):
        elastic._trained(Two())
    assert ElasticWorker(BATCHES, network="second")._trained(two := Two()) is two.second
    with pytest.raises(OwnLoopError, match="Two has no module 'third'"):
        ElasticWorker(BATCHES, network="third")._trained(Two())
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accelerator = Accelerator(mixed_precision="bf16", cpu=True)
    with pytest.raises(OwnLoopError, match="changes the model's forward, which would be lost when the model grows"):
        join(accelerator, model, accelerator.prepare(optimizer), BATCHES, grow=True)
    _, batches = join(accelerator, *accelerator.prepare(model, optimizer), BATCHES)
    assert len(list(batches)) == 2
    arguments = transformers.TrainingArguments(str(tmp_path), gradient_accumulation_steps=2, report_to="none")
    with pytest.raises(OwnLoopError, match="gradient_accumulation_steps must be 1"):
        ElasticTrainer(model, arguments)
