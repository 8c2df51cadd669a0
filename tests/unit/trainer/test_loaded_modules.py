"""What a trainer loads before its first step: little, and nothing that only other jobs need."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from waiting import PATIENCE

MOST = 140
"""Modules of `espalier_trainer`."""
OF_OTHER_JOBS = (
    "espalier_trainer.distillation",
    "espalier_trainer.trials",
    "espalier_trainer.run.optimising",
    "espalier_lab",
)
"""What is loaded where a job asks to distil, to try growths, or to rewrite steps."""

WATCHED = """
import os, sys
from pathlib import Path
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

def first_step(*_):
    Path("modules").write_text("\\n".join(sys.modules))
    os._exit(0)

def model():
    register_optimizer_step_pre_hook(first_step)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
"""

SCRIPT = """
import torch
from watched import model
from espalier_trainer.own import join

net = model()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
examples = torch.utils.data.TensorDataset(torch.randn(64, 1, 8, 8), torch.randint(10, (64,)))
loop, batches = join(net, optimizer, torch.utils.data.DataLoader(examples, 16, shuffle=True), grow=True)
for epoch in loop.epochs():
    for inputs, labels in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
"""


@pytest.mark.parametrize("program", [["-m", "espalier_trainer"], ["script.py"]], ids=["ready", "script"])
def test_a_trainer_loads_what_its_job_asks_for(program, workplace, make_job, tmp_path):
    (tmp_path / "watched.py").write_text(WATCHED)
    (tmp_path / "script.py").write_text(SCRIPT)
    place = workplace(make_job(timeBudgetSeconds=600, training={"model": {"entrypoint": "watched:model"}}))
    place.allocate(1)
    place.write_job()
    done = subprocess.run(
        [sys.executable, *program],
        cwd=tmp_path,
        env={**os.environ, **place.variables(), "PYTHONPATH": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    loaded = (tmp_path / "modules").read_text().split()
    assert len([name for name in loaded if name.startswith("espalier_trainer")]) <= MOST
    assert [name for name in loaded if name.startswith(OF_OTHER_JOBS)] == []
