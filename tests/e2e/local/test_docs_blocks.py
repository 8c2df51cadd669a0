"""What the book tells a person to type on a laptop is typed: with short budgets, and otherwise word by word."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from espalier_agent import data
from forked import Forked
from pages import commands
from ports import free_port
from waiting import PATIENCE, until

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
SHORTER = {
    " espalier run ": "--time-budget 3",
    " espalier simulate generate:": "--seeds 2",
    " espalier agent learn --outcomes ": "--set updates=20",
    " espalier agent learn --from": "--set updates=20",
    " espalier agent collect examples": "--time-budget 0.5 --seeds 1 --decisions 1 --step-cost 2,1,1,1 --parallel 1",
    " espalier agent collect --corpus ": "--seeds 1 --moments 50% --corpus cases.py --parallel 1",
    " espalier agent judge --model ": "--seeds 1 --moments 50% --most 2 --budget 40 --parallel 1",
}
"""What is added to commands that take their time otherwise."""
FORKED = {"espalier agent ": "espalier_command agent ", "python ": ""}
"""Programs that import torch themselves are forked (`helpers/forked.py`): how they begin, and their modules."""
CASES = """
import torch
from torch import nn


def cases():
    for width in (3, 6):
        inputs = torch.randn(96, 4, generator=torch.Generator().manual_seed(width))
        split = inputs, (inputs[:, 0] * inputs[:, 1] > 0).long()
        yield {
            "name": f"mlp {width}",
            "family": "mlp",
            "module": lambda seed, width=width: nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2)),
            "train": split,
            "validation": split,
            "test": split,
            "steps": 20,
            "batchSize": 32,
            "optimizer": {"name": "Adam", "learningRate": 0.01},
        }
