"""Job files: every problem at once, each with its place and what is allowed."""

from __future__ import annotations

import copy
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from ruamel.yaml import YAML

import sweeps
from espalier_core.types.job import API_VERSION, KIND, AdaptiveTrainingJob
from espalier_core.validation.reading import (
    MAX_BYTES,
    JobFileError,
    check_file,
    load_job,
    load_jobs,
    parse_jobs,
    with_spec,
)

MINIMAL = f"apiVersion: {API_VERSION}\nkind: {KIND}\nmetadata: {{name: a}}\nspec:\n  timeBudgetSeconds: 10\n"


def limited(resources: str) -> str:
    """Return a job whose container has these limits."""
    return f"{MINIMAL}  template: {{spec: {{containers: [{{resources: {{limits: {{{resources}}}}}}}]}}}}\n"


FULL: dict[str, Any] = YAML(typ="safe").load(f"""
apiVersion: {API_VERSION}
kind: {KIND}
metadata: {{name: full, namespace: team, labels: {{a: b}}, annotations: {{}}}}
spec:
  timeBudgetSeconds: 400
  gpuSecondsBudget: 1600
  minReplicas: 1
  maxReplicas: 4
  queue: default
  priorityClassName: high
  priority: 5
  suspend: false
  preRunningDeadlineSeconds: 60
  backoffLimit: 3
  maxPreemptions: 2
  ttlSecondsAfterFinished: 60
  preemption: {{noticeSeconds: 30, cooldownSeconds: 60, minRuntimeSeconds: 60}}
  adaptation:
    {{mode: Auto, actions: [Deepen], maxAdaptations: 3, agent: {{url: "http://agent:8080"}}, decisionTimeoutSeconds: 5,
     fallback: None, onReclaim: Keep, insertion: Exact}}
  training:
    model: {{name: cnn1, options: {{}}}}
    dataset: {{name: cifar10, path: /data}}
    batchSize: 128
    optimizer: {{name: Adam, learningRate: 0.01, momentum: 0, weightDecay: 0}}
    schedule: {{name: BudgetLinear, restartOnGrowth: true, decay: 0.9, options: {{}}}}
    evaluateEveryEpochs: 1
    seed: 0
  checkpoint: {{path: /checkpoints, intervalSeconds: 60}}
  template:
    spec:
      containers: [{{name: trainer, image: x, resources: {{limits: {{nvidia.com/gpu: 2}}}}}}]
      nodeSelector: {{zone: a}}
""")


def problems(text: str) -> list[str]:
    with pytest.raises(JobFileError) as caught:
        parse_jobs(text, "job.yaml")
    return [str(problem) for problem in caught.value.problems]


def dump(value: object) -> str:
    stream = StringIO()
    yaml = YAML(typ="safe")
    yaml.dump(value, stream)
    return stream.getvalue()


def test_a_full_job_is_read_with_every_field() -> None:
    (job,) = parse_jobs(dump(FULL), "job.yaml")
    assert job.key == "team/full"
    assert job.spec.gpus_per_worker() == 2
    assert job.spec.template.spec.node_selector == {"zone": "a"}
    assert AdaptiveTrainingJob.model_validate(job.to_json()) == job


def test_defaults_are_those_of_the_design() -> None:
    (job,) = parse_jobs(MINIMAL, "job.yaml")
    assert (job.spec.min_replicas, job.spec.max_replicas, job.spec.backoff_limit) == (1, 1, 3)
    assert job.spec.preemption.notice_seconds == 30
    assert job.spec.adaptation.max_adaptations == 3
    assert job.spec.gpus_per_worker() == 1


