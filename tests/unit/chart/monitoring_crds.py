"""The Prometheus operator's own definitions of its kinds, for tests: where they are, and what they say of an object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
from charts import Raw, parse

from tools import tool


def monitoring_crds() -> Path:
    """Return the folder with the definitions."""
    return tool("monitoring-crds", "no definitions of monitors to test with; hack/monitoring-crds gets them")


class MonitoringSchemas:
    """Schemas by kind, closed: a field that they do not name is an error, where an API server would drop it."""

    def __init__(self, folder: Path) -> None:
        """Of all definitions in a folder."""
        self._schemas: dict[str, Raw] = {}
        for file in sorted(folder.glob("*.yaml")):
            (definition,) = parse(file.read_text())
            (version,) = definition["spec"]["versions"]
            schema = _closed(version["schema"]["openAPIV3Schema"])
            # What every object may have is not in a definition.
            schema["properties"]["metadata"] = {"type": "object"}
            self._schemas[definition["spec"]["names"]["kind"]] = schema

    @property
    def kinds(self) -> set[str]:
        """The kinds that are defined."""
        return set(self._schemas)

    def refusal(self, found: Raw) -> str | None:
        """Return what the definition of its kind says of an object, None where it takes it."""
        error = jsonschema.exceptions.best_match(
            jsonschema.Draft202012Validator(self._schemas[found["kind"]]).iter_errors(found)
        )
        return None if error is None else f"{'.'.join(map(str, error.path))}: {error.message}"


def _closed(schema: Any) -> Any:
    """Return a schema that takes no fields but those it names."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items() if key not in ("properties", "default", "enum")}
    closed |= {key: schema[key] for key in ("default", "enum") if key in schema}
    if "properties" in schema:
        closed["properties"] = {name: _closed(inner) for name, inner in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            closed.setdefault("additionalProperties", False)
    return closed
