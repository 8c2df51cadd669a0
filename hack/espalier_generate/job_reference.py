"""The page of the job, field by field, generated from the models.

`python -m espalier_generate.job_reference` prints it; with a path, it writes it there.
"""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from espalier_core.files.documents import print_or_write
from espalier_core.types.job import KIND, JobSpec
from espalier_generate.crd.rules import RULES
from espalier_generate.crd.schema import Schema, structural

_HEAD: Final = """\
# The job, field by field

<!-- Written by `make docs` from the docstrings of job.py, adaptation.py, training.py, program.py and pod_template.py in
core/src/espalier_core/types, and from hack/espalier_generate/crd/rules.py; change it there. -->

This page lists all fields of `spec` of an `AdaptiveTrainingJob` (`espalier.dev/v1alpha1`). They are the same for
`espalier run` and for a cluster. Only `timeBudgetSeconds` is required. Fields are written as paths below `spec`; other
fields are rejected. Fields without a default are optional; their description explains what their absence means.

```sh
espalier validate examples/digits.yaml
```

reports every problem in a file, with the line, the field, the value and the allowed values. `kubectl apply` reports
most of them, because the custom resource contains the same types and rules. The operator reports the others, such as
`training` together with `program`, in the condition `Admitted: False, InvalidSpec`. Below each table are the
combinations that are rejected although each field is valid by itself, with the messages of the API server.
"""
_ALTERNATIVES: Final = re.compile(r"\^\(([A-Za-z0-9_:\[\]+*|-]+)\)\$")
"""A pattern that only lists alternatives."""
_OPEN: Final = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"
_PLURALS: Final = {"text": "texts", "integer": "integers", "object": "objects", "number or text": "quantities"}


def page() -> str:
    """Return the page: a table of fields for each object of a job's `spec`, and what the API server rejects."""
    schema = structural(JobSpec, RULES, defaults=True)
    return "\n".join([_HEAD, *_sections("spec", schema), *_rules_of_the_whole(), ""])


def _sections(path: str, schema: Schema) -> Iterator[str]:
    """Yield the object at `path`, then the objects in it, in the order of the models."""
    yield f"## `{path}`\n\n{_prose(schema)}\n"
    if schema.get(_OPEN):
        yield "Other fields of Kubernetes are passed on unchanged.\n"
    yield "| field | type | default | allowed | meaning |\n| --- | --- | --- | --- | --- |"
    required = schema.get("required", ())
    below = path.partition(".")[2]
    for name, field in schema["properties"].items():
        cells = (_type(field), _default(field, name in required), _allowed(field), _prose(field))
        yield f"| `{below}{'.' if below else ''}{name}` |" + "".join(f" {cell} |" for cell in cells)
    yield ""
    if rules := schema.get("x-kubernetes-validations"):
        yield "\n".join(["Rejected:\n", *map(_message, rules), ""])
    for name, field in schema["properties"].items():
        inner = field.get("items", field)
        if "properties" in inner:
            yield from _sections(f"{path}.{name}{'[]' if inner is not field else ''}", inner)


def _rules_of_the_whole() -> Iterator[str]:
    yield "## Names and changes\n\nRejected for a job as a whole:\n"
    yield from map(_message, RULES[KIND])


def _message(rule: Mapping[str, Any]) -> str:
    """Return the API server's message for a broken rule, as an item of a list."""
    field = rule.get("fieldPath", "").removeprefix(".")
    return f"- `{field}`: {_cell(rule['message'])}" if field else f"- {_cell(rule['message'])}"


def _type(field: Schema) -> str:
    if field.get(_INT_OR_STRING):
        return "number or text"
    match field.get("type"):
        case "string":
            return "text"
        case "array":
            return f"list of {_plural(field['items'])}"
        case "object" if "additionalProperties" in field:
            values = field["additionalProperties"]
            return "map" if values.get(_OPEN) else f"map to {_plural(values)}"
        case other:
            return str(other)


def _plural(items: Schema) -> str:
    kind = "object" if items.get("additionalProperties", items).get(_OPEN) else _type(items)
    return _PLURALS.get(kind, kind)


def _default(field: Schema, required: bool) -> str:
    if required:
        return "required"
    # The fields of an object have their own defaults, in its table.
    return f"`{json.dumps(field['default'])}`" if field.get("default") not in (None, {}) else ""


def _allowed(field: Schema) -> str:
    """Return the constraints on a value in addition to its type."""
    values = field.get("items", {}).get("enum") or field.get("enum")
    if values:
        return ", ".join(f"`{value}`" for value in values)
    parts = [_range(field)] if {"minimum", "maximum"} & field.keys() else []
    if field.get("minItems"):
        parts.append(f"at least {field['minItems']}")
    for bound, what in (("maxItems", ""), ("maxProperties", ""), ("maxLength", " characters")):
        if bound in field:
            parts.append(f"at most {_number(field[bound])}{what}")
    if pattern := field.get("pattern"):
        words = _ALTERNATIVES.fullmatch(pattern)
        parts.append(", ".join(map(_code, words[1].split("|"))) if words else _code(pattern))
    return "; ".join(parts)


def _range(field: Schema) -> str:
    least, most = field.get("minimum"), field.get("maximum")
    below = "" if least is None else f"{'>' if field.get('exclusiveMinimum') else '≥'} {_number(least)}"
    above = "" if most is None else f"{'<' if field.get('exclusiveMaximum') else '≤'} {_number(most)}"
    return ", ".join(bound for bound in (below, above) if bound)


def _number(value: Any) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _code(text: str) -> str:
    """Return a pattern as code, with characters escaped that Markdown, tables or link checks would interpret."""
    if re.fullmatch(r"[\w:-]+", text):
        return f"`{text}`"
    return f"<code>{re.sub(r'[^A-Za-z0-9 .,:/?$+-]', lambda found: f'&#{ord(found[0])};', text)}</code>"


def _prose(field: Schema) -> str:
    return _cell(field.get("description", ""))


def _cell(text: str) -> str:
    """Return `text` as one line, with characters escaped that Markdown or tables would interpret."""
    line = " ".join(text.split()).replace("|", "&#124;")
    return "".join(
        part if index % 2 else html.escape(part, quote=False) for index, part in enumerate(re.split("(`[^`]*`)", line))
    )


def main(arguments: Sequence[str]) -> None:
    """Print the page, or write it to the given path."""
    print_or_write(page(), arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