def test_every_problem_is_named_at_once_in_the_order_of_the_file() -> None:
    text = """\
apiVersion: espalier.dev/v1alpha1
kind: AdaptiveTrainingJob
metadata: {name: Bad_Name}
spec:
  timeBudgetSecond: 400
  timeBudgetSeconds: -3
  minReplicas: 4
  maxReplicas: 2
  suspend: 1
  adaptation:
    mode: auto
    maxAdaptations: "3"
  training:
    optimizer: {learningRate: .nan}
    dataset: {}
  template: {spec: {containers: []}}
"""
    assert problems(text) == [
        "job.yaml:3: metadata.name: must be lower-case letters, digits and '-', beginning and ending with a letter "
        "or digit",
        "job.yaml:5: spec.timeBudgetSecond: unknown field; did you mean timeBudgetSeconds?",
        "job.yaml:6: spec.timeBudgetSeconds: is -3; must be greater than 0",
        "job.yaml:8: spec.maxReplicas: is 2, less than minReplicas; must be at least 4",
        "job.yaml:9: spec.suspend: is 1 (a whole number); must be true or false",
        "job.yaml:11: spec.adaptation.mode: is \"auto\"; allowed: 'Auto', 'DryRun' or 'Off'",
        'job.yaml:12: spec.adaptation.maxAdaptations: is "3" (text); must be a whole number',
        "job.yaml:14: spec.training.optimizer.learningRate: is NaN (a number); must be a finite number",
        "job.yaml:15: spec.training.dataset: needs exactly one of name and entrypoint",
        "job.yaml:16: spec.template.spec.containers: has 0 items; at least 1 needed",
    ]


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({"batch": "Goodput"}, "spec.training: needs maxBatchSize, the largest batch size that"),
        ({"maxBatchSize": 63}, "spec.training.maxBatchSize: is 63, less than batchSize; must be at least 64"),
        (
            {"batch": "Goodput", "maxBatchSize": 64, "elasticBatch": "scaleLinear"},
            "spec.training.elasticBatch: cannot be scaleLinear with batch: Goodput",
        ),
    ],
)
def test_a_batch_size_that_follows_goodput_has_a_limit_and_one_rule(training: dict[str, Any], expected: str) -> None:
    spec = {"timeBudgetSeconds": 1, "training": training}
    (problem,) = problems(dump({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "a"}, "spec": spec}))
    assert expected in problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "job.yaml: is empty; an AdaptiveTrainingJob is expected"),
        ("- 1\n", "job.yaml:1: is a list; must be a mapping (a job)"),
        ("hello", "job.yaml:1: is text; must be a mapping (a job)"),
        ("a: [1\n", "job.yaml:2: is not YAML: while parsing a flow sequence expected ',' or ']'"),
        ("a: 1\na: 2\n", 'job.yaml:2: is not YAML: while constructing a mapping found duplicate key "a"'),
        ("a: &x [*x]\n", "job.yaml:1: a: unknown field; known here: apiVersion, kind, metadata, spec, status"),
        ("1: 2\n", "key 1 is a whole number; keys must be text, so quote it"),
        (MINIMAL.replace("10", "yes please"), 'spec.timeBudgetSeconds: is "yes please" (text); must be a number'),
        (MINIMAL.replace("10", ".inf"), "spec.timeBudgetSeconds: is Infinity (a number); must be a finite number"),
        (MINIMAL.replace("timeBudgetSeconds", "time_budget_seconds"), "unknown field; did you mean timeBudgetSeconds?"),
        (MINIMAL.replace("name: a", "name: 1a"), "begins with '1'; must begin with a letter, as it is the name of"),
        (MINIMAL.replace("v1alpha1", "v2"), "apiVersion: is \"espalier.dev/v2\"; allowed: 'espalier.dev/v1alpha1'"),
        (MINIMAL.replace("name: a", "name: " + "a" * 53), "has 53 characters; at most 52 are allowed"),
        ("apiVersion: v1\nkind: Secret\n", "job.yaml: holds no AdaptiveTrainingJob (apiVersion espalier.dev/v1alpha1)"),
        (MINIMAL + "---\n" + MINIMAL, "metadata.name: 'default/a' is used by 2 jobs; names must differ"),
        (
            MINIMAL + "  template: {spec: {containers: [{name: a, image: b}]}}\n",
            "job.yaml:6: spec.template.spec.containers: no container has a limit of nvidia.com/gpu; the GPUs of a "
            "worker are read there, and it needs one",
        ),
        (
            limited("nvidia.com/gpu: 500m"),
            "limits: has a limit of 500m nvidia.com/gpu; GPUs and other extended resources come in whole numbers",
        ),
        (
            limited("nvidia.com/gpu: '12345678'"),
            "limits: has a limit of 12345678 nvidia.com/gpu; GPUs and other extended resources come in whole numbers",
        ),
        (
            limited("nvidia.com/gpu: 1, a/b: 1.5"),
            "limits: has a limit of 1.5 a/b; GPUs and other extended resources come in whole numbers; write 1",
        ),
        (limited("nvidia.com/gpu: ١"), "limits.nvidia.com/gpu: is '١'; must be a quantity, such as 1, 500m or 4Gi"),
        (
            MINIMAL + "  template: {spec: {containers: [{name: a}, {name: a}]}}\n",
            "spec.template.spec.containers: two containers have the name 'a'; names must differ",
        ),
        (
            MINIMAL + "  template: {metadata: {labels: [a]}, spec: {volumes: 5, containers: [{}]}}\n",
            "job.yaml:6: spec.template.spec.volumes: is 5 (a whole number); must be a list",
        ),
    ],
)
def test_a_broken_file_is_explained(text: str, expected: str) -> None:
    assert any(expected in problem for problem in problems(text)), problems(text)


