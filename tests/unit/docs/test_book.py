"""The book: it builds strictly, loads nothing from elsewhere, and what is generated or copied in it is not stale."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from espalier_agent.data import carried_tables
from espalier_agent.evaluation.evaluate import evaluate
from espalier_agent.policies.policy import default_policy
from espalier_agent.tables.tree import Reward
from espalier_cli.cluster.remedies import REMEDIES
from espalier_core.types.job import JobSpec
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_core.validation.reading import parse_jobs
from espalier_generate.pages import client_page, job_page, reasons_page
from espalier_lab.growth.environment import OutcomeEnvironment
from pages import commands

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
LOADING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Loaded(HTMLParser):
    """What a browser fetches with a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in LOADING and given.get("rel") != "canonical":
            self.addresses.append(given.get(LOADING[tag]) or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("mkdocs") is None:
        assert not os.environ.get("CI"), "mkdocs is missing; uv sync installs it with the group docs"
        pytest.skip("mkdocs is not installed: uv sync installs it with the group docs")
    folder = tmp_path_factory.mktemp("book") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert built.returncode == 0, built.stderr
    return folder


def test_the_book_builds_strictly_with_all_its_pages(site: Path) -> None:
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    assert pages
    assert pages <= {path.relative_to(site) for path in site.rglob("*.html")}


def test_a_page_has_neighbours_and_says_its_version_and_where_its_source_is(site: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    page = (site / "train.html").read_text(encoding="utf-8")
    assert "/blob/main/docs/train.md" in page
    assert f"Espalier {version}," in page
    assert page.count('class="md-footer__link md-footer__link--') == 2


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        for address in Loaded(page.read_text(encoding="utf-8")).addresses:
            assert not re.match(r"(https?:)?//", address), f"{page.name} loads {address}"


def test_the_changes_are_those_of_the_project(site: Path) -> None:
    shown = re.sub(r"<[^>]*>", "", (site / "changes.html").read_text(encoding="utf-8"))
    changes = re.findall(r"^- (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    for change in (changes[0], changes[-1]):
        assert re.sub(r"\W+", " ", change) in re.sub(r"\W+", " ", shown)


def test_the_job_page_is_what_the_models_say() -> None:
    assert (REFERENCE / "job.md").read_text(encoding="utf-8") == job_page(), "it is stale: make docs"


def test_every_field_of_a_job_is_on_its_page() -> None:
    page = (REFERENCE / "job.md").read_text(encoding="utf-8")
    paths = list(fields_of(JobSpec))
    assert len(paths) > 50
    for path in paths:
        assert f"| `{path}` |" in page


def fields_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for field in model.model_fields.values():
        path = f"{prefix}{field.alias}"
        yield path
        for inner in models_in(field.annotation):
            listed = "tuple" in str(field.annotation)
            yield from fields_of(inner, f"{path}{'[]' if listed else ''}.")


def models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


def test_the_page_of_the_client_is_what_the_code_says() -> None:
    page = (ROOT / "docs" / "reference" / "client.md").read_text(encoding="utf-8")
    assert page == client_page(), "it is stale: make docs"


def test_the_reasons_page_is_what_the_code_says() -> None:
    page = (REFERENCE / "reasons.md").read_text(encoding="utf-8")
    assert page == reasons_page(), "it is stale: make docs"


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_its_sentence_and_remedy(reason: Reason) -> None:
    section = (
        (REFERENCE / "reasons.md").read_text(encoding="utf-8").partition(f"\n## {reason}\n")[2].partition("\n## ")[0]
    )
    assert SENTENCES[reason][1:] in section
    assert REMEDIES[reason].text.replace("{queue}", "QUEUE") in section
    assert len(commands(section)) == len(REMEDIES[reason].commands)


def yaml_blocks() -> Iterator[tuple[str, str]]:
    for page in sorted(DOCS.rglob("*.md")):
        for text in re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            yield page.name, text


def test_jobs_in_the_book_validate() -> None:
    found = [(name, text) for name, text in yaml_blocks() if "kind: AdaptiveTrainingJob" in text]
    assert len(found) >= 3
    for name, text in found:
        assert parse_jobs(text, name)


def test_the_study_says_what_the_shipped_policy_is_worth() -> None:
    page = (DOCS / "reports" / "study.md").read_text(encoding="utf-8")
    places = evaluate(
        default_policy(), [table for name in ("lamelas", "digits", "cifar8") for table in carried_tables(name)]
    ).tables
    assert len(places) == 14
    for place in places:
        none, best = place.none.accuracy, place.best.accuracy
        figures = (place.accuracy, place.regret, none, place.random_mean_accuracy, best)
        cells = " | ".join(f"{figure:.4f}" for figure in figures)
        assert f"| {place.table} | {place.rank} of {place.sequences} | {cells} |" in page


def test_the_study_says_what_the_front_page_says() -> None:
    study = (DOCS / "reports" / "study.md").read_text(encoding="utf-8")
    front = (ROOT / "README.md").read_text(encoding="utf-8")
    figures = re.findall(r"0\.\d{3} ± 0\.\d{3}", front)
    assert len(figures) == 3
    growing = study.partition("## Does growing pay?")[2].partition("\n## ")[0]
    for each in figures:
        assert each in growing


def test_the_page_on_the_environment_names_what_there_is() -> None:
    page = (DOCS / "research.md").read_text(encoding="utf-8").partition("\n## Teach the agent\n")[0]
    first_cells = re.findall(r'^\| `"?([a-z_-]+)"?` \|', page, re.M)
    of_all = {
        "illegal",
        "render_mode",
    }  # docs/reference/environments.md, which is generated, has them, and observations
    arguments = [name for name in signature(OutcomeEnvironment).parameters if name not in of_all]
    assert sorted(first_cells) == sorted([*arguments, *Reward])
