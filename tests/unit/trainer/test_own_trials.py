"""Growth of a user's own loop that is tried on extra workers first: real processes."""

from __future__ import annotations

import re

import pytest

from own_scripts import epochs, goes_on_together
from trainer_processes import SHORT_TRIALS, Workplace, decided, of, until

pytestmark = pytest.mark.slow

SCRIPT = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import espalier_trainer.trials.rules as rules
from espalier_trainer.own import join

rules.best = lambda arms, *_: next((each for each in arms if each.loss is not None and {wins}), None)

torch.manual_seed(0)
inputs = torch.randn(480, 8)
labels = (inputs.sum(1) > 0).long() + (inputs[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)
loader = DataLoader(TensorDataset(inputs[:240], labels[:240]), batch_size=24, shuffle=True)


def validate(module):
    assert not module.training
    assert not torch.is_grad_enabled()
    assert module is model
    return nn.functional.cross_entropy(module(inputs[240:]), labels[240:])


loop, loader = join(model, optimizer, loader, scheduler, grow=True{validate})
taken = alone = 0
for epoch in loop.epochs():
    for features, targets in loader:
        workers = loop.workers
        assert model.training
        loss = nn.functional.cross_entropy(model(features), targets)
        optimizer.zero_grad()
        loop.backward(loss)
        optimizer.step()
        time.sleep(0.005)
        taken += 1
        alone += workers == 1
        if {leaves}:
            break
    scheduler.step()
    rate = optimizer.param_groups[0]["lr"]
    assert abs(rate - 0.05 * 0.9999 ** (epoch + 1)) < 1e-9, f"{{rate}} after epoch {{epoch}}"
    size = sum(parameter.square().sum().item() for parameter in model.parameters())
    said = f"{{epoch}}: {{len(list(model.parameters()))}} tensors of length {{size ** 0.5:.9f}}"
    copied = f"copy {{loop.fraction:.4f}} {{alone}} {{said}}"
    print(f"epoch {{said}}" if loop.leads or workers > 1 else copied, flush=True)
"""
"""What happens once an epoch must have happened so often in all workers, also after a trial."""
GROWTH, NOTHING = "each.action != 'Nothing'", "each.action == 'Nothing'"


@pytest.fixture
def tried(scripted):
    """Start a script with `extra` extra workers that try a growth before it is carried out."""

    def make(
        trials: str, extra: int, wins: str = GROWTH, leaves: str = "False", validate: str = ", validate=validate"
    ) -> Workplace:
        adaptation = {"mode": "Auto", "trials": trials, "fallback": "Heuristic", "maxAdaptations": 1}
        text = SCRIPT.format(wins=wins, leaves=leaves, validate=validate)
        place = scripted(text, adaptation=adaptation, maxReplicas=1 + extra)
        place.prelude = SHORT_TRIALS
        place.allocate(1 + extra)
        place.processes = [place.start(), *(place.start(index) for index in range(extra))]
        return place

    return make


def test_one_worker_confirms_while_the_base_trains_on(tried):
    place = tried("Confirm", 1)
    (began,) = until(lambda: of(place, "TrialsStarted"), place)
    assert began.actions == ("Deepen(0)", "Nothing")
    before = place.report().step
    adaptation = decided(place)
    assert place.report().step > before, "the base trains on"
    grown, nothing = adaptation.arms
    assert (grown.action, nothing.action) == ("Deepen(0)", "Nothing")
    assert grown.annealed
    assert 0 < nothing.loss < 2
    assert adaptation.result == "Grown"
    assert "validation loss when tried: Deepen(0) " in adaptation.message
    # The steps that the worker took alone, before the first arm and the second ended.
    copies = re.findall(r"^copy (\S+) (\d+) \d+: (\d) tensors", place.logs(0), re.M)
    counted = {tensors: int(alone) for _, alone, tensors in copies}
    assert counted == {"8": grown.steps, "6": grown.steps + nothing.steps}
    # The arms saw the budget pass as the job does, not all of it.
    assert max(float(fraction) for fraction, *_ in copies) < 0.7
    goes_on_together(place, 2)


def test_training_goes_on_from_the_copy_that_won_a_race(tried):
    place = tried("Race", 2)
    (began,) = until(lambda: of(place, "TrialsStarted"), place)
    assert began.workers == 2
    before = epochs(place.log)
    adaptation = decided(place)
    assert adaptation.result == "Grown"
    assert not adaptation.arms[0].annealed
    assert adaptation.depth_after == adaptation.depth_before + 1
    assert adaptation.parameters_after > adaptation.parameters_before
    goes_on_together(place, 3)
    after = epochs(place.log)
    tensors = {number: int(said.split()[0]) for number, said in after.items()}
    assert {tensors[number] for number in before} == {6}
    assert tensors[max(tensors)] == 8
    # What the leader goes on with is what the worker has trained: it has printed the last epochs of that before.
    first = min(number for number, count in tensors.items() if count == 8)
    assert first - 1 in {int(number) for number in re.findall(r"^copy \S+ \d+ (\d+): 8 ", place.logs(0), re.M)}


def test_one_worker_races_against_the_base_which_the_leader_evaluates(tried):
    place = tried("Race", 1, leaves="taken % 7 == 0 and workers == 1")  # epochs may end early
    adaptation = decided(place)
    won, base = adaptation.arms
    assert (won.action, base.action, base.message) == ("Deepen(0)", "Nothing", "the base itself")
    assert 0 < base.loss < 2
    assert adaptation.result == "Grown"
    goes_on_together(place, 2)
