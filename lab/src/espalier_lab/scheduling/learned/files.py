"""Policies as files: safetensors with the lineage in the header. No pickle is read.

The version is a digest of everything, so a file with a changed bit is refused.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from espalier_core.base import Record
from espalier_core.files.documents import DocumentError, first_fault, read_bounded, write_bytes_atomically
from espalier_core.files.tensors import TensorFacts, fault_of
from espalier_lab.scheduling.learned.description import (
    CLUSTER_FEATURES,
    FORMAT,
    JOB_FEATURES,
    OPTION_FEATURES,
    WORKERS_ONLY,
)
from espalier_lab.scheduling.learned.network import JobScorer, Weights, shapes
from espalier_lab.scheduling.learned.speeds import STEPS
from espalier_lab.scheduling.placement.tasks import KINDS

MAX_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of a policy's file in bytes; a network of the usual size takes 25 kB."""
MAX_HIDDEN: Final = 512
MAX_NAME: Final = 100
"""Maximum length of a policy's name, in characters."""
_HEADER: Final = "espalier"
"""The key of the lineage in the header of safetensors."""
_LENGTH: Final = 8
"""Bytes before that header, for its length, little-endian (the format of safetensors)."""


_REST: Final = 2 * KINDS + 2
PLACEMENT: Final[dict[str, tuple[int, ...]]] = {
    "placement.slowness": (2,),
    "placement.rest": (_REST,),
    "placement.covariance": (_REST, _REST),
}
"""Tensors of an optional placement prior: the fields of `placement.beliefs.Prior`, with their shapes."""


class LearnedPolicyError(ValueError):
    """A policy cannot be read. The message names the file, the fault and the remedy."""


class Serves(Record):
    """The clusters that a policy may serve, which resemble those that it learnt on."""

    min_gpus: int = Field(ge=1)
    max_gpus: int = Field(ge=1)
    max_jobs: int = Field(ge=1)
    """Maximum number of unfinished jobs at a time; it may exceed the number in learning."""

    def refusal(self, gpus: int) -> str | None:
        """Return why it cannot serve a cluster with this number of GPUs, of all types; None if it can."""
        if not self.min_gpus <= gpus <= self.max_gpus:
            return (
                f"the cluster has {gpus} GPUs, and the policy serves {self.min_gpus} to {self.max_gpus}: learn one on "
                "such a cluster"
            )
        return None


class AllocationLineage(Record):
    """The properties and origin of a policy."""

    name: str = Field(min_length=1, max_length=MAX_NAME)
    actions: tuple[str, ...] = WORKERS_ONLY
    """Options of a job; `description.WORKERS_ONLY` where gradients are exchanged by all-reduce."""
    learnt_from: str = Field(max_length=500)
    """The workload and the cluster, in words."""
    algorithm: str = Field(max_length=200)
    """Algorithm in words, such as `imitation of optimus, then ppo`."""
    seed: int
    decisions: int = Field(ge=0)
    """Number of decisions that were learnt from."""
    serves: Serves
    results: dict[str, float] = Field(default_factory=dict)
    """Measurements on traces for choosing, by name and unit, such as `chooseJctSlots`."""


@dataclass(frozen=True, slots=True, eq=False)
class AllocationPolicy:
    """A policy that was read from a file or learnt."""

    network: JobScorer
    lineage: AllocationLineage
    version: str
    """Twelve hex digits of the digest of weights, features and lineage."""
    placement: Weights = field(default_factory=dict)
    """The learnt placement prior (`PLACEMENT`), if the file has one."""


def make_policy(network: JobScorer, lineage: AllocationLineage, placement: Weights | None = None) -> AllocationPolicy:
    """Return the policy, with the version that its contents determine."""
    prior = {} if placement is None else placement
    return AllocationPolicy(network, lineage, _version({**network.weights, **prior}, lineage.to_json()), prior)


def write_policy(policy: AllocationPolicy, path: Path) -> None:
    """Write a policy; a concurrent reader sees the old file or the new one."""
    header = {
        "format": FORMAT,
        "version": policy.version,
        **_features(),
        "lineage": policy.lineage.to_json(),
    }
    tensors = {**policy.network.weights, **policy.placement}
    weights = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    write_bytes_atomically(path, save(weights, metadata={_HEADER: json.dumps(header, sort_keys=True)}))


