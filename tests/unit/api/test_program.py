"""A program in a job file: what is refused, and how the message names field, value and remedy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.program import compile_pattern, selector_of
from espalier_core.validation.reading import JobFileError, parse_jobs

TEMPLATE = {"spec": {"containers": [{"command": ["sh"], "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}


def job(program: Any, **spec: Any) -> AdaptiveTrainingJob:
    document = {
        "apiVersion": "espalier.dev/v1alpha1",
        "kind": "AdaptiveTrainingJob",
        "metadata": {"name": "program"},
        "spec": {"timeBudgetSeconds": 10, "template": TEMPLATE, "program": program, **spec},
    }
    return parse_jobs(json.dumps(document), "job")[0]


def problem(program: Any, **spec: Any) -> str:
    with pytest.raises(JobFileError) as caught:
        job(program, **spec)
    return str(caught.value)


@pytest.mark.parametrize(
    "program",
    [
        {},
        {"progress": {"log": {"pattern": r"step (?P<step>\d+)"}}},
        {"progress": {"log": {"json": {"step": "global step", "train/loss": "loss"}}, "steps": 10}},
        {"progress": {"metrics": {"port": 8000, "series": {"loss": 'loss{split="test",model="a, b"}'}}}},
    ],
)
def test_what_is_allowed_survives_its_json(program: Any) -> None:
    given = job(program)
    assert AdaptiveTrainingJob.model_validate(given.to_json()) == given


@pytest.mark.parametrize(
    ("progress", "field", "words"),
    [
        ({}, "spec.program.progress", "exactly one of log and metrics"),
        ({"log": {}}, "spec.program.progress.log", "exactly one of pattern and json"),
        ({"log": {"pattern": "a(?P<x>"}}, "spec.program.progress.log.pattern", "no regular expression of RE2: missing"),
        ({"log": {"pattern": "(?=a)(?P<x>b)"}}, "spec.program.progress.log.pattern", "RE2 has no look-around"),
        ({"log": {"pattern": "step"}}, "spec.program.progress.log.pattern", "without a named group; name what"),
        ({"log": {"pattern": "(?P<x>a)" * 80}}, "spec.program.progress.log.pattern", "at most 512"),
        ({"log": {"pattern": "(?P<x>a)|(?P<x>b)"}}, "spec.program.progress.log.pattern", "two groups 'x'; give each"),
        ({"log": {"pattern": "(?P<x>(a{900}){900})"}}, "spec.program.progress.log.pattern", "repetition"),
        ({"log": {"json": {}}}, "spec.program.progress.log.json", "at least 1"),
        ({"log": {"json": {"2 b": "x"}}}, "spec.program.progress.log.json", "names a value '2 b'"),
        ({"log": {"json": {f"a{i}": "x" for i in range(17)}}}, "spec.program.progress.log.json", "at most 16"),
        ({"metrics": {"port": 0, "series": {"step": "s"}}}, "spec.program.progress.metrics.port", "at least 1"),
        ({"metrics": {"port": 1, "series": {"step": "s{"}}}, "spec.program.progress.metrics.series", "'s{'"),
        ({"metrics": {"port": 1, "path": "x", "series": {"step": "s"}}}, "spec.program.progress.metrics.path", "^/"),
    ],
)
def test_what_is_refused_is_named_with_a_remedy(progress: Any, field: str, words: str) -> None:
    text = problem({"progress": progress})
    assert f" {field}: " in text
    assert words in text


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"maxReplicas": 2}, "maxReplicas 2 and minReplicas 1; they must be equal"),
        ({"training": {"seed": 3}}, "training, which is for Espalier's trainer; remove one of them"),
        ({"adaptation": {"maxAdaptations": 1}}, "adaptation, which needs Espalier's trainer; remove one of them"),
        ({"template": None}, "add spec.template"),
    ],
)
def test_a_program_stands_alone(spec: Any, words: str) -> None:
    assert words in problem({}, **spec)


def test_adaptation_may_be_switched_off_explicitly() -> None:
    assert job({}, adaptation={"mode": "Off"}).spec.program is not None


def test_a_pattern_is_compiled_and_a_selector_taken_apart() -> None:
    assert compile_pattern(r"(?P<a>\d+)").search("x 12").groupdict() == {"a": "12"}
    assert selector_of("loss") == ("loss", {})
    assert selector_of('loss{a="b",c="d e"}') == ("loss", {"a": "b", "c": "d e"})
