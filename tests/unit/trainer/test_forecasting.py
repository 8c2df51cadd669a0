"""What a run says that growing would gain, and why it cannot grow."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from espalier_core.estimates.bids import LEAST_POINTS
from espalier_core.growth.architecture import Architecture, Layer
from espalier_core.types.advice import Action, AdviceRequest, ExpectedGain, Progress
from espalier_core.types.job import Insertion, Trials
from espalier_core.types.measurements import BidUse, GrowthForecast
from espalier_core.types.reasons import Reason
from espalier_core.types.report import AdaptationSource, Metric
from espalier_core.types.task import Score, Task
from espalier_lab.virtual_time import Scripted, VirtualScheduler
from espalier_trainer.growth.advisor import AdvisorDecision, AdvisorError, HTTPAdvisor
from espalier_trainer.growth.forecasting import LEAST_SECONDS, NOTHING, Forecasting, as_quality
from espalier_trainer.training.network import starting_architecture

GROWTH = Action.deepen("a")
GAINS = {str(GROWTH): ExpectedGain(mean=0.02, low=0.01, high=0.03)}
MODEL = Architecture(layers=(Layer(name="x", operator="Input"),), outputs=("x",))
REQUEST = AdviceRequest(job="default/t", architecture=MODEL, time_left_seconds=50, time_budget_seconds=100)


def decision(action: Action = GROWTH, gains: dict[str, ExpectedGain] = GAINS) -> AdvisorDecision:
    return AdvisorDecision("d", action, AdaptationSource.AGENT, "p@1", gains=gains)


class Agent:
    """Answers one question after the other, and counts them."""

    def __init__(self, *answers: AdvisorDecision | AdvisorError) -> None:
        self.answers, self.asked = list(answers), 0

    def __call__(self, request: AdviceRequest, wall_seconds: float) -> AdvisorDecision:
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, AdvisorError):
            raise answer
        return answer


class Clock(VirtualScheduler):
    """A budget of 100 s, of which the test says how much is used."""

    def __init__(self) -> None:
        super().__init__(100.0, lambda architecture: 1.0)
        self.used = 0.0

    def used_seconds(self) -> float:
        return self.used

    def time_left(self) -> float:
        return 100.0 - self.used


def epochs(forecasting: Forecasting, clock: Clock, *times: float) -> list[GrowthForecast | None]:
    """Return what is known as epochs begin at these times; each question has been answered before the next."""
    found: list[GrowthForecast | None] = []
    for before, clock.used in pairwise((times[0], *times)):
        found.append(forecasting.look(lambda: REQUEST, clock.used - before))
        for thread in threading.enumerate():
            if thread.name == "forecast":
                thread.join(30)
    return found


def test_what_the_agent_expects_is_known_at_the_next_epoch_and_asked_again_later():
    agent, clock = Agent(decision(), decision(Action.nothing(), {})), Clock()
    first = GrowthForecast(gain=0.02, low=0.01, high=0.03, seconds=2.0)
    late = 2 * LEAST_SECONDS
    found = epochs(Forecasting(agent, clock, Trials.OFF), clock, 0.0, 2.0, 4.0, late, late + 1)
    assert found == [None, first, first, first, GrowthForecast(gain=0.0, low=0.0, high=0.0, seconds=1.0)]
    assert agent.asked == 2


@pytest.mark.parametrize(("trials", "seconds"), [(Trials.OFF, 4.0), (Trials.CONFIRM, 13.6), (Trials.RACE, 61.6)])
def test_a_loan_is_needed_for_an_epoch_and_for_trials(trials, seconds):
    clock = Clock()
    _, found = epochs(Forecasting(Agent(decision()), clock, trials), clock, 0.0, 4.0)
    assert found.seconds == pytest.approx(seconds)


def test_a_job_that_may_not_grow_gains_nothing_and_is_asked_about_once_it_may_again():
    agent, clock = Agent(decision(), decision()), Clock()
    forecasting = Forecasting(agent, clock, Trials.OFF)
    assert epochs(forecasting, clock, 0.0, 1.0)[1] is not None
    assert forecasting.look(None, 0.0) is NOTHING
    assert epochs(forecasting, clock, 2.0, 3.0) == [None, GrowthForecast(gain=0.02, low=0.01, high=0.03, seconds=1.0)]
    assert Forecasting(None, clock, Trials.OFF).look(None, 0.0) is NOTHING
    assert Forecasting(None, clock, Trials.OFF).look(lambda: REQUEST, 0.0) is None


@pytest.mark.parametrize(
    "answer",
    [
        AdvisorError(Reason.AGENT_UNAVAILABLE, "away"),
        decision(gains={}),
        decision(gains={str(GROWTH): ExpectedGain(mean=7.0, low=0, high=9)}),
    ],
)
def test_an_agent_that_is_away_or_tells_no_gain_or_nonsense_leaves_it_unknown(answer):
    clock = Clock()
    assert epochs(Forecasting(Agent(answer), clock, Trials.OFF), clock, 0.0, 1.0) == [None, None]


def test_the_question_says_that_nothing_is_decided_by_it(agent_server):
    server = agent_server(lambda body: (200, b""))
    with pytest.raises(AdvisorError, match="status 404"):
        HTTPAdvisor(server.url).forecast(REQUEST, 5)
    assert [body["forecast"] for body in server.forecasts] == [True]
    assert not server.requests


def forecaster(request: AdviceRequest, wall_seconds: float) -> AdvisorDecision:
    """Expect the same of the first growth of any model."""
    growth = request.actions()[0]
    return decision(growth, {str(growth): GAINS[str(GROWTH)]})


def test_a_run_reports_what_growing_would_gain_and_in_the_end_nothing(run, make_job):
    job = make_job(adaptation={"maxAdaptations": 1})
    block = Action.deepen("block0")
    grown = run(job, advisor=Scripted((block,)), up_at=0.1, forecaster=forecaster)
    assert grown.reporter.report.measurements.growth == NOTHING, "it has grown as often as it may"
    alone = run(job, forecaster=forecaster, advisor=Scripted(()))
    assert alone.reporter.report.measurements.growth.gain == 0.02
    kept = run(make_job(maxReplicas=1), forecaster=forecaster, advisor=Scripted(()))
    assert kept.reporter.report.measurements.growth is None, "it can be lent nothing"


def test_a_run_reports_what_the_next_gpu_is_worth_to_it(run, make_job):
    for trials, growth in (("Off", BidUse.GROWTH), ("Auto", BidUse.TRIAL)):
        job = make_job(training={"elasticBatch": "keepGlobal"}, adaptation={"trials": trials}, timeBudgetSeconds=2)
        measured = run(job, forecaster=forecaster, advisor=Scripted(())).reporter.report.measurements
        assert len(measured.scores) > LEAST_POINTS
        assert {bid.use for bid in measured.bids} == {BidUse.WORKER, growth, BidUse.NOTHING}
    fixed = make_job(adaptation={"mode": "Off"})
    assert [bid.use for bid in run(fixed).reporter.report.measurements.bids] == [BidUse.NOTHING]


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        (["AddBlock"], "it has no run of residual blocks); allow Deepen or Widen in adaptation.actions"),
        ([], "no action is allowed); allow"),
        (["Widen"], "'0': '2' (Softmax) reads it"),
    ],
)
def test_the_reason_is_that_of_the_allowed_actions(actions, said):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Softmax(1))
    architecture, problem = starting_architecture(model, torch.randn(2, 4), Insertion.EXACT, actions)
    assert architecture is not None
    assert problem.startswith("the model will be trained as it is: no place of it can grow (")
    assert said in problem


def test_an_allowed_action_that_fits_is_no_problem():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    assert starting_architecture(model, torch.randn(2, 4), Insertion.EXACT, ["Deepen"])[1] == ""


@given(st.floats(0.01, 20), st.floats(-30, 30), st.floats(0, 5))
def test_bits_that_a_language_model_gains_are_forecast_as_a_gain_in_quality(bits, mean, width):
    metrics = (Metric(name="validation_bits_per_character", value=bits),)
    asked = REQUEST.model_copy(update={"task": Task.LANGUAGE_MODEL, "progress": Progress(metrics=metrics)})
    found = as_quality(ExpectedGain(mean=mean, low=mean - width, high=mean + width), asked)
    now = Score(measure="bits_per_character", value=bits)
    later = Score(measure="bits_per_character", value=max(0.0, bits - mean))
    assert found.mean == pytest.approx(later.quality - now.quality, abs=1e-12)
    assert -1 <= found.low <= found.mean <= found.high <= 1


def test_gains_of_other_tasks_are_forecast_as_they_are_and_unknown_bits_are_not():
    gain = ExpectedGain(mean=0.02, low=0.01, high=0.03)
    assert as_quality(gain, REQUEST) == gain
    assert as_quality(gain, REQUEST.model_copy(update={"task": Task.LANGUAGE_MODEL})) is None