def test_aliases_that_multiply_are_refused_unread() -> None:
    bomb = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
    )
    assert problems(bomb) == ["job.yaml: holds more than 100000 values; no job needs that many"]


def test_a_file_that_holds_itself_is_refused() -> None:
    looped = "&a {apiVersion: espalier.dev/v1alpha1, kind: AdaptiveTrainingJob, metadata: {name: x}, spec: *a}"
    assert problems(looped) == ["job.yaml: refers to itself or is nested too deeply; write the values out"]


def test_objects_of_other_groups_are_left_out() -> None:
    claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\n---\n"
    assert [job.metadata.name for job in parse_jobs(claim + MINIMAL, "job.yaml")] == ["a"]


def test_a_file_larger_than_any_job_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(MINIMAL + "#" * MAX_BYTES)
    with pytest.raises(JobFileError, match=r"job.yaml: is larger than 3 MiB, .*; put its jobs in several files"):
        load_jobs(path)
    path.write_text((MINIMAL + "#" * MAX_BYTES)[:MAX_BYTES])
    assert [job.metadata.name for job in load_jobs(path)] == ["a"]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match="nowhere.yaml: cannot be read: No such file"):
        load_jobs(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            "{quotas: [{nominal: 1, borrowingLimit: 1}]}",
            "spec.quotas: has a borrowingLimit, but the queue is in no cohort; set spec.cohort, or remove it",
        ),
        (
            "{cohort: Not A Name, quotas: [{nominal: 1, borrowingLimit: 1}]}",
            "spec.cohort: must be lower-case letters, digits and '-', beginning and ending with a letter or digit",
        ),
        ("{quota: []}", "spec.quota: unknown field; did you mean quotas?"),
        ("{paint: red}", "spec.paint: unknown field; known here: cohort, maxPriority, namespaces, quotas, weight"),
        ("{quotas: [{nominal: 1, gpuTyp: a}]}", "spec.quotas[0].gpuTyp: unknown field; did you mean gpuType?"),
    ],
)
def test_a_queue_is_judged_as_the_api_server_does(tmp_path: Path, spec: str, expected: str) -> None:
    path = tmp_path / "queue.yaml"
    path.write_text(f"apiVersion: {API_VERSION}\nkind: Queue\nmetadata: {{name: a}}\nspec: {spec}\n")
    with pytest.raises(JobFileError) as error:
        check_file(path)
    assert [str(problem) for problem in error.value.problems] == [f"{path}:4: {expected}"]


def test_a_borrowing_limit_is_taken_in_a_cohort(tmp_path: Path) -> None:
    path = tmp_path / "queue.yaml"
    spec = "{cohort: b, quotas: [{nominal: 1, borrowingLimit: 1}]}"
    path.write_text(f"apiVersion: {API_VERSION}\nkind: Queue\nmetadata: {{name: a}}\nspec: {spec}\n")
    assert check_file(path) == ("a",)


