"""Jobs as nobody should write them: strategies derived from the CRD's own schema, and nasty ones made by hand.

`mutated_jobs` draws a `Mutated`: a job that was right, changed in one to three places. `NASTY` lists whole documents.
Both are JSON texts, since some of what people send (`1e400`, a key twice) is no Python value.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from hypothesis import strategies as st

from espalier_generate.crd import custom_resource_definition

Place = tuple[str | int, ...]

HEAD: Final = {"apiVersion": "espalier.dev/v1alpha1", "kind": "AdaptiveTrainingJob"}
GPU: Final = "nvidia.com/gpu"


class Raw(str):
    """JSON that `json.dumps` would not write, put into the text as it is."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Mutated:
    """A document to send."""

    text: str
    """JSON, or what claims to be."""
    places: tuple[str, ...] = field(default=())
    """Dotted paths of what was changed; empty for a document made by hand."""


def render(document: Any, places: tuple[str, ...] = ()) -> Mutated:
    """Return `document` as a text to send, `Raw` values as they are."""
    raw: list[Raw] = []

    def mark(value: Any) -> Any:
        if isinstance(value, Raw):
            raw.append(value)
            return f"@raw-{len(raw) - 1}@"
        if isinstance(value, dict):
            return {key: mark(item) for key, item in value.items()}
        if isinstance(value, list):
            return [mark(item) for item in value]
        return value

    text = json.dumps(mark(document))
    for number, token in enumerate(raw):
        text = text.replace(f'"@raw-{number}@"', token)
    return Mutated(text, places)


# ---- jobs that are right

MINIMAL: Final[dict[str, Any]] = {**HEAD, "metadata": {"name": "minimal"}, "spec": {"timeBudgetSeconds": 60}}
FULL: Final[dict[str, Any]] = {
    **HEAD,
    "metadata": {"name": "full", "labels": {"team": "vision"}, "annotations": {"example.com/note": "all fields"}},
    "spec": {
        "timeBudgetSeconds": 400.5,
        "gpuSecondsBudget": 1600,
        "minReplicas": 2,
        "maxReplicas": 4,
        "controllerName": "espalier.dev/operator",
        "queue": "research",
        "priorityClassName": "high",
        "priority": -5,
        "suspend": True,
        "preRunningDeadlineSeconds": 120,
        "backoffLimit": 0,
        "maxPreemptions": 7,
        "ttlSecondsAfterFinished": 0,
        "preemption": {"base": "Checkpoint", "noticeSeconds": 0, "cooldownSeconds": 0.5, "minRuntimeSeconds": 60},
        "adaptation": {
            "mode": "DryRun",
            "actions": ["Deepen", "Widen"],
            "maxParameters": 1_000_000,
            "maxAdaptations": 0,
            "agent": {"url": "http://agent.example:8080/base"},
            "decisionTimeoutSeconds": 0.1,
            "fallback": "Heuristic",
            "onReclaim": "Keep",
            "insertion": "IdentityBatchNorm",
            "trials": "Confirm",
            "optimise": "Rewrites",
            "optimiseMinGain": 0.5,
            "optimiseShare": 0.25,
        },
        "training": {
            "task": "Classification",
            "model": {"entrypoint": "my.models:build", "options": {"width": 3, "blocks": [1, {"deep": None}]}},
            "dataset": {"name": "imagefolder", "path": "/data/faces", "options": {}},
            "batchSize": 32,
            "batch": "Goodput",
            "maxBatchSize": 256,
            "maxBatchSizePerWorker": 64,
            "accumulation": 1,
            "gradientCheckpointing": True,
            "precision": "BFloat16",
            "weightAveraging": 0.5,
            "memoryFormat": "Auto",
            "elasticBatch": "keepGlobal",
            "optimizer": {
                "name": "SGD",
                "learningRate": 1e-3,
                "momentum": 0.9,
                "weightDecay": 0,
                "decayMatricesOnly": True,
                "maxGradientNorm": 1.5,
                "fused": False,
            },
            "schedule": {
                "name": "torch:StepLR",
                "restartOnGrowth": False,
                "decay": 0.5,
                "warmup": 0.25,
                "options": {"step_size": 3},
            },
            "evaluateEveryEpochs": 2,
            "seed": 2**32 - 1,
        },
        "checkpoint": {"path": "/data/checkpoints", "intervalSeconds": 1},
        "template": {
            "metadata": {"labels": {"team": "vision"}, "annotations": {"example.com/note": "x"}},
            "spec": {
                "containers": [
                    {
                        "name": "trainer",
                        "image": "example.com/trainer:1",
                        "command": ["python"],
                        "args": ["-m", "train"],
                        "env": [{"name": "A", "value": "1"}],
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                        "securityContext": {"runAsNonRoot": True},
                        "resources": {"limits": {GPU: 2, "cpu": "500m"}, "requests": {"memory": "1Gi"}},
                    },
                    {"name": "sidecar", "image": "example.com/sidecar:1"},
                ],
                "volumes": [{"name": "data", "emptyDir": {}}],
                "nodeSelector": {"zone": "a"},
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "securityContext": {"fsGroup": 1},
                "serviceAccountName": "trainer",
                "terminationGracePeriodSeconds": 30,
            },
        },
    },
}
RIGHT: Final = (MINIMAL, FULL)


