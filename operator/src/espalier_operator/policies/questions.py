"""A view as JSON: how a policy in another process is asked. Pure.

It holds what a policy may know of jobs, nodes and speeds on a cluster, as tables instead of objects. It leaves out
speeds by type of GPU: whoever is asked leaves types to the planner.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import TypeAdapter, ValidationError

from espalier_core.files.documents import first_fault
from espalier_operator.policies.view import Candidate, Outlook, Prospect, View

QUESTION_VERSION: Final = 1
MOST_TOLD: Final = 64
"""Speeds are sent for at most this many workers of a job; with more it is expected to be as fast as with these."""


class QuestionError(ValueError):
    """A question cannot be read; the message names the field and what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedTable:
    """What is expected of the speed of a job (`policies.view.Outlook`), as a table."""

    remaining_steps: float
    tried_workers: int
    seconds: tuple[float, ...]
    """Of a step with 1, 2, ... workers."""
    goodputs: tuple[float, ...]
    """With 1, 2, ... workers on as few nodes as possible; the same for more nodes."""

    def step_seconds(self, workers: int) -> float:
        """Return the seconds of one optimizer step with `workers` workers."""
        return self.seconds[_place(workers, self.seconds)]

    def goodput(self, nodes: int, workers: int) -> float:
        """Return its progress per second with these workers."""
        return self.goodputs[_place(workers, self.goodputs)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a policy; the fields are those of `View`."""

    now: float
    gpus: int
    jobs: tuple[Candidate, ...]
    nodes: Mapping[str, int] = field(default_factory=dict)
    held: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    outlooks: Mapping[str, SpeedTable] = field(default_factory=dict)
    prospects: Mapping[str, Prospect] = field(default_factory=dict)
    gpu_types: Mapping[str, int] = field(default_factory=dict)

    @property
    def view(self) -> View:
        """What the policy sees."""
        return View(
            now=self.now,
            gpus=self.gpus,
            jobs=self.jobs,
            nodes=self.nodes,
            held=self.held,
            outlooks=self.outlooks,
            prospects=self.prospects,
            gpu_types=self.gpu_types,
            continuous=True,
        )

    def to_json(self) -> bytes:
        """Return what `question_of` reads."""
        body = _QUESTION.dump_python(self, mode="json")
        return json.dumps({"version": QUESTION_VERSION, **body}, separators=(",", ":")).encode()


def question_of(body: bytes) -> Question:
    """Read what `Question.to_json` wrote. Raises `QuestionError`."""
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise QuestionError(f"is not complete JSON: {error}") from error
    if not isinstance(raw, dict) or raw.pop("version", None) != QUESTION_VERSION:
        raise QuestionError(f"version: is to be {QUESTION_VERSION}; operator and policy server differ in version")
    try:
        return _QUESTION.validate_python(raw)
    except ValidationError as error:
        raise QuestionError(first_fault(error)) from error


def asked(view: View) -> Question:
    """Return the question who should have what, by a view on a cluster."""
    largest = max(view.nodes.values(), default=1)
    keys = {job.key for job in view.jobs}
    return Question(
        now=view.now,
        gpus=view.gpus,
        jobs=view.jobs,
        nodes=dict(view.nodes),
        held={key: nodes for key, nodes in view.held.items() if key in keys},
        outlooks={
            job.key: _table(view.outlooks[job.key], job, largest) for job in view.jobs if job.key in view.outlooks
        },
        prospects=dict(view.prospects),
        gpu_types=dict(view.gpu_types),
    )


def _table(outlook: Outlook, job: Candidate, node_gpus: int) -> SpeedTable:
    counts = range(1, min(job.max_workers, max(job.min_workers, MOST_TOLD)) + 1)
    return SpeedTable(
        remaining_steps=outlook.remaining_steps,
        tried_workers=outlook.tried_workers,
        seconds=tuple(outlook.step_seconds(workers) for workers in counts),
        goodputs=tuple(
            outlook.goodput(max(1, -(-workers * job.gpus_per_worker // max(1, node_gpus))), workers)
            for workers in counts
        ),
    )


def _place(workers: int, table: tuple[float, ...]) -> int:
    return min(max(workers, 1), len(table)) - 1


_QUESTION: TypeAdapter[Question] = TypeAdapter(Question)
