"""A cluster without containers, with an operator on it: what is started, and in which order."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from bench.load import objects
from bench.load.api import Access, Api, connect, for_all
from bench.load.objects import Case, Layout
from bench.load.probe import Audit, Probe, audit_flags
from bench.load.processes import Process, also_on, binder_command, kwok_command, operator_command, running
from bench.load.world import World
from bench.printing import PROJECT

sys.path[:0] = [str(PROJECT / "tests" / "integration"), str(PROJECT / "tests" / "helpers")]

from apiserver import ApiServer, ServerError  # noqa: E402

from ports import free_port  # noqa: E402

__all__ = ["PATIENCE", "PROJECT", "REST_SECONDS", "Cluster", "Figures", "Say", "ServerError", "Tools", "cluster_of"]

PATIENCE: Final = 600.0
"""Seconds that any one thing may take."""
REST_SECONDS: Final = 60.0
"""How long the operator is given to come to rest between two stages."""

Figures = dict[str, float | None]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What is needed besides Python."""

    binaries: Path
    """Folder with etcd, kube-apiserver and kubectl."""
    kwok: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a stage works with."""

    api: Api
    world: World
    operator: Process
    probe: Probe
    audit: Audit
    group: asyncio.TaskGroup
    version: str
    """Of the API server."""
    start: Figures
    """What the operator's start took."""


@asynccontextmanager
async def cluster_of(case: Case, layout: Layout, tools: Tools, directory: Path, say: Say) -> AsyncIterator[Cluster]:
    """Give the cluster of a case, its operator at rest; all that is started ends with the context.

    `directory` (empty) takes data and logs. Nodes and other people's pods are there before the operator starts.
    """
    async with AsyncExitStack() as stack:
        with also_on(case.operator_cores):  # the control plane is no load: it has all cores, as in a cluster
            server = stack.enter_context(ApiServer(tools.binaries, directory, _server_flags(directory)))
        operator_config = _install(server, directory)
        others = [*layout.foreign, *layout.idle]
        say(f"the API server is up; making {case.nodes} nodes and {len(others)} pods of others")
        api = await stack.enter_async_context(connect(Access.of(server.kubeconfig)))
        await for_all(range(case.nodes), lambda number: api.request("POST", "/api/v1/nodes", objects.node(number)))
        kwok = stack.enter_context(running("kwok", kwok_command(tools.kwok, server.kubeconfig), directory))
        await for_all(
            others, lambda pod: api.request("POST", objects.path_of("pods", pod["metadata"]["namespace"]), pod)
        )
        binder = stack.enter_context(running("binder", binder_command(server.kubeconfig), directory))
        processes = [kwok, binder]

        def check() -> None:
            for process in processes:
                process.check()

        group = await stack.enter_async_context(asyncio.TaskGroup())
        world = World(api, check)
        for task in await world.start(group):
            stack.callback(task.cancel)
        await world.wait_for("pods of others run", lambda: all(pod.runs for pod in world.pods.values()), PATIENCE)
        await world.wait_for("the binder is ready", lambda: "ready" in binder.log.read_text(), PATIENCE)

        health, snapshot = free_port(), free_port()
        begun = time.monotonic()
        command = operator_command(operator_config, health, snapshot)
        operator = stack.enter_context(running("operator", command, directory, case.operator_cores))
        processes.append(operator)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        probe = Probe(session, operator, health, snapshot)
        await probe.wait_planned(PATIENCE)
        start: Figures = {"startSeconds": time.monotonic() - begun}
        await probe.rest(PATIENCE)
        start |= {"startCpuSeconds": operator.cpu_seconds(), "idleMiB": operator.memory_mib("VmRSS")}
        say(
            f"the operator planned after {start['startSeconds']:.1f} s; {start['startCpuSeconds']:.1f} CPU s until rest"
        )
        stack.callback(group.create_task(probe.run()).cancel)
        version = (await api.request("GET", "/version"))["gitVersion"]
        yield Cluster(
            api=api,
            world=world,
            operator=operator,
            probe=probe,
            audit=Audit(directory),
            group=group,
            version=version,
            start=start,
        )


def _server_flags(directory: Path) -> tuple[str, ...]:
    # That plugin taints new nodes until a controller, which is not here, finds them ready.
    return ("--disable-admission-plugins=TaintNodesByCondition", *audit_flags(directory))


def _install(server: ApiServer, directory: Path) -> Path:
    """Install our kinds and the operator's rights, and return the kubeconfig with its token."""
    server.install(PROJECT / "crds")
    for manifest in ("00-namespace.yaml", "10-rbac.yaml"):
        server.kubectl("apply", "--filename", str(PROJECT / "deploy" / manifest))
    for namespace in objects.NAMESPACES:
        server.namespace(namespace)
    kubeconfig = directory / "operator.kubeconfig"
    kubeconfig.write_text(server.kubeconfig_text(server.token("espalier-system", "espalier-operator")))
    return kubeconfig
