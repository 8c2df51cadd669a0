"""`make setup TORCH=cpu`: nothing of CUDA is downloaded, and torch has the version of the lock file."""

from __future__ import annotations

import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

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
