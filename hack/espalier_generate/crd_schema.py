"""A pydantic model as a structural OpenAPI schema, the kind that Kubernetes takes for its custom resources.

Structural means: every value has one type, nothing is referred to (`$ref`), nothing is either this or that
(`anyOf`). What is left open on purpose (a pod template's other fields, the options of a user's function) is marked
`x-kubernetes-preserve-unknown-fields`, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import EnumSchema

from espalier_core.base import field_docs
from espalier_generate.crd_rules import CelRule

Schema = dict[str, Any]

LISTS_BY_KEY: Final[Mapping[str, str]] = {"containers": "name", "conditions": "type"}
"""Lists that hold one item a key, by the name of the field: as in Kubernetes' own types."""

_KEPT: Final = (
    *("description", "type", "format", "enum", "pattern", "minimum", "maximum"),
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
)


_MEMBERS: Final = "x-members"
"""The key of an enum's schema for the descriptions of its members, because pydantic sets the description itself."""


class SchemaError(ValueError):
    """A model says what no structural schema can say; the message names the place."""


def structural(model: type[BaseModel], rules: Mapping[str, Sequence[CelRule]], *, defaults: bool) -> Schema:
    """Return the schema of `model` as Kubernetes wants it.

    `rules` are put on the models of these class names. With `defaults` the API server fills in the models' defaults,
    also those inside of what is left out altogether. Raises `SchemaError` for what cannot be expressed.
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
        """Return `source` (JSON schema, pydantic's dialect) as a structural schema; `name` is that of its model."""
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
            # An empty text, list or map says no more than its absence.
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
            # What has a default is filled in before anything is missed.
            if required := source.get("required"):
                result["required"] = required
            if values is True:
                result["x-kubernetes-preserve-unknown-fields"] = True
        elif values is True:
            # A map of whatever, not an object of unknown fields: CEL does not see one of those take another's place.
            result["additionalProperties"] = {"x-kubernetes-preserve-unknown-fields": True, "nullable": True}
        elif isinstance(values, dict):
            result["additionalProperties"] = self.convert(values, f"{place}.*")
        else:
            raise SchemaError(f"{place}: an object without fields; say which values it may hold")


def _shortest(default: Any, schema: Schema) -> Any:
    """Return `default` without what the defaults of `schema`'s own fields say, and without unset fields."""
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