def test_load_job_wants_one(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(MINIMAL + "---\n" + MINIMAL.replace("name: a", "name: b"))
    with pytest.raises(JobFileError, match=r"holds 2 jobs \(a, b\) where one is expected"):
        load_job(path)


def _leaves(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(value, dict):
        return [path] * bool(path) + [leaf for key, item in value.items() for leaf in _leaves(item, (*path, key))]
    if isinstance(value, list):
        return [path] + [leaf for index, item in enumerate(value) for leaf in _leaves(item, (*path, index))]
    return [path]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@seed(sweeps.SEED)
@settings(max_examples=sweeps.size("texts that are no job", 500), deadline=None)
@given(path=st.sampled_from(_leaves(FULL)), wrong=json_values, drop=st.booleans())
def test_any_field_wrong_is_refused_by_name_or_accepted(path: tuple[str | int, ...], wrong: Any, drop: bool) -> None:
    document = copy.deepcopy(FULL)
    parent: Any = document
    for part in path[:-1]:
        parent = parent[part]
    if drop:
        del parent[path[-1]]
    else:
        parent[path[-1]] = wrong
    text = json.dumps(document, ensure_ascii=True)
    try:
        jobs = parse_jobs(text, "job.json")
    except JobFileError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.message
            assert str(problem).startswith("job.json")
            # The problem lies at, above or below the field that was changed (or is a consequence named with it).
            changed = [str(part) for part in path if isinstance(part, str)]
            named = problem.field
            related = {f"spec.{name}" for name in ("maxReplicas", "template.spec.containers", "training.dataset")}
            assert not named or changed[0] in named or named in {*related, "spec.training.model"}
    else:
        assert all(isinstance(job, AdaptiveTrainingJob) for job in jobs)


def test_the_gpus_of_a_template_are_judged_beside_other_problems() -> None:
    text = f"""\
apiVersion: {API_VERSION}
kind: AdaptiveTrainingJob
metadata: {{name: a}}
spec:
  timeBudgetSeconds: 0
  checkpoint: {{path: ""}}
  template: {{spec: {{containers: [{{resources: {{limits: {{nvidia.com/gpu: 1.5}}}}}}]}}}}
"""
    with pytest.raises(JobFileError) as caught:
        parse_jobs(text, "job.yaml")
    assert [str(problem) for problem in caught.value.problems] == [
        "job.yaml:5: spec.timeBudgetSeconds: is 0; must be greater than 0",
        "job.yaml:6: spec.checkpoint.path: is empty; text is needed",
        "job.yaml:7: spec.template.spec.containers[0].resources.limits: has a limit of 1.5 nvidia.com/gpu; GPUs and "
        "other extended resources come in whole numbers; write 1 (or, as text, up to 7 digits)",
    ]


def test_too_many_are_counted() -> None:
    containers = ", ".join(f"{{name: c{number}}}" for number in range(33))
    text = f"""\
apiVersion: {API_VERSION}
kind: AdaptiveTrainingJob
metadata: {{name: a}}
spec: {{timeBudgetSeconds: 9, template: {{spec: {{containers: [{containers}]}}}}}}
"""
    with pytest.raises(JobFileError, match=r"spec\.template\.spec\.containers: has 33 items; at most 32 allowed$"):
        parse_jobs(text, "job.yaml")


def test_a_job_with_other_values_keeps_the_rest() -> None:
    job = load_job(Path(__file__).parents[3] / "examples" / "digits.yaml")
    changed = with_spec(job, timeBudgetSeconds=7, training={"seed": 3, "dataset": {"path": None}}, adaptation=None)
    spec = job.spec.model_copy(
        update={"time_budget_seconds": 7, "training": job.spec.training.model_copy(update={"seed": 3})}
    )
    assert changed == job.model_copy(update={"spec": spec})
    with pytest.raises(ValidationError, match="timeBudgetSeconds"):
        with_spec(job, timeBudgetSeconds=-1)
