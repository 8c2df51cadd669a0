"""Accelerate, Lightning and the Trainer of Hugging Face as workers of a job: real processes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from espalier_core.types.report import Adaptation
from espalier_core.validation.reading import load_jobs
from own_scripts import epochs, goes_on_together
from trainer_processes import SHORT_TRIALS, Workplace, decided, ended, members, of, until

pytestmark = pytest.mark.slow
PACE = 0.01

LOOPS = Path(__file__).parents[3] / "examples" / "loops"
# Warnings of these libraries about each other are not ours.
QUIET = "import warnings\nwarnings.simplefilter('ignore')\n"

COMMON = """
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset
import espalier_trainer.trials.rules as rules

rules.best = lambda arms, *_: next((each for each in arms if each.action != "Nothing" and each.loss), None)
torch.manual_seed(0)
inputs = torch.randn(320, 8)
labels = (inputs.sum(1) > 0).long() + (inputs[:, 0] > 0).long()
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
parameters = list(net.parameters())
data = TensorDataset(inputs[:160], labels[:160])


def validate(module):
    assert not module.training
    return nn.functional.cross_entropy(module(inputs[160:]), labels[160:])


def tell(loop, step, rate):
    average.update_parameters(net)
    size = sum(parameter.square().sum().item() for module in (net, average) for parameter in module.parameters())
    said = f"{len(list(net.parameters()))} tensors, {len(list(average.parameters()))}, {size:.9f}, rate {rate:.9f}"
    who = "epoch" if loop.leads or loop.workers > 1 else "copy"
    print(f"{who} {step}: {said}", flush=True)
"""

ACCELERATE = """
from accelerate import Accelerator
from espalier_trainer.integrations.accelerate import join

accelerator = Accelerator(gradient_accumulation_steps=2)
optimizer = torch.optim.AdamW(parameters, lr=0.01)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)
net, optimizer, scheduler = accelerator.prepare(net, optimizer, scheduler)
loader = DataLoader(data, batch_size=8, shuffle=True)
loop, loader = join(accelerator, net, optimizer, loader, scheduler, average, grow=True, validate=validate)
for epoch in loop.epochs():
    for features, targets in loader:
        with accelerator.accumulate(net):
            accelerator.backward(nn.functional.cross_entropy(net(features), targets))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            tell(loop, scheduler.scheduler.last_epoch, optimizer.param_groups[0]["lr"])
"""

LIGHTNING = """
import lightning
from espalier_trainer.integrations.lightning import ElasticWorker


