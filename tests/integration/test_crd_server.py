"""The CRD as a real API server understands it: what it fills in, what it refuses and in which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from apiserver import ApiServer
from crd_cases import causes, changed, jobs_of
from mutations import FULL, GPU, MINIMAL

from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.validation.reading import load_jobs

PROJECT = Path(__file__).parents[2]
EXAMPLES = sorted((PROJECT / "examples").glob("*.yaml"))


# ---- what it fills in


def test_the_server_fills_in_what_the_models_fill_in(api_server: ApiServer, namespace: str) -> None:
    """A minimal job comes back with all defaults, and they are the models'."""
    made = api_server.request("POST", jobs_of(namespace), MINIMAL, dryRun="All")
    ours = AdaptiveTrainingJob.model_validate_json(json.dumps(MINIMAL), strict=True)
    theirs = AdaptiveTrainingJob.model_validate_json(json.dumps(made), strict=True)
    assert theirs.spec == ours.spec
    said = _without_empty(ours.spec.to_json())
    assert made["spec"] == said, "each default is visible, those of nested fields too"
    assert "status" not in made, "a status that nobody wrote is not invented"


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_empty(item) for key, item in value.items() if item != {}}
    return value


def test_a_full_job_comes_back_as_it_was(api_server: ApiServer, namespace: str) -> None:
    """Nothing that the models know is pruned, nor what they leave open."""
    made = api_server.request("POST", jobs_of(namespace), FULL, dryRun="All")
    assert made["spec"] == FULL["spec"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_accepted(api_server: ApiServer, namespace: str, example: Path) -> None:
    """As a person applies it."""
    said = api_server.kubectl("apply", "--dry-run=server", "-n", namespace, "-f", str(example))
    assert said.split() == [
        f"adaptivetrainingjob.espalier.dev/{load_jobs(example)[0].metadata.name}",
        *said.split()[1:],
    ]
    assert "created (server dry run)" in said


# ---- what it refuses

WHOLE = "GPUs and other extended resources come in whole numbers; write 1 (or, as text, up to 7 digits)"
NO_GPU = (
    "no container has a limit of a GPU resource (such as nvidia.com/gpu: 1), and no resourceClaims name a "
    "resourceClaimTemplateName; the GPUs of a worker are read there, "
    "and it needs one"
)
ONE_OF = "needs exactly one of name and entrypoint"
LABEL = (
    "must be lower-case letters, digits and '-', beginning with a letter and ending with a letter or digit, as it is "
    "the name of a Service"
)
LIMITS = "spec.template.spec.containers.0.resources.limits"

BAD: tuple[tuple[str, Any, str, str], ...] = (
    ("spec.maxReplicas", 1, "spec.maxReplicas", "must be at least minReplicas; raise it or lower minReplicas"),
    ("spec.minReplicas", 5, "spec.maxReplicas", "must be at least minReplicas; raise it or lower minReplicas"),
    ("spec.minReplicas", 0, "spec.minReplicas", "should be greater than or equal to 1"),
    ("spec.timeBudgetSeconds", 0, "spec.timeBudgetSeconds", "should be greater than 0"),
    ("spec.timeBudgetSeconds", ..., "spec.timeBudgetSeconds", "Required value"),
    ("spec.timeBudgetSeconds", "60", "spec.timeBudgetSeconds", 'must be of type number: "string"'),
    ("spec.timeBudgetSeconds", 1e9, "spec.timeBudgetSeconds", "should be less than or equal to 3.1536e+07"),
    ("spec.adaptation.mode", "off", "spec.adaptation.mode", 'supported values: "Auto", "DryRun", "Off"'),
    ("spec.adaptation.mode", False, "spec.adaptation.mode", 'must be of type string: "boolean"'),
    ("spec.adaptation.actions", [], "spec.adaptation.actions", "should have at least 1 items"),
    (
        "spec.adaptation.actions",
        ["Shrink"],
        "spec.adaptation.actions[0]",
        'supported values: "Deepen", "Widen", "AddBlock"',
    ),
    ("spec.adaptation.agent.url", "agent:8080", "spec.adaptation.agent.url", "should match '^https?://"),
    ("spec.training.model", {}, "spec.training.model", ONE_OF),
    ("spec.training.model.name", "cnn1", "spec.training.model", ONE_OF),
    ("spec.training.dataset.entrypoint", "a:b", "spec.training.dataset", ONE_OF),
    ("spec.training.model", {"name": "vgg"}, "spec.training.model.name", "should match '^(digits|cifar8|"),
    (
        "spec.training.dataset.path",
        ...,
        "spec.training.dataset.path",
        "is needed for imagefolder: a folder with one folder of images per class",
    ),
    ("spec.training.maxBatchSize", 31, "spec.training.maxBatchSize", "must be at least batchSize; raise it or lower"),
    ("spec.training.maxBatchSize", ..., "spec.training.maxBatchSize", "is missing; batch: Goodput needs the largest"),
    ("spec.training.elasticBatch", "scaleLinear", "spec.training.elasticBatch", "use keepGlobal"),
    ("spec.training.batch", "Best", "spec.training.batch", 'supported values: "Fixed", "Goodput"'),
    ("spec.training.seed", 2**32, "spec.training.seed", "should be less than"),
    ("spec.training.optimizer.momentum", 1, "spec.training.optimizer.momentum", "should be less than 1"),
    ("spec.checkpoint.path", "", "spec.checkpoint.path", "should be at least 1 chars long"),
    ("spec.checkpoint.path", "a:b", "spec.checkpoint.path", "should match"),
    ("spec.queue", "Research", "spec.queue", "should match"),
    ("spec.queue", "q" * 53, "spec.queue", "may not be more than 52 bytes"),
    ("spec.priorityClassName", "high priority", "spec.priorityClassName", "should match"),
    (f"{LIMITS}.nvidia~com/gpu", 0, "spec.template.spec.containers", NO_GPU),
    (f"{LIMITS}.nvidia~com/gpu", ..., "spec.template.spec.containers", NO_GPU),
    (f"{LIMITS}.nvidia~com/gpu", -1, "spec.template.spec.containers[0].resources.limits", WHOLE),
    (f"{LIMITS}.nvidia~com/gpu", "500m", "spec.template.spec.containers[0].resources.limits", WHOLE),
    (f"{LIMITS}.nvidia~com/gpu", "1.5", "spec.template.spec.containers[0].resources.limits", WHOLE),
    (f"{LIMITS}.nvidia~com/gpu", 1.5, f"spec.template.spec.containers[0].resources.limits.{GPU}", "of type integer"),
    (f"{LIMITS}.cpu", "lots", "spec.template.spec.containers[0].resources.limits.cpu", "should match"),
    ("spec.template.spec.containers", [], "spec.template.spec.containers", "should have at least 1 items"),
    ("spec.template.spec.containers.1.name", "trainer", "spec.template.spec.containers[1]", "Duplicate value"),
    ("spec.template.spec.containers.0.name", "Trainer", "spec.template.spec.containers[0].name", "should match"),
    ("spec.template.spec.volumes", 5, "spec.template.spec.volumes", 'must be of type array: "integer"'),
    ("spec.template.spec", ..., "spec.template.spec", "Required value"),
    ("spec.template.metadata.labels", ["a"], "spec.template.metadata.labels", 'must be of type object: "array"'),
    ("spec.program", {}, "spec.maxReplicas", "must equal minReplicas, as a program cannot use extra workers"),
    ("spec.program", {"progress": {}}, "spec.program.progress", "needs exactly one of log and metrics"),
    ("spec.program.progress.log", {}, "spec.program.progress.log", "needs exactly one of pattern and json"),
    (
        "spec.program.progress.log.pattern",
        "(?P<x>",
        "spec.program.progress.log",
        "error parsing regexp: missing closing )",
    ),
    ("spec.program.progress.log.pattern", "x" * 513, "spec.program.progress.log.pattern", "may not be more than 512"),
    ("spec.program.progress.metrics", {"port": 1}, "spec.program.progress.metrics.series", "Required value"),
    ("metadata.name", "a" * 53, "metadata.name", "has more than 52 characters; shorten it, as names of its pods must"),
    ("metadata.name", "1a", "metadata.name", LABEL),
    ("metadata.name", "a.b", "metadata.name", LABEL),
    ("metadata.name", "Upper", "metadata.name", "a lowercase RFC 1123 subdomain must consist of"),
    ("spec", ..., "spec", "Required value"),
)


@pytest.mark.parametrize(
    ("path", "value", "field", "message"), BAD, ids=[f"{row[0]}={str(row[1])[:20]}" for row in BAD]
)
def test_a_bad_job_is_refused_with_field_and_remedy(
    api_server: ApiServer, namespace: str, path: str, value: Any, field: str, message: str
) -> None:
    """Each row changes one field of a job that is right."""
    answer = api_server.api.post(jobs_of(namespace), json=changed(FULL, path, value), params={"dryRun": "All"})
    said = causes(answer)
    assert message in said.get(field, f"nothing; but: {said}")


def test_a_program_needs_its_command_or_image(api_server: ApiServer, namespace: str) -> None:
    """The image of Espalier's trainer would train."""
    alone = changed(MINIMAL, "spec.program", {})
    container = {"name": "one", "resources": {"limits": {GPU: 1}}}
    without = changed(alone, "spec.template", {"spec": {"containers": [container]}})
    words = "needs spec.template with the command or the image of the program"
    for job in (alone, without):
        said = causes(api_server.api.post(jobs_of(namespace), json=job, params={"dryRun": "All"}))
        assert said.keys() == {"spec.program"}
        assert words in said["spec.program"]
    told = changed(without, "spec.template.spec.containers.0.command", ["sh"])
    assert api_server.api.post(jobs_of(namespace), json=told, params={"dryRun": "All"}).status_code == 201


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("spec.timeBudget", "spec.timeBudget"),
        ("spec.time_budget_seconds", "spec.time_budget_seconds"),
        ("spec.training.model.nme", "spec.training.model.nme"),
        ("spec.adaptation.agent.uri", "spec.adaptation.agent.uri"),
    ],
)
def test_an_unknown_field_is_named(api_server: ApiServer, namespace: str, path: str, field: str) -> None:
    """As kubectl asks for it."""
    answer = api_server.kubectl(
        "apply", "-n", namespace, "-f", "-", stdin=json.dumps(changed(FULL, path, 1)), check=False
    )
    assert f'unknown field "{field}"' in answer


