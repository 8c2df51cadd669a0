"""The custom resource definitions of a job and of a queue, generated from the models.

`python -m espalier_generate.crd FOLDER` writes them; `make crd` calls that for `crds/`.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

from espalier_core.files.documents import write_text_atomically
from espalier_core.types.job import GROUP, KIND, PLURAL, VERSION, JobSpec
from espalier_core.types.queue import QUEUE_KIND, QUEUE_PLURAL, QueueSpec, QueueStatus
from espalier_core.types.status import JobStatus
from espalier_generate.crd_rules import RULES
from espalier_generate.crd_schema import Schema, structural

NAME: Final = f"{PLURAL}.{GROUP}"
"""Name of the definition of jobs, and of its file."""
SHORT_NAME: Final = "atj"
CATEGORY: Final = "espalier"
_HEADER: Final = "# Generated from espalier_core by `make crd`. Change the models there, not this file.\n"

_BOOLEANS_OF_YAML_1_1: Final = frozenset({"y", "yes", "on", "n", "no", "off"})

_JOB_COLUMNS: Final = (
    ("Phase", "string", ".status.phase", "Phase of the job.", 0),
    ("GPUs", "integer", ".status.allocation.gpus", "GPUs of all workers.", 0),
    ("Extra", "integer", ".status.scheduling.extra", "Extra workers lent to the job.", 0),
    ("Depth", "integer", ".status.training.depth", "Layers of the model.", 0),
    ("Adaptations", "integer", ".status.adaptationCount", "How often the model has grown.", 0),
    # An integer: the fraction of a second is cut off.
    ("Budget-Left", "integer", ".status.timeBudget.remainingSeconds", "Seconds of the time budget that are left.", 0),
    ("Step", "integer", ".status.training.step", "Steps taken.", 1),
    ("Done", "integer", ".status.training.donePercentage", "Part of a program's work that is done, in percent.", 1),
    ("Restarts", "integer", ".status.restarts", "How often the leader was restarted.", 1),
    ("Queue", "string", ".spec.queue", "Queue of the job.", 1),
    ("Age", "date", ".metadata.creationTimestamp", "Time since creation.", 0),
)


_QUEUE_COLUMNS: Final = (
    ("Cohort", "string", ".spec.cohort", "Queues that borrow from each other.", 0),
    ("Admitted", "integer", ".status.admittedJobs", "Jobs that hold base GPUs.", 0),
    ("Pending", "integer", ".status.pendingJobs", "Jobs that wait.", 0),
    ("GPUs", "integer", ".status.usedGpus", "Base GPUs that jobs hold.", 0),
    ("Borrowed", "integer", ".status.borrowedGpus", "The part of them beyond the nominal quotas.", 0),
    ("Active", "string", ".status.conditions[?(@.type=='Active')].status", "Whether it admits jobs.", 1),
    ("Max-Priority", "integer", ".spec.maxPriority", "The highest priority that it admits.", 1),
    ("Age", "date", ".metadata.creationTimestamp", "Time since creation.", 0),
)


@dataclass(frozen=True)
class _Kind:
    kind: str
    plural: str
    scope: str
    short_names: tuple[str, ...]
    columns: tuple[tuple[str, str, str, str, int], ...]
    schema: Schema
    subresources: Mapping[str, Any]


def custom_resource_definition() -> dict[str, Any]:
    """Return the definition of jobs as plain JSON types."""
    scale = {
        "specReplicasPath": ".spec.maxReplicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    subresources = {"status": {}, "scale": scale}
    return _definition(_Kind(KIND, PLURAL, "Namespaced", (SHORT_NAME,), _JOB_COLUMNS, _job_schema(), subresources))


def queue_definition() -> dict[str, Any]:
    """Return the definition of queues as plain JSON types."""
    return _definition(_Kind(QUEUE_KIND, QUEUE_PLURAL, "Cluster", (), _QUEUE_COLUMNS, _queue_schema(), {"status": {}}))


def definitions() -> dict[str, str]:
    """Return the text of each definition's YAML file, by its name."""
    return {found["metadata"]["name"]: render(found) for found in (custom_resource_definition(), queue_definition())}


def _definition(of: _Kind) -> dict[str, Any]:
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        **({"subresources": of.subresources} if of.subresources else {}),
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "description": text, "priority": priority}
            for name, kind, path, text, priority in of.columns
        ],
        "schema": {"openAPIV3Schema": of.schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{of.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": of.scope,
            "names": {
                "kind": of.kind,
                "listKind": f"{of.kind}List",
                "plural": of.plural,
                "singular": of.kind.lower(),
                **({"shortNames": list(of.short_names)} if of.short_names else {}),
                **({"categories": [CATEGORY]} if of.scope == "Namespaced" else {}),
            },
            "versions": [version],
        },
    }


def render(definition: Mapping[str, Any]) -> str:
    """Return a definition as the text of its YAML file."""
    yaml = YAML(typ="rt")
    yaml.width = 100_000  # a line broken by the emitter ends with a space
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.representer.ignore_aliases = lambda _: True
    stream = io.StringIO()
    yaml.dump(_quoted(definition), stream)
    return _HEADER + stream.getvalue()


def _quoted(value: Any) -> Any:
    """Return `value` so that a reader of YAML 1.1, as kubectl is, takes `Off` for a text too."""
    match value:
        case Mapping():
            return {key: _quoted(item) for key, item in value.items()}
        case list():
            return [_quoted(item) for item in value]
        case str() if value.lower() in _BOOLEANS_OF_YAML_1_1:
            return DoubleQuotedScalarString(value)
        case str() if "\n" in value:
            return LiteralScalarString(value)
    return value


def _queue_schema() -> Schema:
    schema: Schema = {
        "description": "Limits the base GPUs that the training jobs which name it in spec.queue hold together.",
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": structural(QueueSpec, RULES, defaults=True),
            "status": structural(QueueStatus, RULES, defaults=False),
        },
        "x-kubernetes-validations": [dict(rule) for rule in RULES[QUEUE_KIND]],
    }
    return schema


def _job_schema() -> Schema:
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


def main(arguments: list[str]) -> int:
    """Write the files into the folder named, print their paths; 2 where no folder is named."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print("usage: python -m espalier_generate.crd FOLDER (that exists)", file=sys.stderr)
        return 2
    for name, text in definitions().items():
        path = Path(arguments[0]) / f"{name}.yaml"
        write_text_atomically(path, text)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
