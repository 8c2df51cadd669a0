#!/usr/bin/env python3
"""load IMAGE...: put images of the docker daemon into the worker nodes of the kind cluster that KUBECONFIG names.

`kind load` copies a whole image each time: two gigabytes with torch, of which a change of our code alters a few
megabytes. Nodes keep the layers they once got, so this sends the missing layers and a manifest that names the rest. A
node writes received layers to its disk before it unpacks them, so they are compressed if there is a `zstd`. Where the
daemon keeps its layers compressed (docker's containerd image store), their digests are not those of the configuration,
and the work is left to `kind load`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

CHUNK = 1 << 20
CONTEXT = "kind-"
KIND = "application/vnd.oci.image."


class Image(NamedTuple):
    """An image of the docker daemon: its name, and the digests of its configuration and layers."""

    name: str
    config: str
    layers: tuple[str, ...]


class Blob(NamedTuple):
    """A blob as in manifests (media type, digest, size); if nodes lack it, also the file with its bytes."""

    descriptor: dict[str, Any]
    path: Path | None


class NodeContent(NamedTuple):
    """The content of a node: its images' configurations by name, and layers by the digest of their unpacked content."""

    images: dict[str, str]
    layers: dict[str, dict[str, Any]]


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def containerd(node: str, *command: str) -> str:
    return output("docker", "exec", node, "ctr", "--namespace", "k8s.io", *command)


def workers(cluster: str) -> list[str]:
    """Return the containers of the cluster's workers, or of all its nodes if it has no workers."""
    names = ["docker", "ps", "--format", "{{.Names}}", "--filter", f"label=io.x-k8s.kind.cluster={cluster}"]
    return output(*names, "--filter", "label=io.x-k8s.kind.role=worker").split() or output(*names).split()


def inspect(name: str) -> Image:
    found = json.loads(output("docker", "image", "inspect", name))[0]
    return Image(name, found["Id"], tuple(found["RootFS"]["Layers"]))


def look(node: str) -> NodeContent:
    """Read the manifests of the node's images. Lists of manifests, and incomplete images, are left out."""
    found = NodeContent({}, {})
    kept = set(containerd(node, "content", "ls", "--quiet").split())
    for row in containerd(node, "images", "ls").splitlines()[1:]:
        name, _, digest = row.split()[:3]
        try:
            manifest = json.loads(containerd(node, "content", "get", digest))
            config = manifest["config"]["digest"]
            layers = json.loads(containerd(node, "content", "get", config))["rootfs"]["diff_ids"]
        except (KeyError, subprocess.CalledProcessError):
            continue
        found.images[name] = config
        # A node may have dropped the layers that it has unpacked.
        descriptors = zip(layers, manifest["layers"], strict=True)
        found.layers.update((layer, one) for layer, one in descriptors if one["digest"] in kept)
    return found


def in_all(nodes: Sequence[NodeContent]) -> dict[str, Blob]:
    """Return the layers that every node has in the same form."""
    first, *others = nodes
    return {
        layer: Blob(descriptor, None)
        for layer, descriptor in first.layers.items()
        if all(node.layers.get(layer, {}).get("digest") == descriptor["digest"] for node in others)
    }


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def described(path: Path, kind: str) -> Blob:
    """Return the file as a blob of this kind."""
    return Blob({"mediaType": KIND + kind, "digest": sha256(path), "size": path.stat().st_size}, path)


