"""Forecasts of growth by the agent, and reports of a job's outcome to it.

While the job trains, the agent forecasts the gain of growing, by which a scheduler decides on lending GPUs. At the end
it receives the job's outcome and the results of its trials.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import Final

from pydantic import ValidationError

from espalier_core.estimates.gains import SHARES
from espalier_core.types.advice import Action, AdviceRequest, ExpectedGain, OutcomeReport, TrialOutcome
from espalier_core.types.job import AdaptiveTrainingJob, Trials
from espalier_core.types.measurements import GrowthForecast
from espalier_core.types.report import MAX_ARMS, Adaptation, AdaptationResult, AdaptationSource
from espalier_core.types.task import Score, Task, score_in
from espalier_trainer.growth.advisor import Advisor, AdvisorDecision, AdvisorError
from espalier_trainer.signals.scheduler import Scheduler
from espalier_trainer.training.progress import RunProgress

logger = logging.getLogger(__name__)


SHARE: Final = 0.02
"""Share of the budget between two requests, which are at least `LEAST_SECONDS` apart."""
LEAST_SECONDS: Final = 5.0
_PATIENCE_SECONDS: Final = 10.0
"""Wall seconds for an answer, for which training does not wait."""
NOTHING: Final = GrowthForecast(gain=0.0, low=0.0, high=0.0, seconds=0.0)

Forecaster = Callable[[AdviceRequest, float], AdvisorDecision]
"""Function that returns the agent's advice within this number of seconds; raises `AdvisorError`."""


class Forecasting:
    """Requests forecasts between epochs, in a thread. Used by the training loop only; not thread-safe."""

    def __init__(self, forecaster: Forecaster | None, scheduler: Scheduler, trials: Trials) -> None:
        """`trials` take time for which extra workers are needed, too. Without a `forecaster`, only whether the job may
        grow is known.
        """
        self._forecaster, self._scheduler = forecaster, scheduler
        self._share = SHARES.get(Trials.RACE if trials is Trials.AUTO else trials, 0.0)
        self._due = 0.0
        self._epoch_seconds = 0.0
        self._thread: threading.Thread | None = None
        self._answers: list[tuple[AdviceRequest, AdvisorDecision]] = []
        self._newest: GrowthForecast | None = None

    def look(self, request: Callable[[], AdviceRequest] | None, epoch_seconds: float) -> GrowthForecast | None:
        """Return the newest forecast at the beginning of an epoch, and request another if it is due.

        `request` returns the request; it is None if the job may not grow any more, or not now. `epoch_seconds` is how
        long an epoch takes; 0 while that is not known.
        """
        used, self._epoch_seconds = self._scheduler.used_seconds(), epoch_seconds
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            if self._answers:
                self._newest = self._forecast(*self._answers.pop())
        if request is None:
            self._newest, self._due = None, 0.0  # once it may grow again, the answer may differ
            return NOTHING
        if self._forecaster is not None and self._thread is None and used >= self._due:
            self._due = used + max(LEAST_SECONDS, SHARE * self._scheduler.time_budget())
            question = request()
            self._thread = threading.Thread(
                target=self._ask, args=(self._forecaster, question), name="forecast", daemon=True
            )
            self._thread.start()
        return self._newest

    def _ask(self, forecaster: Forecaster, question: AdviceRequest) -> None:
        try:
            self._answers.append((question, forecaster(question, _PATIENCE_SECONDS)))
        except AdvisorError as error:
            logger.debug("the gain of growing is unknown: %s", error)

    def _forecast(self, question: AdviceRequest, decision: AdvisorDecision) -> GrowthForecast | None:
        """Return the forecast in an answer; None where the policy does not state or know the gain of its advice."""
        if decision.familiarity is not None and not decision.familiarity.known:
            return None
        if not decision.action.grows:
            return GrowthForecast(gain=0.0, low=0.0, high=0.0, seconds=self._seconds())
        gain = decision.gains.get(str(decision.action))
        gain = None if gain is None else as_quality(gain, question)
        if gain is None:
            return None
        try:
            return GrowthForecast(gain=gain.mean, low=gain.low, high=gain.high, seconds=self._seconds())
        except ValidationError as error:
            logger.warning("the agent's expected gain is invalid: %s", error)
            return None

    def _seconds(self) -> float:
        return self._epoch_seconds + self._share * self._scheduler.time_left()


def as_quality(gain: ExpectedGain, request: AdviceRequest) -> ExpectedGain | None:
    """Return a gain in `Score.quality`, by which schedulers compare jobs of all tasks.

    None for a language model whose score is not known yet: the quality of its bits depends on it.
    """
    if request.task is not Task.LANGUAGE_MODEL:
        return gain
    score = score_in({each.name: each.value for each in request.progress.metrics}, "validation")
    now = None if score is None else score.quality
    if not now:
        return None
    best = -math.log2(now)
    mean, low, high = (now * 2.0 ** min(each, best) - now for each in (gain.mean, gain.low, gain.high))
    return ExpectedGain(mean=mean, low=low, high=high)


def report_outcome(
    job: AdaptiveTrainingJob, advisor: Advisor | None, progress: RunProgress, final: Score, quality: float
) -> None:
    """Report to the advisor how the job ended, if its decisions were carried out; best effort.

    `quality` is the quality of the score `final`.
    """
    carried_out = [
        adaptation
        for adaptation in progress.adaptations
        if adaptation.source is AdaptationSource.AGENT
        and adaptation.result in (AdaptationResult.GROWN, AdaptationResult.DECLINED)
    ]
    if advisor is not None and carried_out:
        advisor.report_outcome(
            OutcomeReport(
                job=job.key,
                decision_ids=tuple(adaptation.decision_id for adaptation in carried_out),
                final_accuracy=quality,
                measure=final.measure,
                time_budget_seconds=job.spec.time_budget_seconds,
                trials=tuple(map(_tried, (one for one in carried_out if one.arms))),
            )
        )


def _tried(adaptation: Adaptation) -> TrialOutcome:
    grown = adaptation.result is AdaptationResult.GROWN
    return TrialOutcome(
        decision_id=adaptation.decision_id,
        action=adaptation.action if grown else str(Action.nothing()),
        arms=adaptation.arms[:MAX_ARMS],
    )