# ---- places, found in the schema

_SPEC: Final = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def _places(schema: dict[str, Any], path: Place) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield every field of `schema` with what is said of it; lists by their first item, maps by one key."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from _places(inner, (*path, name))
    if "items" in schema:
        yield from _places(schema["items"], (*path, 0))
    if "additionalProperties" in schema:
        key = GPU if path[-1] in ("limits", "requests") else "some-key"
        yield from _places(schema["additionalProperties"], (*path, key))


_OPEN: Final[dict[str, Any]] = {}
PLACES: Final[tuple[tuple[Place, dict[str, Any]], ...]] = (
    *_places(_SPEC, ("spec",)),
    (("spec", "training", "model", "options", "width"), _OPEN),
    (("spec", "training", "schedule", "options", "deep"), _OPEN),
    (("spec", "template", "spec", "affinity"), _OPEN),
    (("spec", "template", "spec", "restartPolicy"), _OPEN),
    (("spec", "template", "spec", "containers", 0, "livenessProbe"), _OPEN),
    (("apiVersion",), {"type": "string"}),
    (("kind",), {"type": "string"}),
    (("metadata",), {"type": "object"}),
    (("metadata", "name"), {"type": "string"}),
    (("metadata", "labels"), {"type": "object"}),
    (("metadata", "labels", "team"), {"type": "string"}),
    (("metadata", "annotations", "note"), {"type": "string"}),
    (("metadata", "finalizers"), {"type": "array"}),
    (("metadata", "generateName"), {"type": "string"}),
    (("metadata", "unknown"), _OPEN),
    (("status",), _OPEN),
    (("status", "phase"), _OPEN),
    (("unknown",), _OPEN),
)


def dotted(path: Place) -> str:
    """Return `path` as the API server writes it."""
    text = ""
    for part in path:
        simple = isinstance(part, str) and part.replace("-", "").isalnum()
        text += f"[{part}]" if isinstance(part, int) or not simple else f".{part}"
    return text.lstrip(".")


# ---- values


def nested(depth: int) -> Raw:
    """Return a map in a map in a map …"""
    return Raw('{"a": ' * depth + "1" + "}" * depth)


NASTY_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, "", " ", "\n", "null", "NaN", "Infinity", "-0", "1", "0x10", "yes", "Off", "~"),
    *(0, -1, -0.0, 0.5, 1.5, 3.0, 1e-320, 1e308, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**30),
    *([], {}, [[]], [None], [1, "a", None], {"": ""}, {"a": None}, {"unknown": 1}, nested(60)),
    *("naïve", "日本語", "‮x", "a\u0000b", "\ud800", "😀" * 30, "a" * 53, "a" * 64, "A", "-a", "a.b", "1a", "٣"),
    *("x" * 300, "y" * 20_000, "2026-02-30T25:61:00Z", "${HOME}", "'; --", "<script>", "../../etc/passwd", "a:b"),
    *(Raw("1e400"), Raw("-0"), Raw("1E2"), Raw("1.0"), Raw("100000000000000000000000.0"), Raw("5e-325")),
    *("500m", "1.5", "1e3", "0", "00", "0001", "١", "1Gi", "lots", "9" * 40, "-1", "+1"),
)
_KEYS: Final = ("unknown", "", "time_budget_seconds", "TimeBudgetSeconds", "timeBudgetSecond", "$ref", "名", "a.b/c")


