"""The part of a Kubernetes pod template that we read: containers and their GPU limits. The rest is passed on."""

from __future__ import annotations

from typing import Final

from pydantic import ConfigDict, Field

from espalier_api.base import Strict

DEFAULT_GPU_RESOURCE: Final = "nvidia.com/gpu"


class ResourceRequirements(Strict):
    """Part of a container; only GPU limits are read."""

    model_config = ConfigDict(extra="allow")
    limits: dict[str, int | float | str] = Field(default_factory=dict)
    requests: dict[str, int | float | str] = Field(default_factory=dict)


class Container(Strict):
    """A container of the pod template: an ordinary Kubernetes container, of which we read these fields."""

    model_config = ConfigDict(extra="allow")
    name: str = "trainer"
    image: str | None = None
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()


class PodSpec(Strict):
    """An ordinary pod spec, of which we read the containers."""

    model_config = ConfigDict(extra="allow")
    containers: tuple[Container, ...] = Field(min_length=1)


class PodTemplate(Strict):
    """An ordinary pod template."""

    model_config = ConfigDict(extra="allow")
    spec: PodSpec

    def gpus(self, resource: str = DEFAULT_GPU_RESOURCE) -> int:
        """Return the sum of the containers' limits of `resource`; `ValueError` as `JobSpec.gpus_per_worker`."""
        total = 0
        for container in self.spec.containers:
            limit = container.resources.limits.get(resource, 0)
            if not str(limit).isdecimal():
                place = f"container {container.name!r}"
                raise ValueError(f"{place} has a limit of {limit} {resource}; must be a whole number")
            total += int(limit)
        return total
