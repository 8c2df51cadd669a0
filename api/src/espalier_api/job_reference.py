"""The page of the job field by field, made of the models.

`python -m espalier_api.job_reference` prints it, with a path it writes it there.
"""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from espalier_api.crd.rules import RULES
from espalier_api.crd.schema import Schema, structural
from espalier_api.documents import print_or_write
from espalier_api.job import KIND, JobSpec

_HEAD: Final = """\
# The job, field by field

<!-- Written by `make docs` from api/src/espalier_api/job.py and pod_template.py; change it there. -->

All fields of `spec` of an `AdaptiveTrainingJob` (`espalier.dev/v1alpha1`), for `espalier run` and for a cluster alike.
Only `timeBudgetSeconds` is required. Fields are written as paths below `spec`; what is not among them is refused. A
field without default may be absent, which means what its sentence says.

```console
$ .venv/bin/espalier validate examples/digits.yaml
```

says every problem of a file with its line, field, value and what is allowed. `kubectl apply` says the same, as types
and rules are in the custom resource, too. Below a table stands what is refused although each field alone is as it
should be, in the API server's words.
"""
_ALTERNATIVES: Final = re.compile(r"\^\(([A-Za-z0-9_:\[\]+*|-]+)\)\$")
"""A pattern that is nothing but a choice of words."""
_OPEN: Final = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"
_PLURALS: Final = {"text": "texts", "integer": "integers", "object": "objects", "number or text": "quantities"}


def page() -> str:
    """Return the page: for each object of a job's `spec` a table of its fields, and what the API server refuses."""
    schema = structural(JobSpec, RULES, defaults=True)
    return "\n".join([_HEAD, *_sections("spec", schema), *_rules_of_the_whole(), ""])


def _sections(path: str, schema: Schema) -> Iterator[str]:
    """Yield the object at `path`, then the objects in it, in the order of the models."""
    yield f"## `{path}`\n\n{_prose(schema)}\n"
    if schema.get(_OPEN):
        yield "Other fields of Kubernetes' own are passed on as they are.\n"
    yield "| field | type | default | allowed | meaning |\n| --- | --- | --- | --- | --- |"
    required = schema.get("required", ())
    below = path.partition(".")[2]
    for name, field in schema["properties"].items():
        cells = (_type(field), _default(field, name in required), _allowed(field), _prose(field))
        yield f"| `{below}{'.' if below else ''}{name}` |" + "".join(f" {cell} |" for cell in cells)
    yield ""
    if rules := schema.get("x-kubernetes-validations"):
        yield "\n".join(["Refused:\n", *map(_said, rules), ""])
    for name, field in schema["properties"].items():
        inner = field.get("items", field)
        if "properties" in inner:
            yield from _sections(f"{path}.{name}{'[]' if inner is not field else ''}", inner)


def _rules_of_the_whole() -> Iterator[str]:
    yield "## Names and changes\n\nRefused of a job as a whole:\n"
    yield from map(_said, RULES[KIND])


def _said(rule: Mapping[str, Any]) -> str:
    """Return what the API server says where a rule is broken, as an item of a list."""
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
    # What is left out of an object has defaults of its own, in its own table.
    return f"`{json.dumps(field['default'])}`" if field.get("default") not in (None, {}) else ""


def _allowed(field: Schema) -> str:
    """Return what a value must be besides of its type."""
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
    """Return a pattern as code, without what a table, Markdown or a search for links would take for its own."""
    if re.fullmatch(r"[\w:-]+", text):
        return f"`{text}`"
    return f"<code>{re.sub(r'[^A-Za-z0-9 .,:/?$+-]', lambda found: f'&#{ord(found[0])};', text)}</code>"


def _prose(field: Schema) -> str:
    return _cell(field.get("description", ""))


def _cell(text: str) -> str:
    """Return `text` as one line, without what a table or Markdown would take for its own."""
    line = " ".join(text.split()).replace("|", "&#124;")
    return "".join(
        part if index % 2 else html.escape(part, quote=False) for index, part in enumerate(re.split("(`[^`]*`)", line))
    )


def main(arguments: Sequence[str]) -> None:
    """Print the page, or write it to the path that is given."""
    print_or_write(page(), arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