def test_a_bare_off_is_answered_with_the_field(api_server: ApiServer, namespace: str) -> None:
    """YAML as kubectl reads it makes `Off` false."""
    text = json.dumps(changed(MINIMAL, "spec.adaptation.mode", "Off")).replace('"Off"', "Off")
    said = api_server.kubectl("apply", "-n", namespace, "-f", "-", stdin=text, check=False)
    assert 'spec.adaptation.mode: Invalid value: "boolean"' in said


# ---- what is fixed

RUNS = {"scheduling": {"admittedAt": "2026-01-01T00:00:00Z"}}
TRAINED = {**RUNS, "startTime": "2026-01-01T00:00:10Z"}
SUSPENDED = {"scheduling": {"admittedAt": None}, "startTime": "2026-01-01T00:00:10Z"}
FIXED = (
    "is fixed from admission on; suspend the job (spec.suspend: true), change it once it is suspended, and resume it; "
    "or apply it under another name"
)
IMAGE = "spec.template.spec.containers.0.image"


@pytest.mark.parametrize(
    ("status", "path", "value", "field", "message"),
    [
        ({}, "spec.training.model", {"name": "cnn1"}, "", ""),
        ({}, IMAGE, "other:1", "", ""),
        (RUNS, IMAGE, "other:1", "spec.template", FIXED),
        (RUNS, "spec.template.spec.nodeSelector.zone", "b", "spec.template", FIXED),
        (RUNS, "spec.template.spec.priority", 7, "spec.template", FIXED),
        (RUNS, "spec.template", ..., "spec.template", FIXED),
        (RUNS, "spec.minReplicas", 1, "spec.minReplicas", FIXED),
        (RUNS, "spec.training.batchSize", 33, "spec.training", FIXED),
        (RUNS, "spec.training.model.options.width", 4, "spec.training", FIXED),
        (RUNS, "spec.training.model.options", {"width": 3, "other": [1, {"deep": None}]}, "spec.training", FIXED),
        (RUNS, "spec.controllerName", "example.com/other", "spec.controllerName", "is immutable; apply the job under"),
        (
            TRAINED,
            "spec.controllerName",
            "example.com/other",
            "spec.controllerName",
            "is immutable; apply the job under",
        ),
        (RUNS, "spec.maxReplicas", 9, "", ""),
        (RUNS, "spec.timeBudgetSeconds", 500, "", ""),
        (RUNS, "spec.suspend", False, "", ""),
        (RUNS, "spec.preemption.noticeSeconds", 3, "", ""),
        (SUSPENDED, IMAGE, "other:1", "", ""),
        (SUSPENDED, "spec.training.batchSize", 33, "", ""),
        (
            SUSPENDED,
            "spec.training.model",
            {"name": "cnn1"},
            "spec.training.model",
            "is fixed once the job has trained, as its checkpoints hold this model; apply it under another name",
        ),
        (SUSPENDED, "spec.training.dataset", {"name": "mnist"}, "spec.training.dataset", "is fixed once the job has"),
        (SUSPENDED, "spec.checkpoint.path", "/b", "spec.checkpoint.path", "as its checkpoints are there"),
        (TRAINED, "spec.checkpoint.intervalSeconds", 2, "", ""),
    ],
)
def test_a_running_job_keeps_what_it_runs_by(
    api_server: ApiServer, namespace: str, status: dict[str, Any], path: str, value: Any, field: str, message: str
) -> None:
    """Template, model and workers; budgets and the most GPUs may change."""
    name = "fixed"
    where = f"{jobs_of(namespace)}/{name}"
    if api_server.api.get(where).status_code == 404:
        api_server.request("POST", jobs_of(namespace), changed(FULL, "metadata.name", name))
    reset = {"scheduling": {"admittedAt": None}, "startTime": None} | status
    stored = api_server.request("PATCH", f"{where}/status", {"status": reset})
    answer = api_server.api.put(where, json=changed(stored, path, value), params={"dryRun": "All"})
    if field:
        assert message in causes(answer).get(field, f"nothing; but: {answer.text}")
    else:
        assert answer.status_code == 200, answer.text
    same = api_server.api.put(where, json=stored, params={"dryRun": "All"})
    assert same.status_code == 200, "a job may always be applied as it is"


