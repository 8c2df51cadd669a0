"""The generated CRD: fresh, whole, and read alike by every YAML reader."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel
from ruamel.yaml import YAML

from espalier_core.growth import operation_names
from espalier_core.types.job import AdaptiveTrainingJob, JobSpec
from espalier_core.types.queue import Queue, QueueSpec
from espalier_core.types.status import JobStatus
from espalier_generate.crd import (
    NAME,
    SchemaError,
    custom_resource_definition,
    definitions,
    queue_definition,
    structural,
)
from espalier_generate.crd_rules import RULES

PROJECT = Path(__file__).parents[3]
FILE = PROJECT / "crds" / f"{NAME}.yaml"

OPEN = {
    *("spec.training.model.options.*", "spec.training.dataset.options.*", "spec.training.schedule.options.*"),
    *("spec.template", "spec.template.metadata", "spec.template.spec", "spec.template.spec.containers[]"),
    *("spec.template.spec.containers[].resources", "spec.template.spec.containers[].volumeMounts[]"),
    *("spec.template.spec.containers[].env[].*", "spec.template.spec.containers[].securityContext.*"),
    "spec.template.spec.resourceClaims[]",
    *("spec.template.spec.volumes[].*", "spec.template.spec.tolerations[].*", "spec.template.spec.securityContext.*"),
}
"""Where anything may be written: options of functions, and what of a pod template is only passed on."""


def schema(definition: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of the one version, of jobs if nothing else is given."""
    (version,) = (definition or custom_resource_definition())["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def nodes(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every place of a schema."""
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    if "items" in node:
        yield from nodes(node["items"], f"{path}[]")
    if "additionalProperties" in node:
        yield from nodes(node["additionalProperties"], f"{path}.*")


def models_of(annotation: Any, place: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield every model of an annotation, and where it stands, by the annotations of fields alone."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield place, annotation
        for name, field in annotation.model_fields.items():
            yield from models_of(field.annotation, f"{place}.{field.alias or name}")
    ending = {tuple: "[]", dict: ".*"}.get(get_origin(annotation), "")
    for argument in get_args(annotation):
        yield from models_of(argument, f"{place}{ending}")


def fields_of(model: type[BaseModel], path: str) -> set[str]:
    """Return every field that the models know."""
    found = models_of(model, path)
    return {f"{place}.{field.alias or name}" for place, each in found for name, field in each.model_fields.items()}


def test_the_files_are_fresh() -> None:
    """After a change of the models: `make crd`."""
    found = {path.stem: path.read_text(encoding="utf-8") for path in FILE.parent.glob("*.yaml")}
    assert found == definitions(), "stale; run `make crd`"


def test_the_command_writes_the_file(tmp_path: Path) -> None:
    """`make crd` calls it; a folder that is missing is said."""
    command, environment = [sys.executable, "-m", "espalier_generate.crd"], os.environ | {"PYTHONPATH": "hack"}
    done = subprocess.run([*command, tmp_path], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, [f"{tmp_path / name}.yaml" for name in definitions()]), done
    assert (tmp_path / FILE.name).read_text(encoding="utf-8") == definitions()[NAME]
    failed = subprocess.run(
        [*command, tmp_path / "missing"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert failed.returncode == 2
    assert "usage" in failed.stderr


def test_readers_of_both_yaml_versions_read_the_same() -> None:
    """YAML 1.1, which kubectl reads, takes a bare Off for false."""
    text = definitions()[NAME]
    assert yaml.safe_load(text) == YAML(typ="safe", pure=True).load(text) == custom_resource_definition()


def test_schema_and_model_of_a_queue_have_the_same_fields() -> None:
    found = {path for path, _ in nodes(schema(queue_definition())["properties"]["spec"], "spec")} - {"spec"}
    assert {path for path in found if not path.endswith("[]")} == fields_of(QueueSpec, "spec")


@pytest.mark.parametrize(("part", "model"), [("spec", JobSpec), ("status", JobStatus)])
def test_schema_and_models_have_the_same_fields(part: str, model: type[BaseModel]) -> None:
    """Nothing is lost and nothing is made up."""
    in_schema = {path for path, _node in nodes(schema()["properties"][part], part)}
    known = {path for path in in_schema if not path.endswith(("[]", "*")) and path != part}
    assert known == fields_of(model, part)


def test_every_place_has_one_type_and_nothing_is_open_by_accident() -> None:
    """What makes a schema structural, and full."""
    opened = set()
    for path, node in nodes(schema(), ""):
        if node.get("x-kubernetes-preserve-unknown-fields"):
            opened.add(path.removeprefix("."))
        else:
            assert ("type" in node) != ("x-kubernetes-int-or-string" in node), path
        assert not {"$ref", "anyOf", "oneOf", "allOf", "title", "$defs"} & node.keys(), path
    assert opened == OPEN


def test_every_field_is_described() -> None:
    """What `kubectl explain` says."""
    dumb = [path for path, node in nodes(schema(), "") if not path.endswith(("[]", "*")) and "description" not in node]
    assert dumb == [".apiVersion", ".kind", ".metadata", ".metadata.name"]


def test_every_bound_and_default_is_the_models() -> None:
    """A sample of each kind, by hand."""
    known = dict(nodes(schema(), ""))
    budget = known[".spec.timeBudgetSeconds"]
    assert (budget["minimum"], budget["exclusiveMinimum"], budget["maximum"]) == (0, True, 31_536_000)
    assert "timeBudgetSeconds" in known[".spec"]["required"]
    assert known[".spec.training.seed"]["maximum"] == 2**32
    assert known[".spec.training.seed"]["exclusiveMaximum"] is True
    assert known[".spec.queue"]["maxLength"] == 52
    assert known[".spec.adaptation.actions"]["default"] == ["Deepen"]
    assert known[".spec.adaptation.actions[]"]["enum"] == list(operation_names())
    assert known[".spec.adaptation"]["default"] == {}
    assert known[".spec.training.model"]["default"] == {"name": "digits"}
    assert known[".status.adaptations"]["maxItems"] == 20
    assert known[".status.startTime"]["format"] == "date-time"
    assert not [path for path, node in known.items() if path.startswith(".status") and "default" in node]


def test_every_rule_has_a_place_and_says_what_to_do() -> None:
    """Rules of models that are gone, and mute ones, would go unseen."""
    known = {model.__name__ for kind in (AdaptiveTrainingJob, Queue) for _, model in models_of(kind, "")}
    assert set(RULES) <= known
    schemas = schema(), schema(queue_definition())
    written = [
        rule["rule"]
        for each in schemas
        for _path, node in nodes(each, "")
        for rule in node.get("x-kubernetes-validations", ())
    ]
    assert len(written) == sum(map(len, RULES.values()))
    for rules in RULES.values():
        for rule in rules:
            assert len(rule["message"].split()) > 4, rule
            assert not re.search(r"\n|[A-Z]\w+Error", rule["message"]), rule


def test_what_no_schema_can_say_is_refused_with_its_place() -> None:
    """A model with a field of two types stops the generator, not the API server."""

    class Either(BaseModel):
        value: int | str

    class Holder(BaseModel):
        either: Either

    with pytest.raises(SchemaError, match=r"Holder\.either\.value: is one of 2 types; a structural schema has one"):
        structural(Holder, {}, defaults=True)