def _bounds(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Draw numbers at, beside and between the bounds of `schema`."""
    low, high = schema.get("minimum", -(10**6)), schema.get("maximum", 10**12)
    tiny = 1 if schema["type"] == "integer" else 1e-9
    near = [low, low - tiny, low + tiny, high, high - tiny, high + tiny, low - 1, high + 1, float(low), float(high)]
    between = st.integers(int(low), int(high)) if tiny == 1 else st.floats(low, high, allow_nan=False)
    return st.sampled_from(near) | between


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Draw values that `schema` allows, or just does not."""
    if "enum" in schema:
        near = [*schema["enum"], *(text.lower() for text in schema["enum"]), f"{schema['enum'][0]} "]
        return st.sampled_from(near)
    match schema.get("type"):
        case "string":
            longest = schema.get("maxLength", 60)
            text = st.text(max_size=60) | st.sampled_from(["a" * longest, "a" * (longest + 1)])
            return st.from_regex(schema["pattern"], fullmatch=True) | text if "pattern" in schema else text
        case "integer" | "number":
            return _bounds(schema)
        case "boolean":
            return st.booleans()
        case "array":
            return st.lists(values(schema["items"]) if "items" in schema else st.text(max_size=5), max_size=3)
        case "object" if "properties" in schema:
            fields = {name: values(inner) for name, inner in schema["properties"].items()}
            required = {name: fields.pop(name) for name in schema.get("required", ())}
            return st.fixed_dictionaries(required, optional=fields)
        case _:
            plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
            leaves = plain | st.text(max_size=10)
            return st.recursive(
                leaves,
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
                max_leaves=6,
            )


_VALUES: Final = {path: values(schema) for path, schema in PLACES}


# ---- mutations


@st.composite
def mutated_jobs(draw: st.DrawFn) -> Mutated:
    """Draw a job that was right, changed in one to three places of the schema."""
    document = copy.deepcopy(draw(st.sampled_from(RIGHT)))
    places = []
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3)))):
        path, _schema = draw(st.sampled_from(PLACES))
        places.append(dotted(path))
        match draw(st.sampled_from(("nasty", "nasty", "schema", "schema", "schema", "delete", "wrap", "unknown"))):
            case "nasty":
                _put(document, path, copy.deepcopy(draw(st.sampled_from(NASTY_VALUES))))
            case "schema":
                _put(document, path, draw(_VALUES[path]))
            case "delete":
                _delete(document, path)
            case "wrap":
                here = _get(document, path)
                _put(document, path, draw(st.sampled_from(([here], {"a": here}, json.dumps(here, default=str)))))
            case "unknown":
                key = draw(st.sampled_from(_KEYS))
                _put(document, (*path[:-1], key) if not isinstance(path[-1], int) else (*path, key), 1)
                places.append(dotted((*path[:-1], key)))
    return render(document, tuple(places))


def _put(document: Any, path: Place, value: Any) -> None:
    """Set the value at `path`, making what leads there; what stands in the way stays."""
    node = document
    for part, following in pairwise(path):
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(node, dict) and isinstance(part, str):
            node = node.setdefault(part, empty)
        elif isinstance(node, list) and isinstance(part, int):
            if not node:
                node.append(empty)
            node = node[0]
        else:
            return
    last = path[-1]
    if isinstance(node, dict) and isinstance(last, str):
        node[last] = value
    elif isinstance(node, list) and isinstance(last, int):
        node[:1] = [value]


def _get(document: Any, path: Place) -> Any:
    node = document
    for part in path:
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            return None
    return node


def _delete(document: Any, path: Place) -> None:
    parent = _get(document, path[:-1])
    if isinstance(parent, dict) and isinstance(path[-1], str):
        parent.pop(path[-1], None)
    elif isinstance(parent, list) and parent:
        del parent[0]


# ---- whole documents


def _with(path: Place, value: Any) -> Mutated:
    document = copy.deepcopy(FULL)
    _put(document, path, value)
    return render(document, (dotted(path),))


_OPTIONS: Final[Place] = ("spec", "training", "model", "options")
_CONTAINERS: Final[Place] = ("spec", "template", "spec", "containers")
_TEXT: Final = json.dumps(MINIMAL)

NASTY: Final[tuple[Mutated, ...]] = (
    *(_with(path, value) for path, _schema in PLACES for value in (None, [], {}, "", 0, True, "NaN", nested(3))),
    *(_with(_OPTIONS, nested(depth)) for depth in (150, 190, 198, 250, 900, 1100, 5000, 9000)),
    *(_with((*_OPTIONS, "a"), value) for value in NASTY_VALUES),
    _with(_CONTAINERS, FULL["spec"]["template"]["spec"]["containers"] * 2),
    _with(_CONTAINERS, [{"name": f"c{number}"} for number in range(40)]),
    *(_with((*_CONTAINERS, 0, "resources", "limits", GPU), many) for many in ("12345678", "0000001", "00000001", -1)),
    _with((*_CONTAINERS, 0, "resources", "limits"), {GPU: 1, "example.com/r": "1.5"}),
    _with((*_CONTAINERS, 0, "resources", "limits"), {f"example.com/r{number}": 1 for number in range(40)}),
    _with(("metadata", "annotations", "note"), "x" * 300_000),
    _with(("metadata", "name"), "a" * 52),
    _with(("metadata", "name"), "a" * 53),
    Mutated(""),
    Mutated("[]"),
    Mutated("null"),
    Mutated("{}"),
    Mutated(_TEXT[:-1]),
    Mutated(_TEXT.replace("60", '60, "timeBudgetSeconds": 70')),
    Mutated(_TEXT.replace("60", "NaN")),
    Mutated(_TEXT.replace("60", "Infinity")),
    Mutated(_TEXT.replace("60", "1e400")),
    Mutated(_TEXT.replace("60", "-0")),
    Mutated(_TEXT.replace("60", "060")),
    Mutated(_TEXT.replace("60", "1" * 400)),
    Mutated(_TEXT + "x"),
    Mutated("\ufeff" + _TEXT),
    Mutated("[" * 20_000 + "]" * 20_000),
)
"""Documents with a story of their own."""
