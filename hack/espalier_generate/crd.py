"""The custom resource definitions of a job and of a queue, generated from the models.

`python -m espalier_generate.crd FOLDER` writes them; `make crd` calls that for `crds/`.

Kubernetes requires structural OpenAPI schemas (`structural`): every value has one type, without references (`$ref`) or
alternatives (`anyOf`). Only fields that are open on purpose (a pod template's other fields, the options of a user's
function) are marked `x-kubernetes-preserve-unknown-fields`.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import EnumSchema
from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

from espalier_core.base import field_docs
from espalier_core.files.documents import write_text_atomically
from espalier_core.types.job import GROUP, KIND, PLURAL, VERSION, JobSpec
from espalier_core.types.queue import QUEUE_KIND, QUEUE_PLURAL, QueueSpec, QueueStatus
from espalier_core.types.status import JobStatus
from espalier_generate.crd_rules import RULES, CelRule

Schema = dict[str, Any]

LISTS_BY_KEY: Final[Mapping[str, str]] = {"containers": "name", "conditions": "type"}
"""Lists with one item per key, by the name of the field, as in Kubernetes' own types."""

_KEPT: Final = (
    *("description", "type", "format", "enum", "pattern", "minimum", "maximum"),
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
)


_MEMBERS: Final = "x-members"
"""The key of an enum's schema for the descriptions of its members, because pydantic sets the description itself."""
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


class SchemaError(ValueError):
    """A model cannot be expressed as a structural schema; the message names the place."""


def structural(model: type[BaseModel], rules: Mapping[str, Sequence[CelRule]], *, defaults: bool) -> Schema:
    """Return the schema of `model` in the form of Kubernetes.

    `rules` belong to the models of these class names. With `defaults` the API server fills in the models' defaults,
    also those inside absent objects. Raise `SchemaError` for anything that cannot be expressed.
    """
    source = model.model_json_schema(by_alias=True, mode="validation", schema_generator=_WithMembers)
    return _Converter(source.get("$defs", {}), rules, defaults).convert(source, model.__name__, model.__name__)


class _WithMembers(GenerateJsonSchema):
    """Describes an enum with the descriptions of its members."""

    def enum_schema(self, schema: EnumSchema) -> JsonSchemaValue:
        described = super().enum_schema(schema)
        kind = schema["cls"]
        if members := field_docs(kind):
            described[_MEMBERS] = [f"`{kind[name].value}`: {text}" for name, text in members.items()]
        return described


class _Converter:
    def __init__(
        self, definitions: Mapping[str, Schema], rules: Mapping[str, Sequence[CelRule]], defaults: bool
    ) -> None:
        self._definitions, self._rules, self._defaults = definitions, rules, defaults

    def convert(self, source: Schema, place: str, name: str = "") -> Schema:
        """Return `source` (JSON schema, pydantic's dialect) as a structural schema; `name` is its model's."""
        source, name = self._resolved(source, place, name)
        result: Schema = {key: source[key] for key in _KEPT if key in source}
        if prose := _prose(result.pop("description", ""), *source.get(_MEMBERS, ())):
            result = {"description": prose, **result}
        if "const" in source:
            result["enum"] = [source["const"]]
        for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if exclusive in source:
                result |= {bound: source[exclusive], exclusive: True}
        match source.get("type"):
            case "object":
                self._object(source, result, place)
            case "array":
                result["items"] = self.convert(source["items"], f"{place}[]")
                if key := LISTS_BY_KEY.get(place.rsplit(".", 1)[-1]):
                    result |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
            case "integer":
                result["format"] = "int64"
            case "string" | "number" | "boolean":
                pass
            case None if source.get("x-kubernetes-int-or-string"):
                result["x-kubernetes-int-or-string"] = True
            case other:
                raise SchemaError(f"{place}: type {other!r} has no structural schema")
        if self._defaults and "default" in source:
            default = _shortest(source["default"], result)
            # An empty text, list or map means the same as its absence.
            if default not in (None, "", [], {}) or (default == {} and _fills_in(result)):
                result["default"] = default
        if rules := self._rules.get(name):
            result["x-kubernetes-validations"] = [dict(rule) for rule in rules]
        return result

    def _resolved(self, source: Schema, place: str, name: str) -> tuple[Schema, str]:
        """Follow references and leave out "or null"; return the schema and the name of its model, if it has one."""
        while True:
            if "$ref" in source:
                name = source["$ref"].rsplit("/", 1)[1]
                # The description of the field takes precedence over that of its type.
                source = self._definitions[name] | {key: value for key, value in source.items() if key != "$ref"}
            elif "anyOf" in source:
                branches = [branch for branch in source["anyOf"] if branch.get("type") != "null"]
                outer = {key: value for key, value in source.items() if key != "anyOf"}
                if {branch.get("type") for branch in branches} == {"integer", "number", "string"}:
                    return outer | {"x-kubernetes-int-or-string": True}, name
                if len(branches) != 1:
                    raise SchemaError(f"{place}: is one of {len(branches)} types; a structural schema has one")
                source = branches[0] | outer
            else:
                return source, name

    def _object(self, source: Schema, result: Schema, place: str) -> None:
        values = source.get("additionalProperties")
        if "properties" in source:
            fields = source["properties"].items()
            result["properties"] = {key: self.convert(value, f"{place}.{key}") for key, value in fields}
            # A default is filled in before a missing field is reported.
            if required := source.get("required"):
                result["required"] = required
            if values is True:
                result["x-kubernetes-preserve-unknown-fields"] = True
        elif values is True:
            # A map of arbitrary values, not an object of unknown fields: CEL would not notice if two of these swapped
            # places.
            result["additionalProperties"] = {"x-kubernetes-preserve-unknown-fields": True, "nullable": True}
        elif isinstance(values, dict):
            result["additionalProperties"] = self.convert(values, f"{place}.*")
        else:
            raise SchemaError(f"{place}: an object without fields; give the type of its values")


def _shortest(default: Any, schema: Schema) -> Any:
    """Return `default` without the values that the defaults of `schema`'s own fields give, and without unset fields."""
    if not isinstance(default, dict):
        return default
    inner = schema.get("properties", {})
    kept = {key: _shortest(value, inner.get(key, {})) for key, value in default.items() if value is not None}
    return {
        key: value
        for key, value in kept.items()
        if value != inner.get(key, {}).get("default") and value not in ("", [], {})
    }


def _fills_in(schema: Schema) -> bool:
    """Return whether defaults fill in an empty object of this schema."""
    return any("default" in field for field in schema.get("properties", {}).values())


def _prose(*texts: str) -> str:
    """Return docstrings as lines that break only between paragraphs."""
    paragraphs = [paragraph for text in texts for paragraph in text.split("\n\n")]
    return "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs).strip()


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
            # An absent field of a status was unknown: nothing is filled in.
            "status": structural(JobStatus, RULES, defaults=False),
        },
    }
    if rules := RULES.get(KIND):
        schema["x-kubernetes-validations"] = [dict(rule) for rule in rules]
    return schema


def main(arguments: list[str]) -> int:
    """Write the files into the given folder and print their paths; return 2 if no folder is given."""
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
