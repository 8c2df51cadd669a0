"""hack/image/load.py: the archive that nodes are sent names every layer and holds those that they lack."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

ZSTD = shutil.which("zstd")
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
        blob = load.described(path, "config.v1+json" if name.startswith("config") else "layer.v1.tar")
        blobs[digest(content)] = blob if name in sent else load.Blob(blob.descriptor, None)
    one = load.Image("localhost/one:dev", digest(contents["config-one"]), (digest(contents["shared"]),))
    layers = tuple(digest(contents[name]) for name in ("shared", "old", "new"))
    two = load.Image("localhost/two:dev", digest(contents["config-two"]), layers)

    archive_bytes = io.BytesIO()
    load.write_layout(archive_bytes, [one, two], blobs)

    with tarfile.open(fileobj=io.BytesIO(archive_bytes.getvalue())) as archive:
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


@pytest.mark.parametrize("compressor", [False, True] if ZSTD else [False])
def test_what_is_sent_of_a_saved_image(
    load: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressor: bool
) -> None:
    """Layers that nodes lack are sent, compressed if they can be; manifests describe what is sent."""
    programs = tmp_path / "bin"
    programs.mkdir()
    if compressor:
        (programs / "zstd").symlink_to(str(ZSTD))
    contents = {name: name.encode() * (load.CHUNK // 5) for name in ("there", "lacking")} | {"config": b"{}"}
    with tarfile.open(tmp_path / "saved.tar", "w") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"{name}/layer.tar")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    docker = programs / "docker"
    docker.write_text(f"#!/bin/sh\n/bin/cat {tmp_path}/saved.tar\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    digests = {name: digest(content) for name, content in contents.items()}
    image = load.Image("localhost/one:dev", digests["config"], (digests["there"], digests["lacking"]))

    blobs = load.save([image], {digests["there"]}, tmp_path)

    assert blobs.keys() == {digests["config"], digests["lacking"]}
    layer = blobs[digests["lacking"]]
    sent = layer.path.read_bytes()
    assert layer.descriptor["digest"] == digest(sent)
    assert layer.descriptor["size"] == len(sent)
    assert layer.descriptor["mediaType"].endswith("layer.v1.tar+zstd" if compressor else "layer.v1.tar")
    unpacked = (
        subprocess.run([str(ZSTD), "-dc"], input=sent, capture_output=True, check=True).stdout if compressor else sent
    )
    assert unpacked == contents["lacking"]
    assert blobs[digests["config"]].path.read_bytes() == contents["config"]


def test_layers_that_all_nodes_have_in_one_form_are_not_sent(load: ModuleType) -> None:
    packed, plain = ({"digest": f"sha256:{form}", "size": 1} for form in ("packed", "plain"))
    one = load.NodeContent({}, {"same": packed, "other-form": packed, "only-here": packed})
    two = load.NodeContent({}, {"same": packed, "other-form": plain})
    assert load.in_all([one, two]) == {"same": load.Blob(packed, None)}
