"""A hook of mkdocs that puts the version of the project at the foot of each page."""

from __future__ import annotations

import tomllib
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

_PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def on_config(config: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Set the line at the foot of all pages."""
    version = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["version"]
    config["copyright"] = f"Espalier {version}, Apache-2.0"
    return config
