"""Programs and tasks of jobs, and what is measured of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.files.documents import DocumentError, dumps, loads
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.measurements import MAX_CONFIGURATIONS, MAX_LOSS_POINTS, GradientNoise
from espalier_core.types.program import compile_pattern, selector_of
from espalier_core.types.report import Adaptation, Report
from espalier_core.types.task import MEASURE_OF, MEASURES, Score, Task, score_in
from espalier_core.validation.reading import JobFileError, parse_jobs
from operator_world.kube_objects import adaptation

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


MEASURE_NAMES = st.sampled_from(sorted(MEASURES))


def test_every_task_has_a_measure():
    assert set(MEASURE_OF) == set(Task)
    assert {measure.name for measure in MEASURE_OF.values()} == set(MEASURES)


@given(MEASURE_NAMES, st.floats(0, 1), st.floats(0, 1))
def test_the_better_of_two_is_ahead_and_has_more_quality(name, first, second):
    one, other = Score(measure=name, value=first), Score(measure=name, value=second)
    assert one.ahead_of(other) == -other.ahead_of(one)
    if one.ahead_of(other) > 0:
        assert one.quality >= other.quality
        assert (first > second) == MEASURES[name].higher_is_better


@pytest.mark.parametrize(
    ("name", "value", "quality"),
    [
        ("accuracy", 0.9, 0.9),
        ("accuracy", 1.5, None),
        ("r2", -3.0, 0.0),
        ("r2", 0.4, 0.4),
        ("bits_per_character", 0.0, 1.0),
        ("bits_per_character", 2.0, 0.25),
        ("bits_per_character", -1.0, None),
    ],
)
def test_quality_is_between_0_and_1(name, value, quality):
    assert Score(measure=name, value=value).quality == quality


def test_scores_of_two_measures_are_not_compared():
    with pytest.raises(ValueError, match=r"^r2 and accuracy cannot be compared; compare jobs of one task$"):
        Score(measure="r2", value=0.1).ahead_of(Score(measure="accuracy", value=0.2))


def test_a_measure_of_a_newer_version_can_be_shown():
    assert str(Score(measure="word_error", value=0.5)) == "word error 0.5000"


def test_the_score_is_found_among_figures():
    figures = {"validation_loss": 1.0, "validation_bits_per_character": 2.0, "test_r2": float("nan")}
    assert score_in(figures, "validation") == Score(measure="bits_per_character", value=2.0)
    assert score_in(figures, "test") is None


@pytest.mark.parametrize(("measure", "after", "gained"), [("accuracy", 0.75, 0.25), ("bits_per_character", 0.25, 0.25)])
def test_an_adaptation_says_what_was_gained_whatever_the_measure(measure, after, gained):
    before = {"accuracy_before": 0.5} if measure == "accuracy" else {"score_before": Score(measure=measure, value=0.5)}
    growth = adaptation(**before)
    assert growth.gained is None
    done = growth.followed_by(Score(measure=measure, value=after))
    assert done.gained == gained
    assert Adaptation.model_validate_json(done.model_dump_json(by_alias=True)) == done
    assert (done.accuracy_after is None) == (measure != "accuracy")


SPEED = {
    **{"nodes": 1, "workers": 2, "batchSize": 32, "parameters": 10},
    **{"steps": 5, "stepSeconds": 0.5, "syncSeconds": 0.1},
}


def read(measurements: dict[str, Any]) -> Report:
    body = json.loads(dumps(Report(job="a/b", incarnation="x", updated_time=datetime(2027, 1, 1, tzinfo=UTC))))
    body.pop("measurements")
    return loads(json.dumps(body | measurements), Report, "a report")


def test_a_report_of_an_older_trainer_has_none() -> None:
    assert read({}).measurements.is_empty
    assert read({"measurements": {"speeds": [SPEED]}}).measurements.speeds[0].workers == 2


@pytest.mark.parametrize(
    "measurements",
    [
        {"speeds": [SPEED | {"stepSeconds": 0}]},
        {"speeds": [SPEED | {"stepSeconds": float("inf")}]},
        {"speeds": [SPEED | {"syncSeconds": -1}]},
        {"speeds": [SPEED | {"workers": 0}]},
        {"speeds": [SPEED | {"steps": 10**40}]},
        {"speeds": [SPEED] * (MAX_CONFIGURATIONS + 1)},
        {"gradient": {"squaredNorm": float("nan"), "variance": 1, "samples": 1}},
        {"gradient": {"squaredNorm": 1, "variance": -1, "samples": 1}},
        {"losses": [{"epoch": 0, "step": 0, "loss": float("nan")}]},
        {"losses": [{"epoch": 0, "step": 0, "loss": 1}] * (MAX_LOSS_POINTS + 1)},
    ],
)
def test_what_cannot_have_been_measured_is_refused(measurements: dict[str, Any]) -> None:
    with pytest.raises(DocumentError, match="measurements"):
        read({"measurements": measurements})


def test_the_noise_scale_is_unknown_where_the_noise_hides_the_gradient() -> None:
    assert GradientNoise(squared_norm=2, variance=8, samples=1).noise_scale == 4
    assert GradientNoise(squared_norm=0, variance=8, samples=1).noise_scale is None
    assert GradientNoise(squared_norm=5e-324, variance=1e308, samples=1).noise_scale is None
