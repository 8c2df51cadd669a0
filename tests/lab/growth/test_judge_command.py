"""`espalier agent judge`: its JSON, what it says of errors, and that equal commands give equal figures."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner

from espalier_cli.agent_command import agent

MODELS = Path(__file__).parent / "models.py"
KEYS = {"none", "first", "advice", "confirm", "race", "auto"}


def judge(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(agent, ["judge", *arguments])
    return result.exit_code, result.stdout, result.stderr


def refusal(*arguments: str) -> str:
    """Return what it says of what it cannot judge."""
    code, _, problem = judge(*arguments)
    assert code == 2, problem
    return problem


def test_the_document_and_that_it_goes_on_from_what_is_done(tmp_path: Path) -> None:
    command = ("--models", str(MODELS), "--seeds", "1", "--parallel", "1", "--json", "--work-dir", str(tmp_path / "a"))
    code, text, problem = judge(*command)
    assert code == 0, problem
    found = json.loads(text)
    assert set(found) == {"cases", "families", "measures", "regret", "worseThanNone", "interval"}
    assert (found["cases"], found["families"]) == (4, 4)
    assert set(found["regret"]) == set(found["worseThanNone"]) == set(found["interval"]) == KEYS
    assert all(low <= found["regret"][name] <= high for name, (low, high) in found["interval"].items())
    assert found["worseThanNone"]["none"] == 0
    assert found["regret"]["none"] >= 0
    assert found["regret"]["first"] >= 0
    # A part of what was trained is lost: only that is trained again, to the same figures.
    lost = sorted((tmp_path / "a").rglob("*.json"))[::3]
    for file in lost:
        file.unlink()
    again = judge(*command)
    assert again[:2] == (0, text)
    assert f"/{len(list((tmp_path / 'a').rglob('*.json'))) // 2} trainings" in again[2]
    code, text, problem = judge(*command[:-3], "--work-dir", str(tmp_path / "a"), "--picture", str(tmp_path / "p.png"))
    assert code == 0, problem
    assert "worse than none" in text
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "full.png").symlink_to("/dev/full")
    code, told, problem = judge(*command[:-3], *command[-2:], "--picture", str(tmp_path / "full.png"))
    assert (code, told) == (2, text), "the verdict is printed first"
    assert "cannot be written: No space left on device" in problem


def test_one_model_as_a_job_names_it(tmp_path: Path) -> None:
    command = ("--model", "digits", "--dataset", "digits", "--budget", "3", "--seeds", "2", "--parallel", "1")
    code, text, problem = judge(*command, "--moments", "50%", "--most", "2", "--work-dir", str(tmp_path))
    assert code == 0, problem
    assert "rowing" in text.splitlines()[-1]
    assert "Deepen(block0)" in text


LANGUAGE = """
import sys
import torch
from torch import nn
sys.path.append({folder!r})
import models

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))

    def forward(self, x):
        return x + self.body(x)

def made(seed):
    return nn.Sequential(nn.Embedding(5, 6), Block(), Block(), nn.Linear(6, 5))

def cases():
    *_, tokens, values = models.cases()
    yield tokens | {{"task": "LanguageModel", "charactersPerToken": 2, "module": made}}
    yield from [values][:{others}]
