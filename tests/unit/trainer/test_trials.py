"""Growth that is tried on extra workers first: real processes."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any

import pytest

from agent_service import serving
from espalier_agent.history import decisions
from espalier_core.estimates.gains import trial_gains
from espalier_core.types.reasons import Reason
from espalier_core.types.report import AdaptationResult
from espalier_trainer.checkpoints.document import CheckpointState
from espalier_trainer.checkpoints.store import CheckpointStore, read_checkpoint
from espalier_trainer.distillation.trial import ShrinkingState
from trainer_processes import SHORT_TRIALS, Workplace, decided, ended, of, until

pytestmark = pytest.mark.slow
PACE = 0.01
BATCHES = 17
"""In an epoch."""

GROWTH_WINS = "rules.best = lambda arms, *_: next((each for each in arms if each.action != 'Nothing'), None)"
NOTHING_WINS = GROWTH_WINS.replace("!=", "==")

THERE_AT_ONCE = """
import time
import espalier_trainer.run.growing as growth
adapted = growth.Growth.adapted
def with_all(self):
    while self._run.progress.epoch == 0 and not self._run.team.extra_members:
        time.sleep(0.01)
        self._run._boundary()
    goes_on = adapted(self)
    print("begins an epoch as", self._run.journal.phase, flush=True)
    return goes_on