def read_policy(path: Path) -> AllocationPolicy:
    """Read a policy. Raise `LearnedPolicyError` if it is missing, damaged, incomplete or of another format."""
    try:
        content = read_bounded(path, MAX_BYTES)
    except DocumentError as error:
        raise LearnedPolicyError(str(error)) from error
    except OSError as error:
        raise LearnedPolicyError(
            f"{path}: cannot be read ({error.strerror}); name a file of `policies learn`"
        ) from error
    return parse_policy(content, str(path))


def parse_policy(content: bytes, source: str) -> AllocationPolicy:
    """Read a policy from the bytes of its file; `source` is named in errors. Raise `LearnedPolicyError`."""
    try:
        weights = load(content)
    except (SafetensorError, KeyError, ValueError) as error:
        raise LearnedPolicyError(f"{source}: not a safetensors file of float32 ({error}); copy it again") from error
    header = _header(content, source)
    if header.get("format") != FORMAT:
        raise LearnedPolicyError(
            f"{source}: its format is {header.get('format')!r}, where {FORMAT!r} is served; learn it again"
        )
    for name, expected in _features().items():
        if header.get(name) != expected:
            raise LearnedPolicyError(f"{source}: its {name} are others than those of {FORMAT}; learn it again")
    try:
        lineage = AllocationLineage.model_validate(header.get("lineage"))
    except ValidationError as error:
        raise LearnedPolicyError(f"{source}: lineage: {first_fault(error)}; learn it again") from error
    if not lineage.actions or set(lineage.actions) - set(STEPS) or len(set(lineage.actions)) < len(lineage.actions):
        raise LearnedPolicyError(
            f"{source}: its actions are {', '.join(lineage.actions) or 'none'}; known are {', '.join(STEPS)}"
        )
    _check(weights, len(lineage.actions), source)
    found = _version(weights, header["lineage"])
    if header.get("version") != found:
        raise LearnedPolicyError(
            f"{source}: says that it is version {header.get('version')!r}, and its contents are {found!r}: it was "
            "changed after it was written; copy it again, or learn it again"
        )
    network = {name: value for name, value in weights.items() if name not in PLACEMENT}
    placement = {name: value for name, value in weights.items() if name in PLACEMENT}
    return AllocationPolicy(JobScorer(network), lineage, found, placement)


def _header(content: bytes, source: str) -> dict[str, Any]:
    end = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    try:
        header = json.loads(json.loads(content[_LENGTH:end])["__metadata__"][_HEADER])
    except (ValueError, KeyError, TypeError) as error:
        raise LearnedPolicyError(f"{source}: has no lineage in its header; it is not a policy of {FORMAT}") from error
    if not isinstance(header, dict):
        raise LearnedPolicyError(f"{source}: the lineage in its header is not a JSON object; learn it again")
    return header


def _features() -> dict[str, list[str]]:
    return {
        "jobFeatures": list(JOB_FEATURES),
        "optionFeatures": list(OPTION_FEATURES),
        "clusterFeatures": list(CLUSTER_FEATURES),
    }


def _check(weights: Weights, options: int, source: str) -> None:
    bias = weights.get("job.bias")
    hidden = bias.shape[0] if bias is not None and bias.ndim == 1 else 0
    if not 1 <= hidden <= MAX_HIDDEN:
        raise LearnedPolicyError(f"{source}: job.bias is missing, or not a vector of 1 to {MAX_HIDDEN} values")
    expected = shapes(options, hidden) | (PLACEMENT if PLACEMENT.keys() & weights.keys() else {})
    found = {name: _facts(value) for name, value in weights.items()}
    if fault := fault_of(found, expected, "float32"):
        raise LearnedPolicyError(f"{source}: {fault}")


def _facts(value: NDArray[Any]) -> TensorFacts:
    return TensorFacts(value.shape, str(value.dtype), lambda: bool(np.isfinite(value).all()))


def _version(weights: Weights, lineage: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps([FORMAT, _features(), lineage], sort_keys=True).encode())
    for name in sorted(weights):
        digest.update(name.encode() + np.ascontiguousarray(weights[name], dtype="<f4").tobytes())
    return digest.hexdigest()[:12]
