#!/usr/bin/env python3
"""A device plugin of a kubelet with fake `nvidia.com/gpu`, which can be told to misbehave.

    plugin.py serve         register with the kubelet and serve until SIGTERM; `hack/cluster` runs it on each node
    plugin.py tell WORD...  tell the plugin of this node, in turn:
        gpus N              it has N GPUs, gpu-0 and so on
        healthy             all of them are healthy
        unhealthy ID        this one is not: it is no longer allocatable
        fail MESSAGE        the kubelet's calls to allocate fail, so it rejects pods with GPUs
        work                they succeed
        restart SECONDS     the plugin is away for so long: no GPU of the node is allocatable

Its settings outlive it, in a file of the node. The interface is the kubelet's v1beta1
(k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1); its few messages are encoded here.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

RESOURCE = "nvidia.com/gpu"
SOCKETS = Path("/var/lib/kubelet/device-plugins")
SOCKET, KUBELET = SOCKETS / "espalier-fake-gpu.sock", SOCKETS / "kubelet.sock"
TOLD = Path("/var/lib/espalier/fake-gpus.json")
DEFAULT = {"gpus": int(os.environ.get("ESPALIER_GPUS", "4")), "unhealthy": [], "fails": "", "away_until": 0.0}
LOOK_SECONDS = 0.1


def told() -> dict[str, Any]:
    """Return the settings of the plugin."""
    try:
        return {**DEFAULT, **json.loads(TOLD.read_text())}
    except (OSError, ValueError):
        return DEFAULT


def tell(words: list[str]) -> None:
    """Store new settings of the plugin."""
    new = told()
    left = iter(words)
    for word in left:
        match word:
            case "gpus":
                new["gpus"] = int(next(left))
            case "healthy":
                new["unhealthy"] = []
            case "unhealthy":
                new["unhealthy"] = sorted({*new["unhealthy"], next(left)})
            case "fail":
                new["fails"] = next(left)
            case "work":
                new["fails"] = ""
            case "restart":
                new["away_until"] = time.time() + float(next(left))
            case _:
                sys.exit(f"error: unknown word {word!r}\nhint: plugin.py tell gpus N, unhealthy ID, fail MESSAGE, ...")
    TOLD.parent.mkdir(parents=True, exist_ok=True)
    scratch = TOLD.with_suffix(".new")
    scratch.write_text(json.dumps(new))
    scratch.rename(TOLD)


def field(number: int, value: bytes | str) -> bytes:
    """Return a field of a protobuf message: text, or another message."""
    body = value.encode() if isinstance(value, str) else value
    size, count = bytearray(), len(body)
    while count > 0x7F:
        size.append(count & 0x7F | 0x80)
        count >>= 7
    return bytes([number << 3 | 2, *size, count]) + body


def fields(message: bytes) -> Iterator[bytes]:
    """Yield the fields of a message that has only texts and messages."""
    at = 0
    while at < len(message):
        at, size, shift = at + 1, 0, 0
        while True:
            byte = message[at]
            size, shift, at = size | (byte & 0x7F) << shift, shift + 7, at + 1
            if byte < 0x80:
                break
        yield message[at : at + size]
        at += size


def devices() -> bytes:
    """Return a ListAndWatchResponse."""
    now = told()
    names = [f"gpu-{number}" for number in range(now["gpus"])]
    states = {name: "Unhealthy" if name in now["unhealthy"] else "Healthy" for name in names}
    return b"".join(field(1, field(1, name) + field(2, state)) for name, state in states.items())


def list_and_watch(_: bytes, context: Any) -> Iterator[bytes]:
    """Stream the devices whenever they change."""
    sent = None
    while context.is_active():
        if (now := devices()) != sent:
            sent = now
            yield now
        time.sleep(LOOK_SECONDS)


def allocate(request: bytes, context: Any) -> bytes:
    """Give each container an environment variable with its devices."""
    import grpc

    if fails := told()["fails"]:
        context.abort(grpc.StatusCode.INTERNAL, fails)
    answers = []
    for container in fields(request):
        names = ",".join(name.decode() for name in fields(container))
        answers.append(field(1, field(1, field(1, "NVIDIA_VISIBLE_DEVICES") + field(2, names))))
    return b"".join(answers)


def start() -> Any:
    """Serve, register with the kubelet, and return the server."""
    import grpc

    raw = {"request_deserializer": None, "response_serializer": None}
    methods = {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(lambda *_: b"", **raw),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(list_and_watch, **raw),
        "Allocate": grpc.unary_unary_rpc_method_handler(allocate, **raw),
    }
    SOCKET.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods),))
    server.add_insecure_port(f"unix:{SOCKET}")
    server.start()
    with grpc.insecure_channel(f"unix:{KUBELET}") as channel:
        request = field(1, "v1beta1") + field(2, SOCKET.name) + field(3, RESOURCE)
        channel.unary_unary("/v1beta1.Registration/Register")(request, timeout=10)
    print(f"registered {RESOURCE}: {told()}", flush=True)
    return server


def serve() -> None:
    """Serve until SIGTERM; register again after the kubelet has restarted, which removes all sockets."""
    import grpc

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = None
    while True:
        away = time.time() < told()["away_until"]
        if server is not None and (away or not SOCKET.exists()):
            server.stop(0).wait()
            SOCKET.unlink(missing_ok=True)
            server = None
        if server is None and not away and KUBELET.exists():
            try:
                server = start()
            except grpc.RpcError as error:
                print(f"not registered: {error}", flush=True)
                time.sleep(1)
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:
            serve()
        case ["tell", *words]:
            tell(words)
        case _:
            sys.exit(__doc__)
