"""Parts of other packages: commands, data sets, learners, and names of before."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from espalier_agent.policies.policy import load_policy
from espalier_core.types.job import DatasetSpec
from espalier_trainer.data import load_data


def espalier(*arguments: str) -> str:
    command = [sys.executable, "-c", "from espalier_cli.main import main; main()", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("arguments", [("greet",), ("agent", "greet")])
def test_a_command_of_another_package_is_run(arguments: tuple[str, ...]) -> None:
    assert espalier(*arguments) == "hello\n"


def test_help_lists_it_and_a_command_that_is_there_stays() -> None:
    assert "greet" in espalier("--help")
    assert "Train the jobs of FILES" in espalier("run", "--help")
    assert "Print every problem in FILES" in espalier("validate", "--help")


OLD = {
    "espalier_agent.environment:espalier/Outcomes-v0": "espalier_lab.growth.environment",
    "espalier_scheduling.placement:espalier/Placement-v0": "espalier_lab.environments",
    "espalier_scheduling.allocation:espalier/Allocation-v0": "espalier_lab.environments",
    "espalier_rewriting:espalier/Rewrites-v0": "espalier_lab.rewriting.learned",
}


@pytest.mark.parametrize("name", OLD)
def test_an_old_id_is_found_with_a_warning(name: str) -> None:
    module, _, known = name.partition(":")
    sys.modules.pop(module, None)
    with pytest.warns(DeprecationWarning, match=f"^{module} is now {OLD[name]}; the old name goes"):
        importlib.import_module(module)
    assert known in gymnasium.registry


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


LEARNT = {
    "learner": ["--learner", "random-search"],
    "both": ["--learner", "random-search", "--encoder", "edgeless"],
    "encoder": ["--learner", "expected", "--encoder", "edgeless", "--set", "updates=5"],
    "neither": ["--learner", "gradient-free"],
}
SCRIPT = """
import json, sys
from click.testing import CliRunner
from espalier_agent.commands.agent import agent
for name, words in json.loads(sys.argv[1]).items():
    ended = CliRunner().invoke(agent, ["learn", "--outcomes", "digits", "--output", name, *words])
    print(json.dumps([name, ended.exit_code, ended.output]))
"""
"""In one process, which has imported the commands with the package on its path: they offer what is installed then."""


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[int, str, Path]]:
    """Return what came of a command of `LEARNT`: its exit code, its output, and the folder of the policy."""
    folder, site = tmp_path_factory.mktemp("policies"), Path(__file__).parent / "site"
    command = [sys.executable, "-c", SCRIPT, json.dumps(LEARNT)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = {name: rest for name, *rest in map(json.loads, done.stdout.splitlines())}
    return lambda name: (*found[name], folder / name)


@pytest.mark.parametrize(("name", "encoder"), [("learner", "graph"), ("both", "edgeless"), ("encoder", "edgeless")])
def test_a_policy_is_learnt_and_read_again(learnt: Any, name: str, encoder: str) -> None:
    code, output, folder = learnt(name)
    assert code == 0, output
    assert load_policy(folder).network.config.encoder == encoder


def test_unknown_names_are_answered_with_the_known_ones(learnt: Any) -> None:
    code, output, _ = learnt("neither")
    assert code == 2
    assert "gradient-free" in output
    assert "random-search" in output
