"""hack/image/load.py: the archive that nodes are sent names every layer and holds those that they lack."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "hack" / "image" / "load.py"


@pytest.fixture(scope="module")
def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("espalier_load", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_an_archive_of_two_images_that_share_a_layer(load: ModuleType, tmp_path: Path) -> None:
    contents = {name: name.encode() * 9 for name in ("shared", "old", "new", "config-one", "config-two")}
    sent = ("new", "config-one", "config-two")
    blobs = {}
    for name, content in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        blobs[digest(content)] = load.Blob(len(content), path if name in sent else None)
    one = load.Image("localhost/one:dev", digest(contents["config-one"]), (digest(contents["shared"]),))
    layers = tuple(digest(contents[name]) for name in ("shared", "old", "new"))
    two = load.Image("localhost/two:dev", digest(contents["config-two"]), layers)

    load.write_layout(tmp_path / "layout.tar", [one, two], blobs)

    with tarfile.open(tmp_path / "layout.tar") as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    assert json.loads(files.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads(files.pop("index.json"))
    named = {entry["annotations"]["io.containerd.image.name"]: entry for entry in index["manifests"]}
    assert named.keys() == {"localhost/one:dev", "localhost/two:dev"}
    for name, content in files.items():
        assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}", "stored under its digest"
    manifest = json.loads(files[f"blobs/{named['localhost/two:dev']['digest'].replace(':', '/')}"])
    assert manifest["config"]["digest"] == two.config
    assert [layer["digest"] for layer in manifest["layers"]] == list(layers)
    assert [layer["size"] for layer in manifest["layers"]] == [len(contents[name]) for name in ("shared", "old", "new")]
    held = {f"sha256:{Path(name).name}" for name in files}
    assert held == {digest(contents[name]) for name in sent} | {entry["digest"] for entry in named.values()}
