"""State kept between plans: the policy's memory, and the recent use of GPUs by queues and namespaces."""

from __future__ import annotations

import base64
import binascii
import json
import logging
import math
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from espalier_operator.model import JobFacts, Snapshot
from espalier_operator.model.queues import QueueLimits

logger = logging.getLogger(__name__)


MOST_CHARACTERS: Final = 128 * 1024
"""Maximum length of the text. All annotations of an object together have at most 256 KiB."""
_MOST_BYTES: Final = 32 * 1024 * 1024
"""Maximum size of the JSON: a text that expands to more was not written by this program."""
SHARES_KEPT: Final = 200
"""Number of shares in the text of `to_json`, the largest ones, as the text is kept in an annotation."""
_LEAST: Final = 1e-3
"""Recent GPUs below which a share that holds nothing is dropped."""
_DIGITS: Final = 2
"""Decimals of GPUs by which shares are distinguished: where they are nearly equal, the older job goes first."""


class _KeptGpus(BaseModel):
    policy: str
    """The policy with its settings."""
    memory: dict[str, Any] = Field(default_factory=dict)


class PolicyMemory:
    """The memory of one policy across decisions."""

    def __init__(self, policy: str, kept: str | None = None) -> None:
        """Resume from the output of `to_text` for `policy` (name and settings), or start empty if `kept` is not one.

        The policy itself drops data of ended jobs with its next decision.
        """
        self._policy = policy
        self._complaint = ""
        self.memory: Mapping[str, Any] = {}
        self.is_resumed = False
        """The memory was resumed and has not been used yet: it may be from another version of the policy."""
        found = remembered(policy, kept) if kept else {}
        if found is not None:
            self.memory, self.is_resumed = found, bool(found)
        else:
            logger.warning("policy %s starts with an empty memory: the stored text is not its memory", policy)

    def keep(self, memory: Mapping[str, Any]) -> None:
        """Keep the memory of a decision."""
        self.memory, self.is_resumed = memory, False

    def to_text(self) -> str:
        """Return the text for `PolicyMemory` after a restart; "" where it cannot be kept, with one warning."""
        try:
            plain = json.dumps({"policy": self._policy, "memory": self.memory}, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            return self._complain(f"its memory is not plain JSON ({error}): it is lost when the scheduler ends")
        text = base64.b64encode(zlib.compress(plain.encode())).decode()
        if len(text) > MOST_CHARACTERS:
            most = f"at most {MOST_CHARACTERS} are kept: it is lost when the scheduler ends"
            return self._complain(f"its memory has {len(text)} characters, and {most}")
        self._complaint = ""
        return text

    def _complain(self, complaint: str) -> str:
        if not self._complaint:
            logger.warning("policy %s: %s", self._policy, complaint)
        self._complaint = complaint
        return ""


def remembered(policy: str, kept: str) -> Mapping[str, Any] | None:
    """Return the memory in a text of `PolicyMemory.to_text`; None where it belongs to another policy or is damaged."""
    found = _read(kept)
    return found.memory if found is not None and found.policy == policy else None


def _read(kept: str) -> _KeptGpus | None:
    try:
        packed = base64.b64decode(kept, validate=True)
        unpacking = zlib.decompressobj()
        plain = unpacking.decompress(packed, _MOST_BYTES)
        return _KeptGpus.model_validate_json(plain) if unpacking.eof else None
    except (binascii.Error, zlib.error, ValidationError):
        return None


@dataclass(frozen=True, slots=True)
class _KeptUse:
    at: float
    gpus: dict[str, float] = field(default_factory=dict)


_KEPT: Final = TypeAdapter(_KeptUse)

_Ranked = tuple[JobFacts, tuple[float, int], JobFacts]
"""(Facts of a waiting job, (recent use, age), facts with these)."""


class RecentUse:
    """Recent use by each queue, or by each namespace for jobs without an existing queue."""

    def __init__(self, half_life_seconds: float, kept: str | None = None) -> None:
        """Resume from the output of `to_json`, or start empty if it cannot be read. 0 seconds: count nothing."""
        self._half_life = half_life_seconds
        self._gpus: dict[str, float] = {}
        self._held: Counter[str] | None = None
        """GPUs held by each share since `_at`; None: taken from the next snapshot."""
        self._at: float | None = None
        self._known: dict[str, _Ranked] = {}
        """Last result for each waiting job."""
        if kept is not None:
            try:
                read = _KEPT.validate_json(kept)
            except ValidationError:
                return
            self._at = read.at
            self._gpus = {name: gpus for name, gpus in read.gpus.items() if math.isfinite(gpus) and gpus >= 0.0}

    def seen(self, snapshot: Snapshot) -> Snapshot:
        """Count up to the time of `snapshot`, and return it with the recent use and age of its waiting jobs."""
        queues = {queue.name: queue for queue in snapshot.queues}
        held = Counter[str]()
        for job in snapshot.jobs:
            if job.admitted_at is not None and not job.finished:
                held[_share_of(job, queues)] += job.base_gpus_held
        self._count(snapshot.taken_at, held if self._held is None else self._held)
        self._held = held
        ranked: dict[str, _Ranked] = {}
        jobs = tuple(self._ranked(job, queues, snapshot, ranked) for job in snapshot.jobs)
        self._known = ranked
        return replace(snapshot, jobs=jobs)

    def to_json(self, now: float | None = None) -> str:
        """Return the use counted up to `now`, or to the last snapshot, for `RecentUse` after a restart."""
        if now is not None and self._held is not None:
            self._count(now, self._held)
        largest = sorted(self._gpus.items(), key=lambda entry: (-entry[1], entry[0]))[:SHARES_KEPT]
        gpus = {name: round(gpus, 4) for name, gpus in largest}
        return json.dumps({"at": round(self._at or 0.0, 3), "gpus": gpus}, separators=(",", ":"))

    def _count(self, now: float, held: Mapping[str, int]) -> None:
        if self._half_life > 0 and self._at is not None and now > self._at:
            decay = 2.0 ** (-(now - self._at) / self._half_life)
            names = self._gpus.keys() | held.keys()
            gpus = {name: self._gpus.get(name, 0.0) * decay + held.get(name, 0) * (1.0 - decay) for name in names}
            self._gpus = {name: amount for name, amount in gpus.items() if amount >= _LEAST or held.get(name)}
        self._at = now

    def _ranked(
        self, job: JobFacts, queues: Mapping[str, QueueLimits], snapshot: Snapshot, ranked: dict[str, _Ranked]
    ) -> JobFacts:
        if job.admitted_at is not None or job.finished:
            return job
        share, aging = _share_of(job, queues), snapshot.rules.aging_seconds
        weight = queues[job.terms.queue].weight if job.terms.queue in queues else 1
        waited = max(0.0, snapshot.taken_at - job.submitted_at)
        recent_use = round(self._gpus.get(share, 0.0) / weight, _DIGITS)
        rank = recent_use, int(waited / aging) if aging > 0 else 0
        known = self._known.get(job.key)
        if known is None or known[0] is not job or known[1] != rank:
            known = job, rank, replace(job, recent_use=rank[0], aged=rank[1])
        ranked[job.key] = known
        return known[2]


def _share_of(job: JobFacts, queues: Mapping[str, QueueLimits]) -> str:
    """Return the queue or namespace to which a job's use counts. Names of neither contain a space."""
    return f"queue {job.terms.queue}" if job.terms.queue in queues else f"namespace {job.namespace}"