class Reader(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Tell(lightning.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        assert batch_idx == trainer.fit_loop.epoch_loop.batch_progress.current.ready - 1
        if elastic.loop.should_step:
            assert trainer.global_step == (batch_idx + 1) // 2
            assert trainer.global_step == trainer.lr_scheduler_configs[0].scheduler.last_epoch
            tell(elastic.loop, trainer.global_step, trainer.optimizers[0].param_groups[0]["lr"])


loader = DataLoader(data, batch_size=8, shuffle=True)
elastic = ElasticWorker(loader, grow=True, accumulate=2, validate=validate, others=[average])
lightning.Trainer(
    max_epochs=1, callbacks=[elastic, Tell()], accelerator="cpu", devices=1, logger=False, gradient_clip_val=1.0,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
).fit(Reader(), elastic.batches)
"""

TRANSFORMERS = """
import transformers
from espalier_trainer.integrations.transformers import ElasticTrainer


class Model(nn.Sequential):
    def forward(self, features, labels=None):
        logits = super().forward(features)
        return logits if labels is None else (nn.functional.cross_entropy(logits, labels), logits)


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"features": inputs[self.rows[index]], "labels": labels[self.rows[index]]}


class Tell(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        tell(trainer.loop, state.global_step, trainer.optimizer.param_groups[0]["lr"])


net.__class__ = average.module.__class__ = Model
arguments = transformers.TrainingArguments(
    ".", per_device_train_batch_size=16, max_steps=1_000_000_000, save_strategy="no", report_to="none", use_cpu=True,
    learning_rate=0.01, logging_strategy="no", disable_tqdm=True,
)
trainer = ElasticTrainer(
    net, arguments, train_dataset=Rows(range(160)), eval_dataset=Rows(range(160, 320)), callbacks=[Tell()],
    grow=True, others=[average],
)
trainer.train()
"""
"""It gives no `validate`: the loss on its eval_dataset decides."""

SCRIPTS = {"accelerate": ACCELERATE, "lightning": LIGHTNING, "transformers": TRANSFORMERS}


def joins_and_grows(scripted: Callable[..., Workplace], library: str) -> None:
    """The example: workers join, the model grows, and the job ends in time."""
    (job,) = load_jobs(LOOPS / f"{library}.yaml")
    adaptation = job.spec.adaptation.to_json() | {"trials": "Off"}
    place = scripted(LOOPS / f"{library}_loop.py", "1000000", budget=3600, adaptation=adaptation)
    place.prelude, place.pace = QUIET, 0.0
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
    assert count == (4 if library == "transformers" else 8)
    accuracy = float(re.findall(r"^accuracy (.*?)(?:,|$)", place.log, re.M)[0])
    figures = {metric.name: metric.value for metric in place.report().metrics}
    assert figures["test_accuracy"] == pytest.approx(accuracy, abs=1e-3)
    assert place.report().phase == "Completed"


def tried(scripted: Callable[..., Workplace], library: str, trials: str) -> tuple[Workplace, Adaptation]:
    """Let an extra worker try a growth; return the job, and what came of it."""
    adaptation = {"mode": "Auto", "trials": trials, "fallback": "Heuristic", "maxAdaptations": 1}
    place = scripted(COMMON + SCRIPTS[library], adaptation=adaptation, maxReplicas=2)
    place.prelude = QUIET + SHORT_TRIALS
    place.allocate(2)
    place.start()
    place.start(0)
    (began,) = until(lambda: of(place, "TrialsStarted"), place)
    assert began.actions == ("Deepen(0)", "Nothing")
    return place, decided(place)


def grows_as_a_copy_has_confirmed(scripted: Callable[..., Workplace], library: str) -> None:
    """An extra worker tries a growth and none, and the base, which has trained meanwhile, grows and goes on."""
    place, adaptation = tried(scripted, library, "Confirm")
    grown, nothing = adaptation.arms
    assert (grown.action, nothing.action, adaptation.result) == ("Deepen(0)", "Nothing", "Grown")
    goes_on_together(place, 2)
    steps = epochs(place.log)
    assert sorted(steps) == list(range(1, len(steps) + 1))
    sizes = [steps[step].split(",")[0] for step in sorted(steps)]
    assert sizes == sorted(sizes)
    assert set(sizes) == {"4 tensors", "6 tensors"}


def goes_on_from_the_copy_that_won(scripted: Callable[..., Workplace], library: str) -> None:
    """An extra worker tries a growth, and everything that the library holds goes on from what that has trained."""
    place, adaptation = tried(scripted, library, "Race")
    won, base = adaptation.arms
    assert (won.action, base.message, adaptation.result) == ("Deepen(0)", "the base itself", "Grown")
    # Steps, average, learning rate: what one worker has at a step, the other one has.
    goes_on_together(place, 2)
    after = epochs(place.log)
    assert after[max(after)].startswith("6 tensors, 6, ")
    # Steps go on from those of the copy, not from the base's.
    copy = max(int(step) for step in re.findall(r"^copy (\d+): 6 ", place.logs(0), re.M))
    assert min(step for step, said in after.items() if said.startswith("6 tensors")) == copy + 1


@pytest.mark.sweep("loops of other libraries")
@pytest.mark.parametrize("library", SCRIPTS)
@pytest.mark.parametrize("run", [joins_and_grows, grows_as_a_copy_has_confirmed, goes_on_from_the_copy_that_won])
def test_workers_of_a_job(scripted, run, library):
    run(scripted, library)