growth.Growth.adapted = with_all
"""
"""The first epoch begins once the extra workers are there."""


@pytest.fixture
def tried(workplace, make_job):
    """Start a job with `extra` extra workers that try a growth before it is carried out."""

    def make(
        trials: str,
        extra: int,
        prelude: str = "",
        budget: float = 3600.0,
        agent_url: str = "",
        pace: float = PACE,
        reclaim: str = "Keep",
        late: bool = False,
        insertion: str = "Exact",
    ) -> Workplace:
        adaptation = {
            "insertion": insertion,
            "trials": trials,
            "fallback": "Heuristic",
            "maxAdaptations": 1,
            "onReclaim": reclaim,
        }
        training = {"elasticBatch": "keepGlobal"}
        job = make_job(timeBudgetSeconds=budget, maxReplicas=1 + extra, adaptation=adaptation, training=training)
        place = workplace(job, prelude=SHORT_TRIALS + prelude, agent_url=agent_url)
        place.allocate(1 + extra)
        # The base takes fewer steps than who tries, so that the number of steps tells whose state is trained.
        place.pace = 3 * pace
        leader = place.start()
        place.pace = pace
        place.processes = [leader, *(place.start(index) for index in range(0 if late else extra))]
        return place

    return make


def goes_on_from(won, adaptation, place):
    """Wait for the end of an epoch: it is that which the worker began, after all the steps that it took."""
    epoch = until(lambda: [event for event in of(place, "EpochFinished") if event.time > adaptation.time], place)[0]
    assert epoch.depth == adaptation.depth_after
    events = place.events()
    began = next(number for number, event in enumerate(events) if event.type == "TrialsStarted")
    before = max((event.step for event in events[:began] if event.type == "EpochFinished"), default=0)
    assert 0 <= epoch.step - (before + won.steps) <= BATCHES


def test_one_extra_worker_tries_both_while_the_base_trains_on(tried):
    place = tried("Confirm", 1)
    (began,) = until(lambda: of(place, "TrialsStarted"), place)
    assert began.actions == ("Deepen(block0)", "Nothing")
    assert began.workers == 1
    before = place.report().step
    adaptation = decided(place)
    assert place.report().step > before, "the base trains on"
    grown, nothing = adaptation.arms
    assert (grown.action, nothing.action) == ("Deepen(block0)", "Nothing")
    assert grown.annealed
    assert nothing.annealed
    assert "validation loss when tried: Deepen(block0) " in adaptation.message
    if grown.loss < nothing.loss:
        assert adaptation.result is AdaptationResult.GROWN
        assert adaptation.depth_after == adaptation.depth_before + 1
    else:
        assert adaptation.result is AdaptationResult.DECLINED
        assert adaptation.reason is Reason.TRIAL_NOT_BETTER
    until(lambda: place.report().metrics and "2 members" in place.log.split("trial")[-1], place)


def test_training_goes_on_from_the_copy_that_won_a_race(tried):
    place = tried("Race", 2, GROWTH_WINS, reclaim="Distill")
    (began,) = until(lambda: of(place, "TrialsStarted"), place)
    assert began.workers == 2
    adaptation = decided(place)
    assert adaptation.result is AdaptationResult.GROWN
    won = next(arm for arm in adaptation.arms if arm.action == "Deepen(block0)")
    assert adaptation.message.startswith("validation loss when tried: Deepen(block0) ")
    assert adaptation.depth_after == adaptation.depth_before + 1
    goes_on_from(won, adaptation, place)
    until(lambda: "3 members" in place.log.split("AdaptationFinished")[-1], place)
    assert place.report().consultations == 1

    def saved() -> CheckpointState | None:
        found = CheckpointStore(place.checkpoints).complete()  # `load_latest` removes what the leader is writing
        kept = read_checkpoint(found[-1][1]).state if found else None
        return kept if kept is not None and kept.adaptations else None

    (size,) = ShrinkingState.model_validate(until(saved, place).shrinking).sizes
    assert size.state.architecture.depth == adaptation.depth_before, "a reclaim could not try the smaller model"


def test_one_extra_worker_races_against_the_base_itself(tried):
    place = tried("Race", 1, THERE_AT_ONCE + GROWTH_WINS)
    (began,) = until(lambda: of(place, "TrialsStarted"), place)
    assert began.actions == ("Deepen(block0)", "Nothing")
    before = place.events()[: place.events().index(began)]
    epochs = sum(event.type == "EpochFinished" for event in before)
    assert epochs == 1, "before its end the loss of the base is not known"
    adaptation = decided(place)
    assert set(re.findall(r"begins an epoch as (\w+)", place.log)) == {"Training"}
    assert adaptation.result is AdaptationResult.GROWN
    won, base = adaptation.arms
    assert (won.action, base.action, base.message) == ("Deepen(block0)", "Nothing", "the base itself")
    assert won.slices[0].share == base.slices[0].share
    assert not won.annealed
    goes_on_from(won, adaptation, place)


def test_a_race_that_would_be_over_too_late_is_not_begun_and_nothing_grows_untried(tried):
    place = tried("Race", 1, THERE_AT_ONCE + "rules.LATEST = dict.fromkeys(rules.LATEST, 0.0)\n")
    warned = until(lambda: of(place, "Warned"), place)[0].message
    assert re.fullmatch(r"Deepen\(block0\) is advised, and not tried: an epoch takes \d+% of the time left", warned)
    assert of(place, "TrialsStarted") == of(place, "AdaptationFinished") == []


@pytest.mark.parametrize("trials", ["Race", "Auto"])
def test_advice_not_to_grow_is_not_final_before_a_worker_can_try_a_growth(tried, agent_server, trials):
    def declines(request: dict[str, Any]) -> tuple[int, bytes]:
        status, answer = _knows_all(request)
        return status, json.dumps(json.loads(answer) | {"action": {"kind": "Nothing"}}).encode()

    url = agent_server(declines).url
    place = tried(
        trials,
        1,
        "import espalier_trainer.run.growing as growing\ngrowing._START_SHARE = 0\n" + GROWTH_WINS,
        agent_url=url,
        late=True,
    )
    until(lambda: [event for event in of(place, "Warned") if "is repeated once" in event.message], place)
    until(lambda: len(of(place, "EpochFinished")) > 3, place)
    assert of(place, "AdaptationFinished") == []
    place.processes.append(place.start(0))
    (began,) = until(lambda: of(place, "TrialsStarted"), place)
    assert began.actions == ("Deepen(block0)", "Nothing")
    assert decided(place).result is AdaptationResult.GROWN


@pytest.mark.parametrize("sure", [False, True])
def test_auto_waits_for_a_worker_exactly_where_a_trial_pays(tried, agent_server, sure):
    def advises(request: dict[str, Any]) -> tuple[int, bytes]:
        status, answer = _knows_all(request)
        found = json.loads(answer)
        for entry in found["probabilities"][:-1] if sure else ():
            entry["gain"] = {"mean": 0.05, "low": 0.0499, "high": 0.0501}
        return status, json.dumps(found).encode()

    server = agent_server(advises)
    # Blocks that unfold are never confirmed: only a race against the base shows something.
    place = tried("Auto", 1, GROWTH_WINS, agent_url=server.url, late=True, insertion="Unfold")
    if sure:
        adaptation = decided(place)
        assert (adaptation.result, adaptation.arms) == (AdaptationResult.GROWN, ())
        assert of(place, "Warned") == [], "it did not wait, so no worker was late"
        return
    until(lambda: len(of(place, "EpochFinished")) > 3, place)
    assert (of(place, "AdaptationFinished"), len(server.requests)) == ([], 1)
    place.processes.append(place.start(0))
    (began,) = until(lambda: of(place, "TrialsStarted"), place)
    assert began.actions == ("Deepen(block0)", "Nothing")
    assert decided(place).result is AdaptationResult.GROWN


def _knows_all(_request: dict[str, Any]) -> tuple[int, bytes]:
    """Advise the first growth, with a probability for each."""
    actions = [{"kind": "Deepen", "target": f"block{number}"} for number in range(3)] + [{"kind": "Nothing"}]
    answer = {
        "decisionId": "d-1",
        "action": actions[0],
        "policy": {"name": "test", "version": "7"},
        "probabilities": [{"action": each, "probability": 0.4 - 0.1 * number} for number, each in enumerate(actions)],
    }
    return 200, json.dumps(answer).encode()


def test_a_race_narrows_and_the_worker_that_is_let_go_trains_with_the_base_again(tried, agent_server):
    narrowing = (
        "rules.KEPT = {0.01: 1}\n"
        "rules.RACING = {task: {0.01: each[0.4]} for task, each in rules.RACING.items()}\n"
        "rules.SHARES = leading.SHARES = {rules.Trials.RACE: 0.03}\n"
    )
    url = agent_server(_knows_all).url
    place = tried("Race", 3, narrowing + GROWTH_WINS, budget=300.0, agent_url=url, pace=0.05)
    (began,) = until(lambda: of(place, "TrialsStarted"), place)
    assert began.actions == ("Deepen(block0)", "Deepen(block1)", "Nothing")
    until(lambda: "2 members" in place.log.rpartition("1 members")[2], place)
    adaptation = decided(place)
    *growths, nothing = adaptation.arms
    (gone,) = [arm for arm in growths if arm.loss is None]
    (left,) = [arm for arm in growths if arm.loss is not None]
    assert gone.message == "others were ahead after 1%"
    assert [one.share for one in gone.slices] == [0.01]
    assert [one.share for one in left.slices] == [one.share for one in nothing.slices] == [0.01, 0.03]
    assert adaptation.action == left.action
    until(lambda: "4 members" in place.log.rpartition("1 members")[2], place)


def test_the_agent_learns_what_the_arms_have_shown(tried, tmp_path):
    """By a real service, which keeps it."""
    with serving(tmp_path) as url:
        place = tried("Confirm", 1, agent_url=url)
        adaptation = decided(place)
        place.allocate(2, budget=0.001)  # which is used up
        until(lambda: not place.processes[0].is_alive(), place)
        (found,) = [one for one in decisions(tmp_path / "kept") if one.trial is not None]
    assert found.decision_id == adaptation.decision_id
    assert found.final_accuracy is not None
    assert found.trial.arms == adaptation.arms
    assert found.trial.action == (adaptation.action if adaptation.result is AdaptationResult.GROWN else "Nothing")
    assert all(arm.annealed for arm in found.trial.arms)
    assert set(trial_gains(found.trial.arms)) == {arm.action for arm in adaptation.arms} - {"Nothing"}


def test_where_nothing_wins_the_base_goes_on_as_it_was(tried):
    place = tried("Race", 2, NOTHING_WINS)
    adaptation = decided(place)
    assert adaptation.result is AdaptationResult.DECLINED
    assert adaptation.reason is Reason.TRIAL_NOT_BETTER
    assert adaptation.depth_after == adaptation.depth_before
    before = place.report().step
    until(lambda: place.report().step > before + 20, place)


def test_a_worker_that_is_taken_back_leaves_at_once_and_costs_only_the_trial(tried):
    place = tried("Confirm", 1)
    until(lambda: of(place, "TrialsStarted"), place)
    leader, extra = place.processes
    place.allocate(1)
    os.kill(extra.pid, signal.SIGTERM)
    assert ended(extra, place) == 0
    until(lambda: [event for event in of(place, "Warned") if event.reason == "TrialAbandoned"], place)
    assert of(place, "AdaptationFinished") == []
    assert place.report().consultations == 0
    before = place.report().step
    until(lambda: place.report().step > before + 20, place)
    assert leader.is_alive()
