"""What the pages say exists: links, targets of make, commands with their options, jobs that validate."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from espalier_api.validation import load_jobs, parse_jobs
from espalier_cli.main import cli

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.M))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


def commands(page: Path) -> list[str]:
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    return [line.removeprefix("$ ").split("  #")[0].strip() for line in lines if line.startswith("$ ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_targets_of_make_exist(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"`make ((?:[a-z][a-z0-9-]* ?)+)[ `]", text) + re.findall(r"^\$ make ([a-z-]+)", text, re.M)
    for target in (word for words in named for word in words.split()):
        assert target in TARGETS or target == "bench-", f"{page.name} names make {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist_with_their_options(page: Path) -> None:
    for line in commands(page):
        words = shlex.split(line)
        if Path(words[0]).name != "espalier":
            continue
        command: click.Command = cli
        context = click.Context(cli)
        rest = words[1:]
        while isinstance(command, click.Group):
            found = command.get_command(context, rest[0])
            assert found is not None, f"{page.name}: {line}"
            command, rest = found, rest[1:]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word.split("=")[0] for word in rest if word.startswith("-")} <= known, f"{page.name}: {line}"


def test_the_front_page_gives_the_two_commands_first() -> None:
    assert commands(ROOT / "README.md")[:2] == ["make run", "make test"]


def test_jobs_on_the_front_page_validate() -> None:
    found = blocks(ROOT / "README.md", "yaml")
    assert found
    for text in found:
        parse_jobs(text, "README.md")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_validate(path: Path) -> None:
    assert load_jobs(path)
