"""Binds pods to nodes and lets them run, in kube-scheduler's and kubelets' place: `python binder.py KUBECONFIG`.

A pod goes to the node that it requires by name, or else to the one on which it leaves the fewest GPUs free; nothing
else is looked at, for these nodes are alike. It runs as soon as it is bound. This process runs in parallel to the
benchmark, so that its work does not delay what the benchmark measures.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.load.api import Access, Api, ApiError, connect
from bench.load.objects import GPU, gpus_of, path_of, pod_begin
from espalier_operator.kube.objects.template import required_node

Raw = dict[str, Any]


class Binder:
    """Which node has how many GPUs free, and who waits for some."""

    def __init__(self, api: Api) -> None:
        """Nothing is known yet."""
        self._api = api
        self._free: dict[str, int] = {}
        self._by_free: defaultdict[int, dict[str, None]] = defaultdict(dict)
        self._held: dict[str, tuple[str, int]] = {}
        """By pod's UID: its node and GPUs."""
        self._waiting: dict[str, Raw] = {}
        """By UID, in the order in which they came: those that require no node."""
        self._pinned: defaultdict[str, dict[str, Raw]] = defaultdict(dict)
        """By the node that they require, and UID."""

    async def run(self) -> None:
        """Bind until cancelled; nodes are those that are there at the start."""
        nodes, _ = await self._api.list("/api/v1/nodes")
        for node in nodes:
            self._set(node["metadata"]["name"], int(node["status"]["allocatable"].get(GPU, 0)))
        async with asyncio.TaskGroup() as group:
            async for _, kind, pod in self._api.follow("/api/v1/pods"):
                if kind == "LISTED":
                    print("ready", flush=True)
                    continue
                node = self._note(kind, pod)
                for pinned in list(self._pinned[node].values()) if node else ():
                    if self._free.get(node, 0) >= gpus_of(pinned):
                        self._hold(pinned, node)
                        group.create_task(self._bind(pinned, node))
                while (waiting := next(iter(self._waiting.values()), None)) is not None:
                    if (name := self._choose(gpus_of(waiting))) is None:
                        break
                    self._hold(waiting, name)
                    group.create_task(self._bind(waiting, name))

    def _note(self, kind: str, pod: Raw) -> str:
        """Take in an event; return the node that pods may be bound to because of it, if it is one."""
        uid, name, required = pod["metadata"]["uid"], pod["spec"].get("nodeName"), required_node(pod["spec"]) or ""
        if kind == "DELETED" or pod["status"].get("phase") in ("Succeeded", "Failed"):
            self._forget(uid, required)
            if uid in self._held:
                held, gpus = self._held.pop(uid)
                self._set(held, self._free[held] + gpus)
                return held
        elif uid not in self._held:
            if name:
                self._hold(pod, name)
            elif required:
                self._pinned[required][uid] = pod
                return required
            else:
                self._waiting[uid] = pod
        return ""

    def _forget(self, uid: str, required: str) -> None:
        self._waiting.pop(uid, None)
        self._pinned[required].pop(uid, None)

    def _choose(self, gpus: int) -> str | None:
        best = min((free for free, names in self._by_free.items() if free >= gpus and names), default=None)
        return None if best is None else next(iter(self._by_free[best]))

    def _hold(self, pod: Raw, name: str) -> None:
        uid, gpus = pod["metadata"]["uid"], gpus_of(pod)
        self._forget(uid, required_node(pod["spec"]) or "")
        self._held[uid] = (name, gpus)
        self._set(name, self._free[name] - gpus)

    def _set(self, name: str, free: int) -> None:
        self._by_free[self._free.get(name, 0)].pop(name, None)
        self._free[name] = free
        self._by_free[free][name] = None

    async def _bind(self, pod: Raw, name: str) -> None:
        metadata = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        path, target = path_of("pods", pod["metadata"]["namespace"], metadata["name"]), {"kind": "Node", "name": name}
        try:
            await self._api.request("POST", f"{path}/binding", {"metadata": metadata, "target": target})
            await self._api.request("PATCH", f"{path}/status", pod_begin(pod))
        except ApiError as error:
            if error.code not in (404, 409):  # deleted meanwhile: the watch says so, too
                raise


async def main(access: Access) -> None:
    """Run the binder until the process is ended."""
    async with connect(access) as api:
        await Binder(api).run()


if __name__ == "__main__":
    asyncio.run(main(Access.of(Path(sys.argv[1]))))
