"""A policy: a trained network, its vocabulary, and its lineage.

On disk it is a folder: `policy.json`, and the safetensors file that it names. That file has a digest in its name, and
`policy.json` is replaced atomically, after the weights are written: a reader sees the old policy or the new one while
one is replaced. Writers on one machine wait for each other. No pickle is read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load, save

from espalier_agent import data
from espalier_agent.policies.familiarity import Domain
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork
from espalier_agent.policies.vocabulary import EMBEDDING_SIZE, Vocabulary
from espalier_core.base import Record
from espalier_core.files.documents import (
    DocumentError,
    read_bounded,
    read_document,
    write_bytes_atomically,
    write_document,
)
from espalier_core.files.tensors import TensorFacts, fault_of
from espalier_core.types.advice import AdviceRequest, PolicyVersion
from espalier_core.types.task import Task

DEFAULT_EMBEDDING_SEED: Final = 0
"""Seed of the layers' embeddings. Policies that share it agree about layers that none of them has met."""
POLICY_FILE: Final = "policy.json"
EMBEDDINGS: Final = "vocabulary.embeddings"
NETWORK_PREFIX: Final = "network."
MAX_WEIGHTS_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of the tensors' file. The largest head and a vocabulary of a million layers stay below a third of it."""
LOCK_SECONDS: Final = 30.0
"""Seconds that a writer waits for another one, which needs about one."""
READINGS: Final = 5
"""Number of attempts to read a policy that is replaced meanwhile."""


class LearntTable(Record):
    """A table that a policy was learnt from."""

    name: str
    sha256: str
    """Digest of the table's canonical JSON."""


class LearntHistory(Record):
    """The decisions of a service, with outcomes, that a policy was learnt from."""

    files: tuple[str, ...]
    """Names of the databases. These grow while they are read, so the digest does not cover the files."""
    sha256: str
    """Digest of the learnt data: ids, actions, their probabilities and accuracies."""
    decisions: int
    episodes: int
    """Jobs, each with one decision or more."""
    held_out_share: float
    """Share of all episodes that was not learnt from."""
    held_out_seed: int
    held_out_episodes: int
    trials: int = 0
    """Decisions of trials, learnt from the results of their arms."""


class Lineage(Record):
    """The origin of a policy: enough to make it again."""

    learner: str
    config: dict[str, bool | int | float | str]
    """The learner's configuration."""
    seed: int
    episodes: int
    tables: tuple[LearntTable, ...]
    """Tables that it, or a policy that it continues from, has learnt from: none of them can judge it."""
    parent: PolicyVersion | None = None
    """The policy that learning started from; absent for a fresh network."""
    history: LearntHistory | None = None
    """History that it, or its parent, learned from in addition to tables; absent if both learned from tables alone."""
    domain: Domain | None = None
    """The models that it has learned from; absent where that was not recorded."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy ready to answer. Its network is in evaluation mode and takes no gradients; it never changes."""

    name: str
    version: str
    """A digest of network, vocabulary and configuration: equal policies have equal versions."""
    network: PolicyNetwork
    vocabulary: Vocabulary
    lineage: Lineage
    parts: tuple[Policy, ...] = field(default=(), compare=False)
    """The policies that answer in its place: for other tasks, and for models with layers that it has never met."""

    @property
    def task(self) -> Task:
        """The task of the models that it has learned from."""
        return Task.CLASSIFICATION if self.lineage.domain is None else self.lineage.domain.task

    def answering(self, request: AdviceRequest) -> Policy:
        """Return the policy that answers a request: the one for its task, else that for this policy's own."""
        for task in (request.task, self.task):
            if task is self.task and self.vocabulary.knows(request.architecture):
                return self
            for part in self.parts:
                if part.task is task:
                    return part
        return self

    @property
    def identity(self) -> PolicyVersion:
        """Name and version, as in answers."""
        return PolicyVersion(name=self.name, version=self.version)


