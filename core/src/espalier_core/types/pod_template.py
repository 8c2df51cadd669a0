"""The part of a Kubernetes pod template that Espalier reads: containers and their GPU limits. The rest is passed on."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, ConfigDict, Field, field_validator

from espalier_core.base import DNS_LABEL, Strict, repeated

DEFAULT_GPU_RESOURCE: Final = "nvidia.com/gpu"
QUANTITY_PATTERN: Final = r"[+-]?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?"
_QUANTITY: Final = re.compile(QUANTITY_PATTERN)
_NATIVE: Final = re.compile(r"cpu|memory|ephemeral-storage|hugepages-.*", re.DOTALL)
"""Resources that can be fractions. All others are extended resources, which must be whole numbers."""
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,7}")
DEFAULT_GRACE_SECONDS: Final = 30.0
"""Kubernetes' default of `terminationGracePeriodSeconds`."""
MAX_CONTAINERS: Final = 32
MAX_RESOURCES: Final = 32
"""Maximum numbers, so that the API server can estimate the cost of validation."""


def _quantity(value: int | float | str) -> int | float | str:
    if isinstance(value, str) and not _QUANTITY.fullmatch(value):
        raise ValueError(f"is {value[:40]!r}; must be a quantity, such as 1, 500m or 4Gi")
    return value


Quantity = Annotated[
    int | float | str, AfterValidator(_quantity), Field(json_schema_extra={"pattern": f"^{QUANTITY_PATTERN}$"})
]
"""An amount of a resource. On Kubernetes, a number with a fraction must be text: `"0.5"` or `500m`."""

MappingList = tuple[dict[str, Any], ...]
"""Kubernetes objects that are passed on unchanged."""


class ResourceRequirements(Strict):
    """Resources of a container; Espalier reads GPU limits only."""

    model_config = ConfigDict(extra="allow")
    limits: dict[str, Quantity] = Field(default_factory=dict, max_length=MAX_RESOURCES)
    """Upper limits. The GPUs of a worker are the sum over its containers."""
    requests: dict[str, Quantity] = Field(default_factory=dict, max_length=MAX_RESOURCES)
    """Guaranteed amounts."""

    @field_validator("limits")
    @classmethod
    def _extended_are_whole(cls, value: dict[str, Quantity]) -> dict[str, Quantity]:
        for resource, limit in value.items():
            whole = limit >= 0 if isinstance(limit, int) else _WHOLE_NUMBER.fullmatch(str(limit))
            if not _NATIVE.fullmatch(resource) and not whole:
                raise ValueError(
                    f"has a limit of {str(limit)[:40]} {resource[:80]}; GPUs and other extended resources come in "
                    "whole numbers; write 1 (or, as text, up to 7 digits)"
                )
        return value


class VolumeMount(Strict):
    """The mount of a volume in a container."""

    model_config = ConfigDict(extra="allow")
    name: str
    """Name of the volume."""
    mount_path: str
    """Path in the container."""


class PodResourceClaim(Strict):
    """A claim for devices (dynamic resource allocation) that containers name in `resources.claims`."""

    model_config = ConfigDict(extra="allow")
    name: str
    """Name of the claim in the pod."""
    resource_claim_template_name: str | None = None
    """ResourceClaimTemplate from which each worker gets a separate claim. Devices of the classes that the operator
    counts as GPUs (`--other-gpu-resources`) are the GPUs of a worker."""


class Container(Strict):
    """A Kubernetes container. Espalier reads or completes these fields of it."""

    model_config = ConfigDict(extra="allow")
    name: Annotated[str, Field(pattern=DNS_LABEL, max_length=63)] = "trainer"
    """Unique name."""
    image: str | None = None
    """Default: the ready trainer image."""
    command: tuple[str, ...] = ()
    """Replaces the image's entrypoint."""
    args: tuple[str, ...] = ()
    """Arguments of the command."""
    env: MappingList | None = None
    """Environment variables, after those that Espalier adds."""
    volume_mounts: tuple[VolumeMount, ...] | None = None
    """Volumes mounted in the container."""
    security_context: dict[str, Any] | None = None
    """Passed on unchanged."""
    resources: ResourceRequirements = ResourceRequirements()


class PodSpec(Strict):
    """A Kubernetes pod spec. Espalier reads or completes these fields of it."""

    model_config = ConfigDict(extra="allow")
    containers: tuple[Container, ...] = Field(min_length=1, max_length=MAX_CONTAINERS)
    """Containers; the first one trains."""
    volumes: MappingList | None = None
    """Volumes; Espalier adds its own."""
    resource_claims: tuple[PodResourceClaim, ...] | None = Field(default=None, max_length=MAX_CONTAINERS)
    """Claims for devices."""
    node_selector: dict[str, str] | None = None
    """Labels of the nodes that may run the pod."""
    tolerations: MappingList | None = None
    """Tolerations; Espalier adds its own."""
    security_context: dict[str, Any] | None = None
    """Passed on; completed for the ready trainer image."""
    service_account_name: str | None = None
    """Default: a separate account for each job, which may read the job and write its report."""
    termination_grace_period_seconds: int | None = Field(default=None, ge=0, le=86_400)
    """Seconds between SIGTERM and SIGKILL; 30 if absent."""

    @property
    def grace_seconds(self) -> float:
        """Seconds between SIGTERM and SIGKILL."""
        given = self.termination_grace_period_seconds
        return DEFAULT_GRACE_SECONDS if given is None else float(given)

    @field_validator("containers")
    @classmethod
    def _names_differ(cls, value: tuple[Container, ...]) -> tuple[Container, ...]:
        if twice := repeated(container.name for container in value):
            raise ValueError(f"two containers have the name {min(twice)!r}; names must differ")
        return value


class PodMetadata(Strict):
    """Labels and annotations of the job's pods, in addition to Espalier's."""

    model_config = ConfigDict(extra="allow")
    labels: dict[str, str] | None = None
    """Labels of the pods."""
    annotations: dict[str, str] | None = None
    """Annotations of the pods."""


class PodTemplate(Strict):
    """A Kubernetes pod template."""

    model_config = ConfigDict(extra="allow")
    metadata: PodMetadata | None = None
    spec: PodSpec

    def gpus(self, resource: str = DEFAULT_GPU_RESOURCE) -> int:
        """Return the sum of the containers' limits of `resource`; `ValueError` as in `JobSpec.gpus_per_worker`."""
        total = 0
        for container in self.spec.containers:
            limit = container.resources.limits.get(resource, 0)
            if not (str(limit).isascii() and str(limit).isdecimal()):
                place = f"container {container.name!r}"
                raise ValueError(f"{place} has a limit of {limit} {resource}; must be a whole number")
            total += int(limit)
        return total