"""
"""A corpus in place of one that takes hours."""


class Laptop:
    """A folder that looks like the project to what is typed in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._started: list[Forked] = []
        self._typed = 0
        self._port = str(free_port())
        for name, target in (("examples", ROOT / "examples"), (".venv", Path(sys.prefix))):
            (folder / name).symlink_to(target)

    def type(self, command: str) -> str:
        """Run a command to its end, or until it serves; return its output."""
        assert not re.match(r"(kubectl|helm|docker|make) ", command), f"{command} needs more than a laptop"
        if command.startswith("export "):
            name = command.removeprefix("export ").partition("=")[0]
            shell = ["bash", "-c", f'{command} && printf %s "${name}"']
            self.environment[name] = subprocess.check_output(shell, cwd=self.folder, env=self.environment, text=True)
            return ""
        spaced = f" {command} "
        added = " ".join(arguments for part, arguments in SHORTER.items() if part in spaced)
        line = f"{command.replace('8500', self._port)} {added}"
        for begin, module in FORKED.items():
            if line.startswith(begin):
                return self._fork(module + line.removeprefix(begin))
        ended = subprocess.run(
            ["bash", "-c", f"exec {line}"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def _fork(self, line: str) -> str:
        program, *arguments = shlex.split(line)
        self._typed += 1
        out, log = (self.folder / f"{kind}-{self._typed}" for kind in ("out", "log"))
        # A script finds what is beside it.
        environment = {**self.environment, "PYTHONPATH": str(self.folder)}
        process = Forked(program.removesuffix(".py"), *arguments, env=environment, out=out, log=log, cwd=self.folder)
        self._started.append(process)
        if arguments[:2] == ["agent", "serve"]:  # it prints the URL when it answers
            until(lambda: self._port in out.read_text(), f"{line} serves", PATIENCE)
        else:
            assert process.wait(200) == 0, f"{line}\n{out.read_text()}{log.read_text()}"
        return out.read_text()

    def result(self, run: str) -> dict[str, Any]:
        """Return the result of `espalier run --output runs/<run>`."""
        found: dict[str, Any] = json.loads((self.folder / "runs" / run / "result.json").read_text())
        return found

    def close(self) -> None:
        """End what still runs."""
        for process in self._started:
            process.terminate()
            process.wait(PATIENCE)


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    machine = Laptop(tmp_path)
    yield machine
    machine.close()


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def test_the_quickstart_on_a_laptop(laptop: Laptop) -> None:
    section = read("quickstart.md").partition("\n## On a laptop\n")[2].partition("\n## ")[0]
    setup, *typed = commands(section)
    assert setup == "make setup"  # which made what this test runs in
    said = "".join(laptop.type(command) for command in typed)
    assert laptop.result("grown")["depthAfter"] > laptop.result("grown")["depthBefore"]
    assert laptop.result("not-grown")["adaptations"] == []
    assert "test accuracy" in said
    assert (laptop.folder / "runs" / "both.png").read_bytes().startswith(b"\x89PNG")
    for name in re.findall(r"`([a-z]+\.(?:png|jsonl|json))`", section):
        assert (laptop.folder / "runs" / "grown" / name).stat().st_size > 0


@pytest.mark.parametrize(("page", "growths"), [("grow.md", 3), ("loops.md", 0)])
def test_the_pages_on_growing_and_loops(laptop: Laptop, page: str, growths: int) -> None:
    shown = re.compile(r"`([a-z]+\.(?:py|yaml))`:\n\n```[a-z]+\n(.*?)^```", re.M | re.S)
    files = dict(shown.findall(read("grow.md") + read("loops.md")))
    wanted = ["spirals.py", "grow.py", "load.py", "wider.py", "blocks.py"]
    assert list(files) == [*wanted, "accumulating.py", "accumulating.yaml", "smaller.py"]
    for name, text in files.items():
        (laptop.folder / name).write_text(text)
    typed = [command for command in commands(read(page)) if "examples/" not in command]
    said = "".join(laptop.type(command) for command in ["export PYTHONPATH=.", *typed])
    grown = re.findall(r"outputs differ by (\S+)", said)
    assert len(grown) == growths
    assert all(float(each) <= 1e-6 for each in grown)


def test_the_page_on_training(laptop: Laptop) -> None:
    """Its model grows, and what is left can be loaded. `test_front_page.py` judges the language model."""
    shown = re.compile(r"`(spirals\.[a-z]+)`:\n\n```[a-z]+\n(.*?)^```", re.M | re.S)
    for name, text in shown.findall(read("grow.md") + read("train.md")):
        (laptop.folder / name).write_text(text)
    for command in commands(read("train.md")):
        if "gpt.yaml" not in command:
            laptop.type(command)
    result = laptop.result("spirals")
    assert result["phase"] == "Complete"
    assert result["depthBefore"] == 2
    assert result["depthAfter"] > 2
    printed: list[str] = []
    for number, text in enumerate(re.findall(r"^```python\n(.*?)^```", read("train.md"), re.M | re.S)):
        (laptop.folder / f"block{number}.py").write_text(text.replace("no_agent=True", "no_agent=True, time_budget=3"))
        printed.append(laptop.type(f"python block{number}.py"))
    assert "ExtraGPUsGranted" in printed[0]
    assert printed[0].splitlines()[-1].startswith("accuracy ")


def test_the_other_python_blocks_run(laptop: Laptop) -> None:
    found = re.findall(r"^```python\n(.*?)^```", read("grow.md"), re.M | re.S)
    marked = [text for text in found if "DeepenBlock" in text]
    assert len(marked) == 1
    (laptop.folder / "marked.py").write_text(marked[0])
    laptop.type("python marked.py")


def test_the_page_on_policies_and_traces(laptop: Laptop) -> None:
    section = read("policies.md").partition("\n## Try a policy on a trace\n")[2].partition("\n## ")[0]
    command = commands(section)[0]
    said = laptop.type(command)
    for column in ("MEAN-JCT", "MEDIAN", "P99", "MAKESPAN", "IN-USE", "FTF"):
        assert column in said
    for policy in re.findall(r"--policy (\w+)", command):
        assert re.search(rf" {policy} +2 .*±", said)


def test_the_page_on_your_own_policy(laptop: Laptop) -> None:
    local = read("research.md").partition("\n## Teach the agent\n")[2].partition("\n### On a cluster\n")[0]
    (laptop.folder / "cases.py").write_text(CASES)
    for command in commands(local):
        laptop.type(command)
    assert json.loads((laptop.folder / "tables" / "digits.json").read_text())["sequences"]
    adaptations = laptop.result("advised")["adaptations"]
    assert adaptations
    for adaptation in adaptations:
        assert adaptation["source"] == "agent"
        assert adaptation["policy"].startswith("mine@")


def test_the_page_on_the_environment(laptop: Laptop) -> None:
    """Each program runs as it stands, and prints what the page says."""
    (laptop.folder / "tables").symlink_to(Path(data.__file__).parent / "outcomes" / "digits")
    page = read("research.md").partition("\n## Teach the agent\n")[0]
    programs = re.findall(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", page, re.M | re.S)
    assert [bool(printed) for _, printed in programs] == [True, True, True, False]
    for number, (program, printed) in enumerate(programs):
        (laptop.folder / f"{number}.py").write_text(program)
        assert laptop.type(f"python {number}.py") == (printed or "digits-35% [2 2]\n")


def test_the_page_on_replacing_and_shadowing_a_policy(laptop: Laptop) -> None:
    page = read("research.md")
    learn, ask, serve, count, upgrade = commands(
        page.partition("\n### Replace it while it serves\n")[2].partition("\n### Learn from stored outcomes\n")[0]
    )
    run = next(command for command in commands(page) if "--agent-url" in command)
    laptop.type(learn.replace("policies/mine", "policies/next"))
    laptop.type(learn)
    url = laptop.type(serve).strip()
    described = httpx.get(url + ask.partition("8500")[2], trust_env=False).json()
    assert (described["policy"]["name"], described["shadow"]["name"]) == ("mine", "next")
    laptop.type(run)
    decisions = len(laptop.result("advised")["adaptations"])
    heads, line = (each.split() for each in laptop.type(count).splitlines())
    counted = dict(zip(heads, line, strict=True))
    assert counted["policy"] == f"mine@{described['policy']['version']}"
    assert int(counted["decisions"]) == int(counted["outcomes"]) == decisions > 0
    # Learnt with the same seed from the same tables, the shadow says the same.
    assert float(counted["agreement"]) == 1.0
    assert upgrade.startswith("helm upgrade ")
