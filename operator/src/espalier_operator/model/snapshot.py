"""All facts of one moment, and their loss-free JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from espalier_core.files.documents import first_fault
from espalier_operator.model.blames import Avoided
from espalier_operator.model.jobs import JobFacts
from espalier_operator.model.nodes import NamespaceLimit, Node
from espalier_operator.model.queues import Claim, Queue
from espalier_operator.model.rules import Rules
from espalier_operator.model.workers import Placement, Promise, Worker

SNAPSHOT_VERSION: Final = 1


class SnapshotError(ValueError):
    """A dumped snapshot cannot be read; the message names the field and what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that `plan` reads."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)
    """For what it holds, too: a time that is not a number would compare with none, and a plan could not be JSON."""

    taken_at: float
    nodes: tuple[Node, ...] = ()
    workers: tuple[Worker, ...] = ()
    promises: tuple[Promise, ...] = ()
    jobs: tuple[JobFacts, ...] = ()
    queues: tuple[Queue, ...] = ()
    """Without any, no job needs one."""
    namespace_limits: tuple[NamespaceLimit, ...] = ()
    """By the ResourceQuotas of the namespaces in which jobs are."""
    placements: Mapping[str, Placement] = field(default_factory=dict, hash=False)
    """By job: what the last plan chose for workers that are not seen yet, so that this one keeps to it."""
    avoided: tuple[Avoided, ...] = ()
    """Nodes that failed several jobs."""
    rules: Rules = field(default_factory=Rules)
    policy_memory: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What the policy's last decision asked to keep."""

    def held_claims(self) -> Iterator[tuple[Claim, str]]:
        """Yield what each admitted job holds of its queue, and on which type of GPU."""
        for job in self.jobs:
            if job.admitted_at is not None and not job.finished:
                yield job.claim, job.gpu_type or ""

    def to_json(self) -> str:
        """Return the snapshot as JSON text from which `from_json` makes an equal one."""
        body = _SNAPSHOT.dump_python(self, mode="json")
        # In one line: with an indentation, Python writes JSON five times as slowly.
        return json.dumps({"version": SNAPSHOT_VERSION, "kind": "Snapshot", **body}) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Snapshot:
        """Parse what `to_json` wrote; `SnapshotError` where it is damaged or of another version."""
        try:
            body: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SnapshotError(f"not complete JSON: {error}") from error
        if not isinstance(body, dict) or body.pop("kind", None) != "Snapshot":
            raise SnapshotError("is not a snapshot: kind is not 'Snapshot'")
        version = body.pop("version", None)
        if version != SNAPSHOT_VERSION:
            raise SnapshotError(f"version is {version!r}; this Espalier reads {SNAPSHOT_VERSION}")
        try:
            return _SNAPSHOT.validate_python(body)
        except ValidationError as error:
            raise SnapshotError(first_fault(error)) from error


_SNAPSHOT: TypeAdapter[Snapshot] = TypeAdapter(Snapshot)
