"""A job of the simulator that learns as a real model did: it bids, trains with extra workers, and grows or races.

`trained` trains a model in the virtual time of `CaseRun`: alone, as if by faster workers, and grown at several moments
by the growth that the shipped policy puts first. A `LearningJob` reads its scores between these runs: by its mean speed
so far (linear in its logarithm), and by the moment of its growth. A growth is taken to save the same share of what a
model lacks at any speed; that was not trained. Bids are those of a trainer (`espalier_core.estimates.bids`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Final

from espalier_agent.policies.policy import Policy, default_policy
from espalier_core.base import Record
from espalier_core.estimates.bids import Bidder, bids_of, error_of
from espalier_core.estimates.gains import EVIDENCE, SHARES
from espalier_core.types.advice import Action, CurvePoint, offered
from espalier_core.types.job import Trials
from espalier_core.types.measurements import Bid, GrowthForecast, ScorePoint
from espalier_core.types.outcomes import ArmRecord, MomentRecord
from espalier_core.types.task import MEASURE_OF, Task, score_of
from espalier_lab.growth.judge.case import JudgeCase, JudgeSplit
from espalier_lab.growth.judge.case_run import CaseRun
from espalier_lab.growth.judge.deciding import OPERATIONS
from espalier_lab.growth.judge.trialling import Proposal, proposal
from espalier_lab.simulator.jobs import SimulatedJob
from espalier_operator.policies.view import SpeedModel
from espalier_trainer.growth.forecasting import NOTHING, as_quality

MARKS: Final = 24
"""Evaluations in a budget, at equal distances."""
FINAL: Final = MARKS + 1
"""The evaluation on the test split, at the end."""
ASKED: Final = 2
"""The policy is asked at every second one."""
GROWN_AT: Final = (4, 10, 16)
"""Evaluations at which models are grown, and trained to the end; and before the first step."""
FAST: Final = 2.5
"""Speed of the faster training; beyond it, it is extrapolated."""
MAX_WORKERS: Final = 4
CHANGE_SECONDS: Final = 0.83
"""Pause at a change of workers: the join measured on an H200 (docs/reports/elastic.md)."""
LEAST: Final = 0.01
"""Smallest error that differences are divided by: below it, a model is perfect."""
_ROUNDING: Final = 1e-6
_policy: Final[Callable[[], Policy]] = cache(default_policy)


class Course(Record):
    """A training to the end of its budget."""

    errors: tuple[float, ...]
    """What the model lacks of a perfect score on the validation split at each evaluation, and at last on the test
    split."""
    cost: float
    """Time of a step, in that of the starting model."""

    def error(self, mark: int) -> float:
        """Return the error at an evaluation."""
        return self.errors[mark - 1]


class Advice(Record):
    """What the shipped policy says at an evaluation."""

    grows: bool
    forecast: GrowthForecast | None
    """With 0 seconds; None: it does not know such models."""


class Trained(Record):
    """All that was trained of a model."""

    name: str
    task: Task
    alone: Course
    fast: Course
    """By workers that train `FAST` times as fast."""
    grown: dict[int, Course]
    """By the evaluation at which it grew; 0: before the first step. Empty if the policy knows no growth of it."""
    advice: tuple[Advice, ...]
    """At every `ASKED`-th evaluation."""


def trained(name: str, case: JudgeCase, seed: int) -> Trained:
    """Train a model in all ways; the record gets this name."""
    begun = CaseRun.begin(case, seed, OPERATIONS)
    run, curve = begun.copied(), list[CurvePoint]()
    errors, advice, grown = list[float](), list[Advice](), dict[int, Course]()
    for mark in range(1, MARKS + 1):
        errors.append(_advanced(run, mark))
        if mark % ASKED == 0 and mark < MARKS:
            proposed, said = _asked(run, curve, mark / MARKS)
            advice.append(said)
            if mark in GROWN_AT and proposed.growths:
                growth = proposed.growths[0]
                if not grown:
                    grown[0] = _finished(begun.grown(growth), [])
                grown[mark] = _finished(run.grown(growth), errors)
    fast = _finished(replace(begun.copied(), speed=FAST), [])
    alone = _finished(run, errors)
    return Trained(name=name, task=case.task, alone=alone, fast=fast, grown=grown, advice=tuple(advice))


def _finished(run: CaseRun, before: Sequence[float]) -> Course:
    rest = [_advanced(run, mark) for mark in range(len(before) + 1, MARKS + 1)]
    return Course(errors=(*before, *rest, _error(run, run.case.test)), cost=run.cost)


def _advanced(run: CaseRun, mark: int) -> float:
    """Train to an evaluation; return its error."""
    run.advance(run.budget * mark / MARKS)
    return _error(run, run.case.validation)


def _error(run: CaseRun, split: JudgeSplit) -> float:
    task = run.case.task
    return error_of(MEASURE_OF[task], score_of(task, run.score(split).accuracy).value)


def _asked(run: CaseRun, curve: list[CurvePoint], share: float) -> tuple[Proposal, Advice]:
    """Return what the shipped policy proposes, and what a job reports of it; the curve gets its next point."""
    architecture, score = run.network.architecture, run.score(run.case.validation)
    curve.append(CurvePoint(share=share, validation_loss=score.loss))
    record = run.record(curve)
    actions = (Action.nothing(), *(() if architecture is None else offered(architecture)))
    moment = MomentRecord(
        share=share,
        validation_accuracy=min(1.0, score.accuracy),
        validation_loss=score.loss,
        train_loss=run.recent,
        arms=tuple(ArmRecord(action=each, accuracy=0, step_cost=1) for each in actions),
    )
    proposed, request = proposal(_policy(), record, moment), record.request(moment)
    gain = proposed.gains.get(str(proposed.action))
    forecast: GrowthForecast | None = None
    if proposed.known and not proposed.action.grows:
        forecast = NOTHING
    elif proposed.known and request is not None and gain is not None and (now := as_quality(gain, request)) is not None:
        forecast = GrowthForecast(gain=now.mean, low=now.low, high=now.high, seconds=0.0)
    return proposed, Advice(grows=proposed.action.grows, forecast=forecast)


@dataclass(frozen=True, slots=True)
class Workload:
    """A model to train for a time budget."""

    name: str
    model: Trained
    submitted_at: float
    seconds: float
    """The time budget."""
    step_seconds: Callable[[int], float]
    """Measured seconds of a step by number of workers, in any unit."""

    def speedup(self, workers: int) -> float:
        """Return how many times as fast this number of workers trains."""
        return self.step_seconds(1) / self.step_seconds(workers)

    def error(self, mark: int, speed: float, grown_at: float | None) -> float:
        """Return the error at an evaluation after training at this mean speed, and growing at another evaluation."""
        alone, fast = self.model.alone.error(mark), self.model.fast.error(mark)
        error = alone + (fast - alone) * math.log(max(1.0, speed)) / math.log(FAST)
        if grown_at is not None and self.model.grown:
            error *= max(LEAST, self._grown(mark, grown_at)) / max(LEAST, alone)
        return max(0.0, error)

    def _grown(self, mark: int, grown_at: float) -> float:
        """Return the error of one worker's model, between the moments at which it was grown; at the end is alone."""
        points = [(at, course.error(mark)) for at, course in sorted(self.model.grown.items())]
        for (low, below), (high, above) in pairwise([*points, (MARKS, self.model.alone.error(mark))]):
            if grown_at <= high:
                return below + (above - below) * (grown_at - low) / (high - low)
        return self.model.alone.error(mark)


