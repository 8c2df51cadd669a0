"""Whether jobs whose workers are refused give their GPUs back. Clause 8."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

from espalier_core.types.environment import Role
from espalier_core.types.reasons import Reason
from espalier_operator.kube.objects import names
from espalier_operator.model import Rules
from operator_world.history.demands import demand
from operator_world.history.seen import Seen
from operator_world.history.stopwatch import Stopwatch
from operator_world.history.world import SharedCluster
from operator_world.kube_api import node_of
from operator_world.kube_objects import Raw

SLACK: Final = 15.0
"""Seconds until an operator has looked again: a step of a history, and the moment at which it is late."""


class Refused:
    """The refused workers of one world."""

    def __init__(self, world: SharedCluster, rules: Rules) -> None:
        """Nobody is refused yet."""
        self._world, self._seconds = world, rules.refusal_seconds + SLACK
        self._held, self._since = Stopwatch(world), world.now

    def begin_again(self) -> None:
        """Forget what was denied, and for how long: another operator does not know until it tries itself."""
        self._held, self._since = Stopwatch(self._world), self._world.now

    def judge(self, jobs: Iterable[Seen], checked: Counter[str]) -> None:
        """No job without a leader long keeps GPUs for workers that are refused; a denial ends none for good."""
        for job in jobs:
            for condition in job.status.conditions:
                final = condition.reason is Reason.INVALID_SPEC and "denied the request" in condition.message
                demand(not final, 8, f"{job.key} ends by a denial that may pass: {condition.message}")
            kept = job.status.scheduling
            if not job.holds or kept.stopping is not None or job.key not in self._world.jobs:
                continue
            leads, *others = [
                f"{job.namespace}/{names.pod_name(job.raw['metadata']['name'], Role.BASE, index, attempt)}"
                for index, attempt in enumerate(kept.attempts[: job.base])
            ]
            runs = self._world.pods.get(leads, {}).get("status", {}).get("phase") == "Running"
            refused = [each for each in map(self._refusal, (leads, *others)) if each]
            if (runs and kept.trained) or not refused:
                continue
            checked["is refused"] += 1
            # What was refused may be taken once one of these has changed.
            asked = job.raw["metadata"]["generation"], self._defaults_version(job.namespace)
            seconds = self._held.seconds(f"{job.key} {asked} {kept.attempts} {refused}")
            demand(
                seconds < self._seconds, 8, f"{job.key} has held GPUs for refused workers for {seconds} s: {refused}"
            )
        self._held.turn()

    def _defaults_version(self, namespace: str) -> str | None:
        defaults = self._world.limit_ranges.get(f"{namespace}/defaults")
        return None if defaults is None else defaults["metadata"]["resourceVersion"]

    def _refusal(self, key: str) -> str:
        if self._world.denied.get(key, -math.inf) > self._since:
            return f"{key} is denied"
        return f"{key} has no image" if self._cannot_pull(self._world.pods.get(key, {})) else ""

    def _cannot_pull(self, pod: Raw) -> bool:
        """Return whether a kubelet says so: of a node that is not heard of, nobody knows."""
        containers = pod.get("status", {}).get("containerStatuses", ())
        waits = any("waiting" in each["state"] for each in containers)
        return waits and self._world.is_ready(node_of(pod) or "")