def test_a_finished_job_keeps_them_too(api_server: ApiServer, namespace: str) -> None:
    """It stays admitted, as nothing is taken back from its record."""
    api_server.request("POST", jobs_of(namespace), changed(FULL, "metadata.name", "finished"))
    done = {"status": {**TRAINED, "completionTime": "2026-01-01T01:00:00Z"}}
    stored = api_server.request("PATCH", f"{jobs_of(namespace)}/finished/status", done)
    answer = api_server.api.put(f"{jobs_of(namespace)}/finished", json=changed(stored, IMAGE, "other:1"))
    said = causes(answer)["spec.template"]
    assert "the job has finished; delete the job first, or apply it under another name" in said


# ---- how it is seen


def test_kubectl_get_tells_the_story(api_server: ApiServer, namespace: str) -> None:
    """Columns, short name, category, scale."""
    api_server.request("POST", jobs_of(namespace), changed(FULL, "metadata.name", "seen"))
    status = {
        "phase": "Running",
        "allocation": {"gpus": 6},
        "scheduling": {"extra": 1},
        "training": {"depth": 5},
        "adaptationCount": 2,
        "timeBudget": {"remainingSeconds": 351.87},
        "restarts": 4,
        "replicas": 3,
        "selector": "espalier.dev/job=seen",
    }
    api_server.request("PATCH", f"{jobs_of(namespace)}/seen/status", {"status": status})
    head, row = api_server.kubectl("get", "atj", "seen", "-n", namespace).splitlines()
    assert head.split() == ["NAME", "PHASE", "GPUS", "EXTRA", "DEPTH", "ADAPTATIONS", "BUDGET-LEFT", "AGE"]
    assert row.split()[:-1] == ["seen", "Running", "6", "1", "5", "2", "351"]
    head, row = api_server.kubectl("get", "espalier", "seen", "-n", namespace, "-o", "wide", check=False).splitlines()
    assert head.split()[-3:] == ["RESTARTS", "QUEUE", "AGE"]
    assert row.split()[-3:-1] == ["4", "research"]
    api_server.kubectl("scale", "atj/seen", "-n", namespace, "--replicas=9")
    assert api_server.request("GET", f"{jobs_of(namespace)}/seen")["spec"]["maxReplicas"] == 9
    scale = api_server.request("GET", f"{jobs_of(namespace)}/seen/scale")
    assert scale["status"] == {"replicas": 3, "selector": "espalier.dev/job=seen"}


def test_kubectl_explain_says_what_the_models_say(api_server: ApiServer) -> None:
    """Descriptions come from docstrings, those of enum members too."""
    api_server.wait_published("espalier.dev/v1alpha1")
    said = api_server.kubectl("explain", "atj.spec.adaptation.mode")
    assert "The use of the agent's advice." in said
    assert "`DryRun`: Ask the agent and record its advice, but do not change the model." in " ".join(said.split())
    assert "Preemptions do not count" in " ".join(api_server.kubectl("explain", "atj.spec.backoffLimit").split())