class LearningJob(SimulatedJob):
    """A job with one base worker and up to three extra ones, which may grow once.

    Language models let a race decide on growing; others trust the agent.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload.name, workload.submitted_at, 1, MAX_WORKERS)
        self.pause_seconds = CHANGE_SECONDS
        self.workload = workload
        self.grown_at: int | None = None
        self._races, self._decided = workload.model.task is Task.LANGUAGE_MODEL, not workload.model.grown
        self._race: int | None = None
        """The evaluation since which an extra worker has trained a growth, and the work of that run."""
        self._race_work = 0.0
        self._began, self._until, self._mark = -1.0, 0.0, 0
        self._work = self._held = self._epochs = 0.0
        self._scores, self._bids, self._tried = list[ScorePoint](), tuple[Bid, ...](), 1

    @property
    def bids(self) -> tuple[Bid, ...]:
        """The bids of the last evaluation."""
        return self._bids

    @property
    def speed_model(self) -> SpeedModel:
        """Its measured speed, and its remaining budget."""
        return self

    @property
    def remaining_steps(self) -> float:
        """Steps of one worker in the rest of the budget."""
        return self._seconds_left / self.step_seconds(1)

    @property
    def tried_workers(self) -> int:
        """The largest number of workers that it has had."""
        return self._tried

    def step_seconds(self, workers: int) -> float:
        """Return the seconds of a step, which are 1 of one worker before growth."""
        return self._cost / self.workload.speedup(workers)

    def goodput(self, nodes: int, workers: int) -> float:
        """Return steps per second: the batch stays the same."""
        return 1 / self.step_seconds(workers)

    def seconds_alone(self) -> float:
        """Return its budget."""
        return self.workload.seconds

    @property
    def lent_hours(self) -> float:
        """GPU-hours that it held beyond its base GPU."""
        return sum(max(0.0, span.gpus - 1) * (span.end - span.start) for span in self.held) / 3600

    @property
    def final(self) -> float:
        """The error on the test split at the end."""
        return self.workload.error(FINAL, self._work / self.workload.seconds, self.grown_at)

    @property
    def grew(self) -> bool:
        """Whether it has grown."""
        return self.grown_at is not None

    @property
    def fixed(self) -> float:
        """The same with these workers at the depth, fixed from the start, that validates best."""
        speed = self._held / self.workload.seconds
        depth = min((None, 0), key=lambda grown_at: self.workload.error(MARKS, speed, grown_at))
        return self.workload.error(FINAL, speed, depth)

    @property
    def _cost(self) -> float:
        """Time of a step, in that of the starting model."""
        costs = (course.cost for course in self.workload.model.grown.values())
        return 1.0 if self.grown_at is None else statistics.fmean(costs)

    @property
    def _seconds_left(self) -> float:
        return self.workload.seconds - max(0.0, self._until - self._began)

    def _placed(self) -> None:
        self._tried = max(self._tried, self.workers)
        if self.workers < 2:
            self._race = None  # it has lost its extra worker

    def _train(self, now: float, seconds: float) -> bool:
        if self._began < 0:
            self._began = self._until = now
        before, budget, end = self._mark, self.workload.seconds, now + seconds
        while self.completed_at is None:
            look = self._began + (self._mark + 1) * budget / MARKS
            passed, self._until = max(0.0, min(end, look) - now), min(end, look)
            now = max(now, self._until)
            speed = self.workload.speedup(self.workers if self._race is None else self.workers - 1)
            self._work += passed * speed
            self._held += passed * self.workload.speedup(self.workers)
            self._epochs += passed * speed / self._cost * MARKS / budget
            self._race_work += passed
            if look > end + _ROUNDING:
                break
            self._mark += 1
            if self._mark == MARKS:
                self.completed_at = self._until
            else:
                self._look()
        return self._mark > before

    def _look(self) -> None:
        """Evaluate, decide on growing, and bid."""
        model, mark, measure = self.workload.model, self._mark, MEASURE_OF[self.workload.model.task]
        error = self._error(self._work, self.grown_at)
        value = 1 - error if measure.higher_is_better else error
        self._scores.append(ScorePoint(work=max(self._epochs, _ROUNDING), value=value))
        advice = model.advice[mark // ASKED - 1] if mark >= ASKED else None
        if self._race is not None:
            if mark == self._race + math.ceil(SHARES[Trials.RACE] * (MARKS - self._race)):
                if self._error(self._race_work, self._race) < error:
                    self._work = self._race_work
                    self._grow(self._race)
                self._race, self._decided = None, True
        elif advice is not None and not self._decided and self.workers > 1:
            if self._races:
                self._race, self._race_work = mark, self._work
            else:
                self._decided = True
                if advice.grows:
                    self._grow(mark)
        epoch = self.workload.seconds / MARKS
        forecast = NOTHING if self._decided else None
        if advice is not None and advice.forecast is not None and not self._decided and self._race is None:
            needs = epoch + (SHARES[Trials.RACE] * self._seconds_left if self._races else 0.0)
            forecast = advice.forecast.model_copy(update={"seconds": needs})
        self._bids = bids_of(
            Bidder(
                measure=measure,
                scores=tuple(self._scores),
                work=self._epochs,
                seconds_left=self._seconds_left,
                epoch_seconds=epoch * self._cost,
                base=1,
                most=MAX_WORKERS,
                tried=self._tried,
                speedup=self.workload.speedup,
                forecast=forecast,
                trial=EVIDENCE[model.task][Trials.RACE].deviation if self._races else None,
            )
        )

    def _error(self, work: float, grown_at: int | None) -> float:
        return self.workload.error(self._mark, work / max(_ROUNDING, self._until - self._began), grown_at)

    def _grow(self, mark: int) -> None:
        self.grown_at = mark
        self._scores.clear()  # the curve begins again
