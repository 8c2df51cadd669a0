"""Query, before a plan, of a policy that another process or thread evaluates: a view as JSON, and a deadline.

The question has a policy's facts about jobs, nodes and speeds on a cluster, as tables instead of objects. It leaves out
speeds by type of GPU: such policies leave types to the planner.

A plan is never made from a view older than the answer: the loop observes the cluster again after it. On any failure
the reason is recorded, and `fair` decides.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Protocol

from pydantic import TypeAdapter, ValidationError

from espalier_core.files.documents import first_fault
from espalier_core.types.measurements import Bid
from espalier_operator.model import Snapshot
from espalier_operator.policies import Policy
from espalier_operator.policies.decisions import view_of
from espalier_operator.policies.learned import LearnedPolicy, PolicyAnswer, PolicyFileError, answered, unanswered
from espalier_operator.policies.view import Candidate, SpeedModel, View

QUESTION_VERSION: Final = 3
MOST_TOLD: Final = 64
"""Maximum number of workers of a job in a speed table; with more, it is expected to be as fast as with these."""
Ask = Callable[[View], Awaitable[PolicyAnswer]]
"""Asks a policy; raises `AwayError` and `PolicyFileError`."""


class QuestionError(ValueError):
    """A question cannot be read; the message names the field and its fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedTable:
    """Expected speed of a job (`policies.view.SpeedModel`) as a table."""

    remaining_steps: float
    tried_workers: int
    seconds: tuple[float, ...]
    """Seconds of a step with 1, 2, ... workers."""
    goodputs: tuple[float, ...]
    """Goodputs with 1, 2, ... workers on as few nodes as possible; also used for more nodes."""

    def step_seconds(self, workers: int) -> float:
        """Return the seconds of one optimizer step with `workers` workers."""
        return self.seconds[_place(workers, self.seconds)]

    def goodput(self, nodes: int, workers: int) -> float:
        """Return the progress per second with these workers."""
        return self.goodputs[_place(workers, self.goodputs)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to a policy, with fields of `View`."""

    now: float
    gpus: int
    jobs: tuple[Candidate, ...]
    nodes: Mapping[str, int] = field(default_factory=dict)
    held: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    speed_models: Mapping[str, SpeedTable] = field(default_factory=dict)
    bids: Mapping[str, tuple[Bid, ...]] = field(default_factory=dict)
    gpu_types: Mapping[str, int] = field(default_factory=dict)

    @property
    def view(self) -> View:
        """The view of the policy."""
        return View(
            now=self.now,
            gpus=self.gpus,
            jobs=self.jobs,
            nodes=self.nodes,
            held=self.held,
            speed_models=self.speed_models,
            bids=self.bids,
            gpu_types=self.gpu_types,
            continuous=True,
        )

    def to_json(self) -> bytes:
        """Return the JSON that `question_of` reads."""
        body = _QUESTION.dump_python(self, mode="json")
        return json.dumps({"version": QUESTION_VERSION, **body}, separators=(",", ":")).encode()


def question_of(body: bytes) -> Question:
    """Parse the output of `Question.to_json`. Raises `QuestionError`."""
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise QuestionError(f"is not complete JSON: {error}") from error
    if not isinstance(raw, dict) or raw.pop("version", None) != QUESTION_VERSION:
        raise QuestionError(f"version: must be {QUESTION_VERSION}; operator and policy server differ in version")
    try:
        return _QUESTION.validate_python(raw)
    except ValidationError as error:
        raise QuestionError(first_fault(error)) from error


def asked(view: View) -> Question:
    """Return the question for a view of a cluster."""
    largest = max(view.nodes.values(), default=1)
    keys = {job.key for job in view.jobs}
    return Question(
        now=view.now,
        gpus=view.gpus,
        jobs=view.jobs,
        nodes=dict(view.nodes),
        held={key: nodes for key, nodes in view.held.items() if key in keys},
        speed_models={
            job.key: _table(view.speed_models[job.key], job, largest)
            for job in view.jobs
            if job.key in view.speed_models
        },
        bids=dict(view.bids),
        gpu_types=dict(view.gpu_types),
    )


def _table(speed_model: SpeedModel, job: Candidate, node_gpus: int) -> SpeedTable:
    counts = range(1, min(job.max_workers, max(job.min_workers, MOST_TOLD)) + 1)
    return SpeedTable(
        remaining_steps=speed_model.remaining_steps,
        tried_workers=speed_model.tried_workers,
        seconds=tuple(speed_model.step_seconds(workers) for workers in counts),
        goodputs=tuple(
            speed_model.goodput(max(1, -(-workers * job.gpus_per_worker // max(1, node_gpus))), workers)
            for workers in counts
        ),
    )


def _place(workers: int, table: tuple[float, ...]) -> int:
    return min(max(workers, 1), len(table)) - 1


_QUESTION: TypeAdapter[Question] = TypeAdapter(Question)


class QuestionOutcome(StrEnum):
    """The outcome of a question."""

    ANSWERED = "answered"
    LATE = "late"
    AWAY = "away"
    REFUSED = "refused"
    """The file cannot be used or cannot serve this cluster."""
    FAILED = "failed"
    """An unexpected error occurred."""


class AwayError(Exception):
    """The policy server does not answer; the message has the cause."""


class PolicyObserver(Protocol):
    """Receives outcomes of questions, for metrics."""

    def asked(self, outcome: QuestionOutcome, seconds: float) -> None:
        """Record a question and the wall seconds that the plan waited for it."""


class Asking:
    """Asks a policy and puts answers into its memory."""

    def __init__(self, policy: LearnedPolicy, ask: Ask, observer: PolicyObserver | None = None) -> None:
        """Take `ask`, which is cancelled after the time that the policy waits."""
        self._policy, self._ask, self._observer = policy, ask, observer

    async def memory_for(self, snapshot: Snapshot) -> Mapping[str, Any] | None:
        """Return the policy's new memory for a decision about `snapshot`; None: its memory stays as it is.

        The snapshot has the current memory. Ends within the time that the policy waits.
        """
        view = view_of(snapshot, [job for job in snapshot.jobs if not job.finished], snapshot.taken_at)
        if not self._policy.is_due(view):
            return None
        began = time.monotonic()
        outcome, memory = await self._asked(view)
        if self._observer is not None:
            self._observer.asked(outcome, time.monotonic() - began)
        return memory

    async def _asked(self, view: View) -> tuple[QuestionOutcome, dict[str, Any]]:
        wait = self._policy.wait
        try:
            async with asyncio.timeout(wait):
                answer = await self._ask(view)
            return QuestionOutcome.ANSWERED, answered(view, answer, self._policy.hold)
        except TimeoutError:
            return QuestionOutcome.LATE, unanswered(view, f"its policy file did not answer within {wait:g} s")
        except AwayError as error:
            return QuestionOutcome.AWAY, unanswered(view, f"its policy server is away: {error}")
        except PolicyFileError as error:
            return QuestionOutcome.REFUSED, unanswered(view, f"its policy file cannot decide: {error}")
        except Exception as error:  # Evaluating a file must never end the scheduler.
            return QuestionOutcome.FAILED, unanswered(view, f"its policy file failed: {type(error).__name__}: {error}")


def asked_here(policy: Policy, observer: PolicyObserver | None = None) -> tuple[Policy, Asking | None]:
    """Return a policy whose file is evaluated in a thread of this process, with its `Asking`.

    Any other policy is returned unchanged, with None.
    """
    if not isinstance(policy, LearnedPolicy) or (file := policy.evaluates) is None:
        return policy, None

    async def ask(view: View) -> PolicyAnswer:
        return await asyncio.to_thread(file.answer, view)

    return replace(policy, file=""), Asking(policy, ask, observer)