@contextlib.contextmanager
def compressed(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield a stream that is compressed into the file."""
    command = ["zstd", "-1", "--threads=0", "--quiet"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file) as process:
        yield cast(IO[bytes], process.stdin)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def copy(content: IO[bytes], file: IO[bytes]) -> str:
    """Copy the content. Return its digest."""
    hashed = hashlib.sha256()
    while chunk := content.read(CHUNK):
        hashed.update(chunk)
        file.write(chunk)
    return f"sha256:{hashed.hexdigest()}"


def save(images: Iterable[Image], there: Container[str], folder: Path) -> dict[str, Blob]:
    """Read `docker save`. Return the configurations, and the layers that are not `there`, as files in `folder`."""
    images = list(images)
    configs = {image.config for image in images}
    lacking = {layer for image in images for layer in image.layers if layer not in there}
    blobs: dict[str, Blob] = {}
    compressor = shutil.which("zstd") is not None
    command = ["docker", "save", *(image.name for image in images)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as process,
        tarfile.open(fileobj=process.stdout, mode="r|", bufsize=CHUNK) as archive,
    ):
        for number, member in enumerate(archive):
            content = archive.extractfile(member) if member.isfile() else None
            if content is None:
                continue
            path = folder / str(number)
            zstd = compressor and member.size > CHUNK  # configurations are smaller, and sent as they are
            with path.open("wb") as file, compressed(file) if zstd else contextlib.nullcontext(file) as target:
                digest = copy(content, target)
            if digest in configs:
                blobs[digest] = described(path, "config.v1+json")
            elif digest in lacking and digest not in blobs:
                blobs[digest] = described(path, "layer.v1.tar+zstd" if zstd else "layer.v1.tar")
            else:
                path.unlink()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return blobs


def write_layout(file: IO[bytes], images: Iterable[Image], blobs: Mapping[str, Blob]) -> None:
    """Write an OCI layout of the images that contains the blobs missing on nodes, and names the others."""
    entries = []
    with tarfile.open(fileobj=file, mode="w|", bufsize=CHUNK) as archive:

        def add(name: str, content: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))

        add("oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        for descriptor, path in blobs.values():
            if path is not None:
                archive.add(path, f"blobs/{descriptor['digest'].replace(':', '/')}")
        for image in images:
            manifest = {
                "schemaVersion": 2,
                "mediaType": f"{KIND}manifest.v1+json",
                "config": blobs[image.config].descriptor,
                "layers": [blobs[layer].descriptor for layer in image.layers],
            }
            content = json.dumps(manifest).encode()
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            add(f"blobs/{digest.replace(':', '/')}", content)
            entry = {"mediaType": manifest["mediaType"], "digest": digest, "size": len(content)}
            entries.append({**entry, "annotations": {"io.containerd.image.name": image.name}})
        add("index.json", json.dumps({"schemaVersion": 2, "manifests": entries}).encode())


def send(node: str, images: Sequence[Image], blobs: Mapping[str, Blob]) -> None:
    """Import images into a node."""
    command = ["docker", "exec", "-i", node, "ctr", "--namespace", "k8s.io", "images", "import", "-"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    with contextlib.suppress(BrokenPipeError), cast(IO[bytes], process.stdin) as pipe:
        write_layout(pipe, images, blobs)
    if process.wait():  # it has printed why
        raise subprocess.CalledProcessError(process.returncode, command)


def load(images: Sequence[Image], nodes: Mapping[str, NodeContent], cluster: str) -> str:
    """Put the images into the nodes. Return the amount sent, for a person."""
    there = in_all(list(nodes.values()))
    with tempfile.TemporaryDirectory() as name:
        saved = save(images, there, Path(name))
        blobs = {**there, **saved}
        if all(digest in blobs for image in images for digest in (image.config, *image.layers)):
            with ThreadPoolExecutor(len(nodes)) as pool:
                list(pool.map(partial(send, images=images, blobs=blobs), nodes))
            return f"{sum(blob.descriptor['size'] for blob in saved.values()) / 1e6:.1f} MB"
    names = [image.name for image in images]
    output("kind", "load", "docker-image", *names, "--name", cluster, "--nodes", ",".join(nodes))
    return "all layers"


def main(names: Sequence[str]) -> int:
    if not names or names[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if names else 2
    context = output("kubectl", "config", "current-context").strip()
    cluster = context.removeprefix(CONTEXT)
    names_of_nodes = workers(cluster) if cluster != context else []
    if not names_of_nodes:
        raise SystemExit(
            f"error: KUBECONFIG's context is {context!r}; {CONTEXT}NAME of a running kind cluster is needed"
        )
    start = time.monotonic()
    images = [inspect(name) for name in names]
    with ThreadPoolExecutor(len(names_of_nodes)) as pool:
        nodes = dict(zip(names_of_nodes, pool.map(look, names_of_nodes), strict=True))
    new = [image for image in images if any(node.images.get(image.name) != image.config for node in nodes.values())]
    sent = load(new, nodes, cluster) if new else "nothing new"
    print(f"loaded {' '.join(names)}: {sent}, {time.monotonic() - start:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: {' '.join(error.cmd)} failed\n{(error.stderr or '').strip()}".strip())
    except (OSError, tarfile.TarError) as error:
        sys.exit(f"error: {error}")
