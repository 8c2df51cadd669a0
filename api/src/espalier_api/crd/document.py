"""The custom resource definition of a job."""

from __future__ import annotations

import io
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

from espalier_api.crd.rules import RULES
from espalier_api.crd.schema import Schema, structural
from espalier_api.job import GROUP, KIND, PLURAL, VERSION, JobSpec
from espalier_api.status import JobStatus

NAME: Final = f"{PLURAL}.{GROUP}"
"""Name of the definition, and of its file."""
SHORT_NAME: Final = "atj"
CATEGORY: Final = "espalier"
_HEADER: Final = "# Generated from espalier_api by `make crd`. Change the models there, not this file.\n"

_BOOLEANS_OF_YAML_1_1: Final = frozenset({"y", "yes", "on", "n", "no", "off"})

_COLUMNS: Final = (
    ("Phase", "string", ".status.phase", "Phase of the job.", 0),
    ("GPUs", "integer", ".status.allocation.gpus", "GPUs of all workers.", 0),
    ("Extra", "integer", ".status.scheduling.extra", "Extra workers lent to the job.", 0),
    ("Depth", "integer", ".status.training.depth", "Layers of the model.", 0),
    ("Adaptations", "integer", ".status.adaptationCount", "How often the model has grown.", 0),
    # An integer: the fraction of a second is cut off.
    ("Budget-Left", "integer", ".status.timeBudget.remainingSeconds", "Seconds of the time budget that are left.", 0),
    ("Restarts", "integer", ".status.restarts", "How often the leader was restarted.", 1),
    ("Queue", "string", ".spec.queue", "Queue of the job.", 1),
    ("Age", "date", ".metadata.creationTimestamp", "Time since creation.", 0),
)


def custom_resource_definition() -> dict[str, Any]:
    """Return the definition as plain JSON types."""
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.maxReplicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "description": text, "priority": priority}
            for name, kind, path, text, priority in _COLUMNS
        ],
        "schema": {"openAPIV3Schema": _schema()},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT_NAME],
                "categories": [CATEGORY],
            },
            "versions": [version],
        },
    }


def render() -> str:
    """Return the definition as the text of its YAML file."""
    yaml = YAML(typ="rt")
    yaml.width = 100_000  # a line broken by the emitter ends with a space
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.representer.ignore_aliases = lambda _: True
    stream = io.StringIO()
    yaml.dump(_quoted(custom_resource_definition()), stream)
    return _HEADER + stream.getvalue()


def _quoted(value: Any) -> Any:
    """Return `value` so that a reader of YAML 1.1, as kubectl is, takes `Off` for a text too."""
    match value:
        case dict():
            return {key: _quoted(item) for key, item in value.items()}
        case list():
            return [_quoted(item) for item in value]
        case str() if value.lower() in _BOOLEANS_OF_YAML_1_1:
            return DoubleQuotedScalarString(value)
        case str() if "\n" in value:
            return LiteralScalarString(value)
    return value


def _schema() -> Schema:
    schema: Schema = {
        "description": "A training job with a time budget that grows its model into GPUs that become free.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": structural(JobSpec, RULES, defaults=True),
            # What a status does not say was not known: nothing is filled in.
            "status": structural(JobStatus, RULES, defaults=False),
        },
    }
    if rules := RULES.get(KIND):
        schema["x-kubernetes-validations"] = [dict(rule) for rule in rules]
    return schema