class PolicyError(ValueError):
    """A policy cannot be read or written. The message names the file and the reason."""


class PolicyDocument(Record):
    """The contents of `policy.json`."""

    name: str = Field(min_length=1)
    policy_version: str = Field(min_length=1)
    network: NetworkConfig
    embedding_seed: int
    vocabulary: tuple[str, ...]
    lineage: Lineage
    weights: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*\.safetensors$")
    """File name, in the same folder."""
    weights_sha256: str


def make_policy(name: str, network: PolicyNetwork, vocabulary: Vocabulary, lineage: Lineage) -> Policy:
    """Freeze a network into a policy and give it the version that its contents determine."""
    frozen = PolicyNetwork.with_weights(network.config, network.state_dict())
    frozen.eval().requires_grad_(False)
    version = _version(_weights(frozen, vocabulary), network.config, vocabulary)
    return Policy(name, version, frozen, vocabulary, lineage)


def save_policy(policy: Policy, folder: Path, *, instead_of: PolicyVersion | None = None) -> None:
    """Write a policy into `folder`, which is created if missing; replace an existing policy.

    With `instead_of`, only replace that policy. Raise `PolicyError` if it is no longer there, if another writer does
    not end within `LOCK_SECONDS`, or if the policy no longer matches its version; raise `OSError` if the disk fails.
    The previous policy is then intact.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = _weights(policy.network, policy.vocabulary)
    if (found := _version(weights, policy.network.config, policy.vocabulary)) != policy.version:
        # Nobody could read such a policy.
        raise PolicyError(
            f"{folder}: policy {policy.name}@{policy.version} is not written, for its contents are those of version "
            f"{found}: its network was changed, or another version of safetensors wrote it; learn it again"
        )
    with _alone_in(folder):
        if instead_of is not None and load_policy(folder).identity != instead_of:
            raise PolicyError(f"{folder}: another policy came into service meanwhile; judge again")
        _write(policy, weights, folder)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other writers of this machine out of a folder; raise `PolicyError` if one does not end."""
    # The folder itself is locked: a lock file would be copied with the policy into ConfigMaps and images.
    handle = os.open(folder, os.O_RDONLY)
    try:
        end = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= end:
                    raise PolicyError(
                        f"{folder}: another process has been writing a policy there for {LOCK_SECONDS:g} s; wait for "
                        "that `learn` or `promote`, or end it, and try again"
                    ) from error
                time.sleep(0.05)
            else:
                break
        yield
    finally:
        os.close(handle)


def _write(policy: Policy, weights: bytes, folder: Path) -> None:
    digest = hashlib.sha256(weights).hexdigest()
    file_name = f"weights-{digest[:12]}.safetensors"
    write_bytes_atomically(folder / file_name, weights)
    document = PolicyDocument(
        name=policy.name,
        policy_version=policy.version,
        network=policy.network.config,
        embedding_seed=policy.vocabulary.seed,
        vocabulary=policy.vocabulary.keys,
        lineage=policy.lineage,
        weights=file_name,
        weights_sha256=digest,
    )
    write_document(folder / POLICY_FILE, document)
    for stale in folder.glob("weights-*.safetensors"):
        if stale.name != file_name:
            stale.unlink(missing_ok=True)


