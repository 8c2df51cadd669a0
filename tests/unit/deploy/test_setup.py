"""How the project is set up, and how large it is."""

from __future__ import annotations

import runpy
import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[3]
LOCKED = {each["name"]: each for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}


def typed(*variables: str) -> list[list[str]]:
    """Return what `make setup` would run."""
    command = ["make", "--no-print-directory", "--dry-run", "--what-if=uv.lock", "setup", *variables]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return [line.split() for line in made.stdout.splitlines()]


def requirements(name: str, found: set[str]) -> set[str]:
    """Return the names of a package and of all that it requires."""
    if name not in found:
        found.add(name)
        for wanted in LOCKED[name].get("dependencies", ()):
            requirements(wanted["name"], found)
    return found


def test_torch_for_cpus_is_that_of_the_lock_file_and_brings_nothing_of_cuda() -> None:
    sync, torch, *_ = typed("TORCH=cpu")
    without = {name for option, name in pairwise(sync) if option == "--no-install-package"}
    cuda = {name for name in requirements("torch", set()) if name.startswith(("cuda", "nvidia", "triton"))}
    assert len(cuda) > 3
    assert without >= cuda | {"torch", "torchvision"}
    assert torch[torch.index("--torch-backend") + 1] == "cpu"
    assert torch[-2:] == [f"{name}=={LOCKED[name]['version']}" for name in ("torch", "torchvision")]


@pytest.mark.parametrize("variables", [(), ("TORCH=",)])
def test_without_it_everything_is_locked(variables: tuple[str, ...]) -> None:
    if not variables and (ROOT / ".venv/.torch").is_file() and (ROOT / ".venv/.torch").read_text().strip():
        pytest.skip("this clone has chosen TORCH=cpu")
    assert not any("--no-install-package" in line or "pip" in line for line in typed(*variables))


SCRIPT = runpy.run_path(str(Path(__file__).resolve().parents[3] / "hack" / "sizes"))
NUMBERS = st.dictionaries(st.sampled_from(["product-lines", "product-modules", "manual-words"]), st.integers(0, 10**6))


@pytest.mark.parametrize(("size", "errors", "hints"), [(1001, 1, 0), (1000, 0, 0), (990, 0, 0), (989, 0, 1), (0, 0, 1)])
def test_a_size_may_not_exceed_its_number(size: int, errors: int, hints: int) -> None:
    found: Any = SCRIPT["judged"]({"manual-words": size}, {"manual-words": 1000})
    assert tuple(len(each) for each in found) == (errors, hints)


def test_an_error_names_the_size_the_number_and_the_remedy() -> None:
    assert SCRIPT["judged"]({"a": 12, "b": 1}, {"a": 10, "c": 1})[0] == [
        "b is missing in hack/sizes or in sizes.toml",
        "c is missing in hack/sizes or in sizes.toml",
        "a: 12 is more than 10; lower it, or raise the number in hack/sizes.toml with a comment that says why",
    ]


@given(NUMBERS, NUMBERS)
def test_numbers_are_only_lowered(numbers: dict[str, int], sizes: dict[str, int]) -> None:
    text = "# Limits.\n" + "".join(f"{name} = {number} # because\n" for name, number in numbers.items())
    lower = SCRIPT["lowered"](text, sizes)
    assert tomllib.loads(lower) == {name: min(number, sizes.get(name, number)) for name, number in numbers.items()}
    assert [line.partition("#")[2] for line in lower.splitlines()] == [
        line.partition("#")[2] for line in text.splitlines()
    ]


def test_it_counts_tracked_files_by_part(tmp_path: Path) -> None:
    files = {
        "README.md": "two words",
        "docs/page.md": "three more words",
        "docs/reports/study.md": "not counted",
        "operator/a.py": "class One: ...\nclass Two: ...\n",
        "operator/b.py": "class One: ...\n",
        "lab/a.py": "class Two: ...\n",
        "benchmarks/a.py": "pass\n" * 2,
        "tests/a.py": "pass\n" * 3,
        "examples/a.py": "pass\n" * 4,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "operator" / "untracked.py").write_text("pass\n")
    assert SCRIPT["measured"](tmp_path) == {
        "product-lines": 3,
        "lab-lines": 1,
        "benchmarks-lines": 2,
        "tests-lines": 3,
        "product-modules": 2,
        "product-class-names-of-several-classes": 1,
        "readme-words": 2,
        "manual-words": 3,
    }