"""


def test_language_models_are_judged_end_to_end_and_alone(tmp_path: Path) -> None:
    file = tmp_path / "language.py"
    file.write_text(LANGUAGE.format(folder=str(MODELS.parent), others=0))
    command = ("--models", str(file), "--seeds", "2", "--parallel", "1", "--moments", "50%", "--most", "2")
    code, text, problem = judge(*command, "--insertions", "Exact,Unfold", "--work-dir", str(tmp_path / "w"))
    assert code == 0, problem
    assert "test bits per character" in text
    assert "AddBlock(1, Unfold)" in text
    file.write_text(LANGUAGE.format(folder=str(MODELS.parent), others=1))
    assert "put language models into a file of their own" in refusal(*command, "--work-dir", str(tmp_path / "w"))


CASE = "{'name': 'one', 'family': 'f', 'module': make, 'train': data, 'validation': data, 'test': data, " + (
    "'steps': 4, 'batchSize': 4, 'optimizer': {'name': 'Adam', 'learningRate': .01}, **changes}"
)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ("{'steps': 0}", "case 'one': 'steps' is 0; give a whole number above 0"),
        ("{'optimizer': {'name': 'Lion'}}", "case 'one': optimizer: name: Input should be"),
        ("{'test': (torch.zeros(3, 4), torch.zeros(2).long())}", "(3, 4) and 2 targets; one for each row"),
        ("{'train': torch.zeros(3)}", "case 'one': 'train' is Tensor; give the pair (inputs, targets)"),
        ("{'module': 3}", "case 'one': 'module' is int; give a function from a seed to a model"),
        ("{'module': lambda seed: None}", "module(0) returned NoneType; return a torch.nn.Module"),
        ("{'module': lambda seed: 1 / 0}", "module(0) failed (ZeroDivisionError: division by zero)"),
        ("{'module': lambda seed: torch.nn.Linear(9, 2)}", "case 'one': the model cannot be trained on its data"),
        (
            "{'test': (torch.zeros(3, 4), torch.arange(3))}",
            "case 'one': 'test' has the class 2, and the model 2 outputs",
        ),
        (
            "{'module': lambda seed: torch.nn.Sequential(torch.nn.Unflatten(0, (2, -1)), torch.nn.Flatten(0, 1), "
            "make(0)), 'test': (torch.zeros(3, 4), torch.zeros(3).long())}",
            "case 'one': the model fails on 3 of its examples (RuntimeError: ",
        ),
        ("{'family': ''}", "case 'one': 'name' and 'family' are texts that are not empty"),
    ],
)
def test_a_bad_case_is_named_with_the_remedy(changes: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text(
        textwrap.dedent(
            f"""
            import torch
            data = torch.zeros(8, 4), torch.zeros(8).long()
            make = lambda seed: torch.nn.Linear(4, 2)
            changes = {changes}
            def cases():
                yield {CASE}
            """
        )
    )
    assert told in refusal("--models", str(file), "--parallel", "1", "--work-dir", str(tmp_path / "w"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no function `cases`; define one that yields dictionaries"),
        ("def cases(): return []", "cases() yields nothing"),
        ("def cases(): yield {'name': 'x'}", "case 'x': has no 'family'; a case has name, family, module"),
        ("def cases(): yield 3", "case 1: is int; yield a dictionary with name"),
        ("def cases(): yield from [{'name': 'x'}] * 2", "case 'x': the name is used twice"),
        ("import nowhere_to_be_found", "ModuleNotFoundError"),
        ("def cases(:", "SyntaxError"),
        ("import sys; sys.exit(0)", "ends the program where its cases are made"),
    ],
)
def test_a_bad_file_is_explained(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text(text)
    assert told in refusal("--models", str(file), "--work-dir", str(tmp_path / "w"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--model", "nowhere:net"), "cannot import 'nowhere'"),
        (("--model", "nothing"), "--model: name: String should match"),
        (("--model", "digits", "--options", "{"), "--options: '{' is not JSON"),
        (("--model", "digits", "--options", '{"colour": 1}'), "--model: training.model.options"),
        (("--model", "digits", "--dataset", "nothing"), "--dataset: name:"),
        (("--model", "digits", "--budget", "0"), "--budget: '0' is less than a step; give more"),
    ],
)
def test_a_bad_model_is_named_with_its_own_remedy_and_not_with_that_of_a_file(
    words: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    usual = ("--dataset", "digits", "--budget", "3", "--parallel", "1", "--work-dir", str(tmp_path))
    problem = refusal(*usual, *words)
    assert told in problem
    assert "takes a seed" not in problem


def test_what_does_not_go_together() -> None:
    assert judge()[0] == judge("--models", str(MODELS), "--model", "digits")[0] == 2
    assert "there is no folder" in judge("--models", str(MODELS), "--picture", "nowhere/judge.png")[2]
    assert "must end with .png or .svg" in judge("--models", str(MODELS), "--picture", "judge.foo")[2]
    assert "--dataset and --budget" in judge("--model", "digits")[2]
    assert "is not a growth operation" in judge("--models", str(MODELS), "--actions", "Shrink")[2]
    assert "is not a way to insert whole blocks" in judge("--models", str(MODELS), "--insertions", "Fast")[2]
    assert "is not a share of the budget" in judge("--models", str(MODELS), "--moments", "120%")[2]
