#!/usr/bin/env python3
"""load IMAGE...: put images of the docker daemon into the worker nodes of the kind cluster that KUBECONFIG names.

`kind load` copies all of an image each time: most of a minute for two gigabytes with torch, of which a change of our
code alters one megabyte. Nodes keep the layers they once got, so this sends what they lack and a manifest that names
the rest. Where the daemon keeps its layers compressed (docker's containerd image store), their digests are not those
of the configuration, and the work is left to `kind load`.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

CHUNK = 1 << 20
CONTEXT = "kind-"


class Image(NamedTuple):
    """An image of the docker daemon: its name, and the digests of its configuration and layers."""

    name: str
    config: str
    layers: tuple[str, ...]

    @property
    def digests(self) -> set[str]:
        return {self.config, *self.layers}


class Blob(NamedTuple):
    """A blob's size and, where nodes lack it, the file with its bytes."""

    size: int
    path: Path | None


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def containerd(node: str, *command: str) -> str:
    return output("docker", "exec", node, "ctr", "--namespace", "k8s.io", *command)


def workers(cluster: str) -> list[str]:
    """Return the containers that are the cluster's workers, or all its nodes where it has none."""
    names = ["docker", "ps", "--format", "{{.Names}}", "--filter", f"label=io.x-k8s.kind.cluster={cluster}"]
    return output(*names, "--filter", "label=io.x-k8s.kind.role=worker").split() or output(*names).split()


def inspect(name: str) -> Image:
    found = json.loads(output("docker", "image", "inspect", name))[0]
    return Image(name, found["Id"], tuple(found["RootFS"]["Layers"]))


def has(node: str, image: Image) -> bool:
    """Whether the node's image of this name is this one."""
    rows = containerd(node, "images", "ls", f"name=={image.name}").splitlines()[1:]
    if not rows:
        return False
    manifest = json.loads(containerd(node, "content", "get", rows[0].split()[2]))
    return bool(manifest.get("config", {}).get("digest") == image.config)


def save(images: Iterable[Image], lacking: set[str], folder: Path) -> dict[str, Blob]:
    """Read all blobs of `docker save` by digest; the bytes of those that are lacking go into `folder`."""
    blobs: dict[str, Blob] = {}
    command = ["docker", "save", *(image.name for image in images)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as process,
        tarfile.open(fileobj=process.stdout, mode="r|", bufsize=CHUNK) as archive,
    ):
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is None:
                continue
            hashed = hashlib.sha256()
            path = folder / str(len(blobs))
            with path.open("wb") as file:
                while chunk := content.read(CHUNK):
                    hashed.update(chunk)
                    file.write(chunk)
            digest = f"sha256:{hashed.hexdigest()}"
            if digest not in lacking:
                path.unlink()
            blobs[digest] = Blob(member.size, path if digest in lacking else None)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return blobs


def write_layout(file: Path, images: Iterable[Image], blobs: dict[str, Blob]) -> None:
    """Write an OCI layout of the images that holds the blobs which nodes lack, and names the others."""
    entries = []

    def descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest, "size": size}

    with tarfile.open(file, mode="w") as archive:

        def add(name: str, content: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))

        add("oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        for digest in sorted(set().union(*(image.digests for image in images))):
            if (path := blobs[digest].path) is not None:
                archive.add(path, f"blobs/{digest.replace(':', '/')}")
        for image in images:
            manifest = {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": descriptor("config.v1+json", image.config, blobs[image.config].size),
                "layers": [descriptor("layer.v1.tar", layer, blobs[layer].size) for layer in image.layers],
            }
            content = json.dumps(manifest).encode()
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            add(f"blobs/{digest.replace(':', '/')}", content)
            entry = descriptor("manifest.v1+json", digest, len(content))
            entries.append({**entry, "annotations": {"io.containerd.image.name": image.name}})
        add("index.json", json.dumps({"schemaVersion": 2, "manifests": entries}).encode())


def send(node: str, layout: Path) -> None:
    """Import an OCI layout into a node."""
    command = ["docker", "exec", "-i", node, "ctr", "--namespace", "k8s.io", "images", "import", "-"]
    with layout.open("rb") as content:
        subprocess.run(command, stdin=content, stdout=subprocess.DEVNULL, check=True)


def load(images: Sequence[Image], nodes: Sequence[str], cluster: str) -> str:
    """Put the images into the nodes. Returns what was sent, for a person."""
    common = set.intersection(*(set(containerd(node, "content", "ls", "--quiet").split()) for node in nodes))
    needed = set().union(*(image.digests for image in images))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Configurations always: they are small, and a node may hold one without the image that it belonged to.
        blobs = save(images, (needed - common) | {image.config for image in images}, folder)
        if needed <= set(blobs):
            file = folder / "layout.tar"
            write_layout(file, images, blobs)
            with ThreadPoolExecutor(len(nodes)) as pool:
                list(pool.map(lambda node: send(node, file), nodes))
            return f"{file.stat().st_size / 1e6:.1f} MB"
    names = [image.name for image in images]
    output("kind", "load", "docker-image", *names, "--name", cluster, "--nodes", ",".join(nodes))
    return "all layers"


def main(names: Sequence[str]) -> int:
    if not names or names[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if names else 2
    context = output("kubectl", "config", "current-context").strip()
    cluster = context.removeprefix(CONTEXT)
    nodes = workers(cluster) if cluster != context else []
    if not nodes:
        raise SystemExit(
            f"error: KUBECONFIG's context is {context!r}; {CONTEXT}NAME of a running kind cluster is needed"
        )
    start = time.monotonic()
    images = [inspect(name) for name in names]
    new = [image for image in images if not all(has(node, image) for node in nodes)]
    sent = load(new, nodes, cluster) if new else "nothing new"
    print(f"loaded {' '.join(names)}: {sent}, {time.monotonic() - start:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: {' '.join(error.cmd)} failed\n{(error.stderr or '').strip()}".strip())
    except (FileNotFoundError, tarfile.TarError) as error:
        sys.exit(f"error: {error}")
