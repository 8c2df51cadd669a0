"""Pages generated from the code: the job field by field, all reasons, the Python client, all commands.

`python -m espalier_generate.pages job|reasons|client|commands` prints one page, or writes it to a path. In the page of
commands, it only replaces the part between the marks.
"""

from __future__ import annotations

import html
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from espalier_cli.cluster.remedies import remedy_for
from espalier_cli.main import cli
from espalier_core.base import field_docs
from espalier_core.client import JobClient, JobHandle, connect
from espalier_core.files.documents import print_or_write, write_text_atomically
from espalier_core.k8s.jobs import Event
from espalier_core.types.explanation import Explanation
from espalier_core.types.job import KIND, JobSpec
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_core.types.result import RunResult
from espalier_generate.crd import Schema, structural
from espalier_generate.crd_rules import RULES

_JOB_HEAD: Final = """\
# The job, field by field

<!-- Written by `make docs` from the docstrings of job.py, adaptation.py, training.py, program.py and pod_template.py in
core/src/espalier_core/types, and from hack/espalier_generate/crd_rules.py; change it there. -->

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


def job_page() -> str:
    """Return the page: a table of fields for each object of a job's `spec`, and the API server's rejections."""
    schema = structural(JobSpec, RULES, defaults=True)
    return "\n".join([_JOB_HEAD, *_job_sections("spec", schema), *_rules_of_the_whole(), ""])


def _job_sections(path: str, schema: Schema) -> Iterator[str]:
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
            yield from _job_sections(f"{path}.{name}{'[]' if inner is not field else ''}", inner)


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


_REASONS_HEAD: Final = """\
# Reasons, and what to do

<!-- Written by `make docs` from core/src/espalier_core/types/reasons.py and cli/src/espalier_cli/cluster/remedies.py;
change it there. -->

Espalier explains the state of a job with one of these reasons. You find them in the job's conditions and Events, in
the label `reason` of metrics, in the column REASON of `espalier list`, and in `espalier explain JOB`, which adds the
job's own figures and names. In the commands on this page, NAME is the job, NAMESPACE its namespace, LEADER the pod of
its leader, and QUEUE its queue.
"""


def reasons_page() -> str:
    """Return the page: each reason with its sentence, its remedy, and the commands to run."""
    return "\n".join([_REASONS_HEAD, *(line for reason in Reason for line in _reason_section(reason))])


def _reason_section(reason: Reason) -> Iterator[str]:
    remedy = remedy_for(reason, name="NAME", namespace="NAMESPACE", leader="LEADER", queue="QUEUE")
    sentence = SENTENCES[reason]
    yield f"## {reason}\n"
    yield f"{sentence[0].upper()}{sentence[1:]}.\n"
    yield f"**What would change it** {remedy.text}\n"
    if remedy.commands:
        yield "\n".join(["```sh", *remedy.commands, "```\n"])


_CLIENT_HEAD: Final = """\
# The Python client

<!-- Written by `make docs` from core/src/espalier_core/client/. Do not edit it here. -->

`espalier_core.client` submits jobs to a cluster or to this machine, and looks after them
([an example](../train.md#from-python)). The commands for jobs of a cluster are written on it. On this machine, each
job is a process `espalier run` (of the package `espalier-cli[train]`) with a folder of its own, and outlives the
Python that has started it. It has GPUs of its own, too: jobs that are to share GPUs are one `espalier run`.
"""


def client_page() -> str:
    """Return the reference of the Python client: its signatures and docstrings, and the fields of its results."""
    parts = [_CLIENT_HEAD, _entry("##", "connect", connect)]
    for owner in (JobClient, JobHandle, Explanation):
        parts.append(f"## {owner.__name__}\n\n{inspect.getdoc(owner)}\n")
        members = ((name, each) for name, each in vars(owner).items() if inspect.isfunction(each) and name[0] != "_")
        parts += [_entry("###", name, each) for name, each in members]
    shown = {"Explanation": field_docs(Explanation), "Event": field_docs(Event)}
    shown["RunResult"] = {name: field.description or "" for name, field in RunResult.model_fields.items()}
    for owner_name, fields in shown.items():
        parts.append(f"## Fields of {owner_name}\n\n| field | meaning |\n| --- | --- |")
        parts += [f"| `{name}` | {_cell(text)} |" for name, text in fields.items()]
        parts.append("")
    return "\n".join(parts)


def _entry(level: str, name: str, function: Callable[..., Any]) -> str:
    found = inspect.signature(function)
    named = (each for each in found.parameters.values() if each.name != "self")
    taken = [each.replace(annotation=inspect.Parameter.empty) for each in named]
    called = str(found.replace(parameters=taken, return_annotation=inspect.Signature.empty))
    return f"{level} `{name}{called}` → `{found.return_annotation}`\n\n{inspect.getdoc(function)}\n"


BEGIN, END = "<!-- BEGIN reference -->", "<!-- END reference -->"
_WIDTH = 100


def reference() -> str:
    """Return a heading and the help of each command, subcommands included, in Markdown."""
    return "\n".join(f"\n### `{one.command_path}`\n\n```text\n{one.command.get_help(one)}\n```" for one in commands())


def commands() -> Iterator[click.Context]:
    """Return a context of each command that is not hidden, subcommands included, groups excluded."""
    settings = {**cli.context_settings, "terminal_width": _WIDTH}
    return _commands(cli, click.Context(cli, info_name="espalier", **settings))


def renewed(page: str, text: str) -> str:
    """Return a page with `text` between its marks; raise `ValueError` if it has no marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def _commands(group: click.Group, context: click.Context) -> Iterator[click.Context]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        own = click.Context(command, parent=context, info_name=name, terminal_width=_WIDTH)
        if isinstance(command, click.Group):
            yield from _commands(command, own)
            continue
        yield own


def main(arguments: Sequence[str]) -> None:
    """Print the page named by the first argument, or write it to the path in the second one."""
    page, *path = arguments or ("",)
    match page:
        case "job":
            print_or_write(job_page(), path)
        case "reasons":
            print_or_write(reasons_page(), path)
        case "client":
            print_or_write(client_page(), path)
        case "commands" if path:
            place = Path(path[0])
            write_text_atomically(place, renewed(place.read_text(encoding="utf-8"), reference()))
        case "commands":
            print(reference())
        case _:
            sys.exit("usage: python -m espalier_generate.pages job|reasons|client|commands [PATH]")


if __name__ == "__main__":
    main(sys.argv[1:])