def load_policy(folder: Path) -> Policy:
    """Read a policy; `PolicyError` names the file and its fault: missing, damaged, of another version or shape."""
    path = folder / POLICY_FILE
    document, content = _read(folder)
    weights_path = folder / document.weights
    if hashlib.sha256(content).hexdigest() != document.weights_sha256:
        raise PolicyError(
            f"{weights_path}: is not the file that {path} was written with (SHA-256 differs); it is damaged"
        )
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise PolicyError(f"{weights_path}: not a safetensors file ({error})") from error
    except KeyError as error:  # A type without tensors in torch.
        raise PolicyError(f"{weights_path}: holds tensors of type {error}, where torch.float32 is expected") from error
    shapes = PolicyNetwork.shapes(document.network)
    expected = {NETWORK_PREFIX + key: shape for key, shape in shapes.items()}
    expected[EMBEDDINGS] = (len(document.vocabulary), EMBEDDING_SIZE)
    if fault := fault_of({name: _facts(tensor) for name, tensor in tensors.items()}, expected, str(torch.float32)):
        raise PolicyError(f"{weights_path}: {fault}")
    try:
        vocabulary = Vocabulary(document.vocabulary, tensors[EMBEDDINGS], document.embedding_seed)
    except ValueError as error:
        raise PolicyError(f"{path}: {error}") from error
    if (found := _version(content, document.network, vocabulary)) != document.policy_version:
        raise PolicyError(
            f"{path}: policyVersion is {document.policy_version!r}, where the contents have version {found!r}; it "
            "was changed after it was written: copy the policy again, or learn it again"
        )
    weights = {key: tensors[NETWORK_PREFIX + key] for key in shapes}
    network = PolicyNetwork.with_weights(document.network, weights)
    network.eval().requires_grad_(False)
    return Policy(document.name, document.policy_version, network, vocabulary, document.lineage)


def _read(folder: Path, times: int = READINGS) -> tuple[PolicyDocument, bytes]:
    """Return a policy's document, and the contents of the weights file that it names."""
    path = folder / POLICY_FILE
    document = _read_policy_file(path)
    weights_path = folder / document.weights
    try:
        return document, read_bounded(weights_path, MAX_WEIGHTS_BYTES)
    except DocumentError as error:
        raise PolicyError(str(error)) from error
    except OSError as error:
        # A writer may have just replaced the document and deleted the weights that the old one names.
        if times > 1 and _read_policy_file(path) != document:
            return _read(folder, times - 1)
        raise PolicyError(f"{weights_path}: cannot be read ({error.strerror}), but {path} names it") from error


def _read_policy_file(path: Path) -> PolicyDocument:
    try:
        return read_document(path, PolicyDocument)
    except DocumentError as error:
        raise PolicyError(str(error)) from error
    except OSError as error:
        raise PolicyError(
            f"{path}: cannot be read ({error.strerror}); a policy is a folder that contains it"
        ) from error


def default_policy() -> Policy:
    """Return the policy that Espalier ships: for the models of its tables, with parts for all others."""
    return replace(_carried(data.POLICY_FOLDER), parts=tuple(_carried(folder) for folder in data.PARTS))


def _carried(name: str) -> Policy:
    with as_file(files(data.__name__).joinpath(*name.split("/"))) as folder:
        return load_policy(folder)


def open_policy(folder: Path | None) -> Policy:
    """Return the policy of a folder, or the shipped one; raise `PolicyError`."""
    return default_policy() if folder is None else load_policy(folder)


def _weights(network: PolicyNetwork, vocabulary: Vocabulary) -> bytes:
    tensors = {NETWORK_PREFIX + key: value.contiguous() for key, value in network.state_dict().items()}
    return save({**tensors, EMBEDDINGS: vocabulary.embeddings.contiguous()})


def _version(weights: bytes, network: NetworkConfig, vocabulary: Vocabulary) -> str:
    """Return the version for the written contents. New fields of a network's configuration must be absent by default:
    otherwise all earlier policies would get other versions.
    """
    digest = hashlib.sha256(weights)
    described = {"network": network.to_json(), "vocabulary": vocabulary.keys, "seed": vocabulary.seed}
    digest.update(json.dumps(described, sort_keys=True).encode())
    return digest.hexdigest()[:12]


def _facts(tensor: torch.Tensor) -> TensorFacts:
    return TensorFacts(tuple(tensor.shape), str(tensor.dtype), lambda: bool(torch.isfinite(tensor).all()))
