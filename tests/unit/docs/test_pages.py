"""Pages of the documentation: what they show can be typed, and is so."""

from __future__ import annotations

import ast
import builtins
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from bench import command as bench
from espalier_cli.main import cli
from espalier_core.validation.reading import load_jobs, parse_jobs
from espalier_generate.pages import BEGIN, END, renewed
from pages import commands

ROOT = Path(__file__).parents[3]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.M))
TARGETS |= {f"bench-{name}" for name in (*bench.cases(), *bench.ALIASES)}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


def included(page: Path) -> list[str]:
    """Return the programs that a page takes from the examples."""
    return [(ROOT / path).read_text() for path in re.findall(r'^--8<-- "(examples/.+\.py)"$', page.read_text(), re.M)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_copied_can_be_pasted(page: Path) -> None:
    assert not re.search(r"^(?:```console|\$ )", page.read_text(), re.M), f"{page.name}: use sh without a prompt"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_fits_its_column(page: Path) -> None:
    """At a width of 1,400 pixels, beside both menus."""
    found = [*re.findall(r"^```[^\n]*\n(.*?)^```", page.read_text(), re.M | re.S), *included(page)]
    long = [line for text in found for line in text.splitlines() if len(line) > 118]
    assert not long, f"{page.name}: break {long[0]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_targets_of_make_exist(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"`make ((?:[a-z][a-z0-9-]* ?)+)[ `]", text)
    named += [line.split()[1] for line in commands(text) if line.startswith("make ")]
    for target in (word for words in named for word in words.split()):
        assert target in TARGETS or target == "bench-", f"{page.name} names make {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist_with_their_options(page: Path) -> None:
    for line in commands(page.read_text()):
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
    assert commands((ROOT / "README.md").read_text())[:2] == ["make run", "make test"]


def test_jobs_on_the_front_page_validate() -> None:
    found = blocks(ROOT / "README.md", "yaml")
    assert found
    for text in found:
        parse_jobs(text, "README.md")


class Source:
    """What a module of ours has, read and not imported: its integrations import much."""

    def __init__(self, module: str) -> None:
        found = find_spec(module)
        assert found is not None, f"there is no module {module}"
        assert found.origin is not None, module
        self.names: dict[str, ast.AST] = {}
        for node in ast.parse(Path(found.origin).read_text()).body:
            self.names |= dict.fromkeys(_bound(node), node)

    def takes(self, name: str) -> set[str] | None:
        """Return the keywords that a function, or the constructor of a class, of this module takes; None if any."""
        node = self.names[name]
        if isinstance(node, ast.ImportFrom):
            own = next(one.name for one in node.names if (one.asname or one.name) == name)
            return Source(str(node.module)).takes(own)
        if isinstance(node, ast.ClassDef):
            made = (one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__")
            node = next(made, node)
        if not isinstance(node, ast.FunctionDef) or node.args.kwarg is not None:
            return None
        return {one.arg for one in (*node.args.args, *node.args.kwonlyargs)}

    def has(self, name: str) -> set[str]:
        """Return the attributes that a class of this module has, or sets in its methods."""
        node = self.names[name]
        assert isinstance(node, ast.ClassDef)
        inside = [one for one in ast.walk(node) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)]
        return {one.attr for one in inside} | {own for one in node.body for own in _bound(one)}


def _bound(node: ast.AST) -> set[str]:
    """Return the names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(one.asname or one.name).partition(".")[0] for one in node.names}
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


PROGRAMS = [
    pytest.param(text, id=f"{page}-{number}")
    for page in ("grow.md", "train.md", "loops.md")
    for number, text in enumerate([*blocks(ROOT / "docs" / page, "python"), *included(ROOT / "docs" / page)])
]
OURS = {
    "loop": Source("espalier_trainer.user_loop.loop").has("UserLoop"),
    "elastic": Source("espalier_trainer.integrations.lightning").has("ElasticWorker"),
}


@pytest.mark.parametrize("text", PROGRAMS)
def test_programs_need_no_line_that_is_not_shown(text: str) -> None:
    """Each defines or imports what it uses; what it takes from us is there, and has these keywords and attributes."""
    nodes = list(ast.walk(ast.parse(text)))
    bound = {name for node in nodes for name in _bound(node)} | {one.arg for one in nodes if isinstance(one, ast.arg)}
    used = {one.id for one in nodes if isinstance(one, ast.Name)}
    assert used <= bound | set(vars(builtins)) | {"__name__"}
    ours: dict[str, Source] = {}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = str(node.module) if isinstance(node, ast.ImportFrom) else node.names[0].name
            top = module.partition(".")[0]
            assert top == "spirals" or find_spec(top) is not None, f"{module} is not installed"
            if top.startswith("espalier") and isinstance(node, ast.ImportFrom):
                for one in node.names:
                    ours[one.name] = Source(module)
                    assert one.name in ours[one.name].names, f"{module} has no {one.name}"
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ours:
            taken = ours[node.func.id].takes(node.func.id)
            given = {str(one.arg) for one in node.keywords}
            assert taken is None or given <= taken, f"{node.func.id} takes no {given - taken}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.attr in OURS.get(node.value.id, {node.attr}), f"a {node.value.id} has no {node.attr}"


def test_the_examples_of_the_pages_are_the_files_that_they_name() -> None:
    shown = re.compile(r"`(examples/[\w/.]+)`:\n\n```[^\n]+\n(.*?)^```", re.M | re.S)
    found = [each for page in PAGES for each in shown.findall(page.read_text())]
    assert len(found) > 3
    for path, text in found:
        assert text in ((ROOT / path).read_text(), f'--8<-- "{path}"\n'), f"{path} is not as a page shows it"


def test_pages_run_examples_as_these_say() -> None:
    """tests/e2e/local/test_examples.py judges what an example's own command comes to."""
    typed = [each for page in PAGES for each in commands(page.read_text()) if each.startswith("espalier run examples/")]
    for command in typed:
        (said,) = re.findall(r"\bespalier run .*", (ROOT / shlex.split(command)[2]).read_text())
        assert " ".join(command.split()).startswith(said), command
    assert len(typed) > 5


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_validate(path: Path) -> None:
    assert load_jobs(path)


PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"
RENEW = "make docs"
GENERATORS = os.environ | {"PYTHONPATH": "hack"}


def test_the_reference_is_the_commands_own_help() -> None:
    # In a process of its own: click remembers in a command how it was first asked for help.
    command = [sys.executable, "-m", "espalier_generate.pages", "commands"]
    done = subprocess.run(command, env=GENERATORS, capture_output=True, text=True, check=True, timeout=250)
    made = done.stdout.removesuffix("\n")
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed(page, made), f"docs/reference/cli.md is stale; renew it: {RENEW}"


def test_every_command_is_in_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in {
        *cli.commands,
        "run",
        "agent serve",
        "agent collect",
        "list",
        "explain",
        "top",
        "watch",
        "snapshot",
        "plan",
    }:
        assert f"### `espalier {name}`" in page


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="has no"):
        renewed(f"# A page\n{BEGIN}\n", "")
    assert renewed(f"a\n{BEGIN}\nold\n{END}\nb", "new") == f"a\n{BEGIN}\nnew\n{END}\nb"


def test_its_python_block_plans_a_snapshot(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    (tmp_path / "cluster.json").write_text('{"version": 1, "kind": "Snapshot", "taken_at": 0}')
    ended = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    empty = "Plan(actions=(), refusals={}, placements={}, policy_memory={}, ignored=(), wake_at=None)"
    assert ended.stdout == f"{empty}\n", ended.stderr
