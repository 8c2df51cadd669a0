"""A data set of a user's package: named in a job file, checked by its name, and loaded by the trainer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from espalier_core.types.job import DatasetSpec
from espalier_trainer.data import load_data

JOB = """
apiVersion: espalier.dev/v1alpha1
kind: AdaptiveTrainingJob
metadata: {name: striped}
spec:
  timeBudgetSeconds: 5
  training:
    model: {name: digits}
    dataset: {name: NAME}
"""


@pytest.mark.parametrize(("name", "code"), [("stripes", 0), ("strips", 2)])
def test_a_job_file_names_it(name: str, code: int, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB.replace("NAME", name), encoding="utf-8")
    command = [Path(sys.executable).with_name("espalier"), "validate", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ("or 'stripes'" in done.stdout) == (name == "strips")


def test_the_trainer_loads_it() -> None:
    data = load_data(DatasetSpec(name="stripes", options={"examples": 8}))
    assert (data.name, data.classes, len(data.train)) == ("stripes", 2, 8)
    inputs, labels = data.train.batch(data.train.labels.new_tensor([0, 1]), None)
    assert inputs.shape == (2, 1, 8, 8)
    assert labels.shape == (2,)
