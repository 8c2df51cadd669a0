"""Admission webhooks that change pods as they are made: labels, containers, side-cars, scheduling gates, selectors."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from operator_world.kube_api import Objects
from operator_world.kube_objects import Raw
from operator_world.kubernetes import SIDE_CAR


class Webhooks:
    """Those of one cluster."""

    def __init__(self) -> None:
        """Change nothing yet."""
        self.injects: set[str] = set()
        """Namespaces in which a webhook adds a label and a container to pods."""
        self.injects_side_cars = False
        """A webhook puts a side-car into some pods, first or last."""
        self.gates: dict[str, float] = {}
        """By namespace: for how long the pods have a scheduling gate that are made there."""
        self.selectors: dict[str, Mapping[str, str]] = {}
        """By namespace: labels of nodes that its pods ask for in addition."""
        self._opens_at: dict[str, float] = {}
        """By key of a pod that was made with a gate: when that is removed."""

    def changed(self, key: str, manifest: Mapping[str, Any], now: float) -> Raw:
        """Return the pod that is made of a manifest."""
        metadata, spec = manifest["metadata"], dict(manifest["spec"])
        namespace = metadata["namespace"]
        if namespace in self.injects:
            spec["containers"] = [*spec["containers"], {"name": "injected", "image": "proxy"}]
            metadata = {**metadata, "labels": {**metadata.get("labels", {}), "injected": "yes"}}
        if self.injects_side_cars:
            side_cars = Random(f"{metadata['name']} side-car").choice(([], [SIDE_CAR]))
            spec["containers"] = Random(metadata["name"]).choice(
                ([*side_cars, *spec["containers"]], [*spec["containers"], *side_cars])
            )
        if namespace in self.gates:
            spec["schedulingGates"] = [{"name": "example.com/quota"}]
            self._opens_at[key] = now + self.gates[namespace]
        if namespace in self.selectors:
            spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **self.selectors[namespace]}
        return {**manifest, "metadata": metadata, "spec": spec}

    def open_gates(self, pods: Objects, now: float) -> None:
        """Let the gates be removed whose time has come."""
        for key, at in list(self._opens_at.items()):
            if now >= at or key not in pods:
                del self._opens_at[key]
                if key in pods:
                    spec = {name: each for name, each in pods[key]["spec"].items() if name != "schedulingGates"}
                    pods[key] = {**pods[key], "spec": spec}
