"""Pods of ours that have ended or are gone, which the watch does not tell: they are read again."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any, cast

from kubernetes.aio.client.configuration import Configuration

from espalier_core.k8s import resources
from espalier_core.k8s.resources import Raw, Resource
from espalier_operator.clock import WallClock
from espalier_operator.kube.client import KubeClient
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.watch.informer import Informer
from espalier_operator.kube.watch.store import Store
from operator_world.kube_objects import kube_job, raw_worker

SETTINGS = KubeSettings()


class Answers:
    """An API server that says of each pod that it is gone, once it is let."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Raw | None:
        self.asked.append(name)
        await self.gates[name].wait()
        return None


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_an_answer_that_does_not_come_delays_no_other() -> None:
    async def run() -> None:
        doubt, answers = asyncio.Event(), Answers()
        store = Store(SETTINGS, doubted=doubt.set)
        client = cast(KubeClient, answers)
        informer = Informer(client, Configuration(), store, SETTINGS, WallClock(), lambda: None, doubt)
        looking = asyncio.create_task(informer._look_at_doubtful())
        pods: list[dict[str, Any]] = []
        for number in range(3):
            pod = raw_worker(kube_job(), index=number)
            pods.append({**pod, "metadata": {**pod["metadata"], "resourceVersion": str(number + 1)}})
            store.take(resources.PODS, "ADDED", pods[-1])
        names = [pod["metadata"]["name"] for pod in pods]
        for pod in pods[:2]:
            store.take(resources.PODS, "DELETED", pod)
            await settle()
        assert answers.asked == names[:2]
        answers.gates[names[1]].set()
        await settle()
        assert {*store.doubtful} == {f"ns/{names[0]}"}
        store.take(resources.PODS, "DELETED", pods[2])
        answers.gates[names[0]].set()
        answers.gates[names[2]].set()
        await settle()
        assert (answers.asked, store.doubtful) == (names, {}), "each is asked about once"
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

    asyncio.run(run())
