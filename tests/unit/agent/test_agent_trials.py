"""What trials have shown reaches the service with the outcome, and teaches: the whole round with a real service."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs_world import PATIENCE, outcome, poor, request, run, storing
from scipy.special import stdtrit
from test_agent_from_history import ACTIONS, decision

from agent_service import serving
from espalier_agent.data import carried_tables
from espalier_agent.evaluation.gate import (
    OnTrials,
    clustered_interval,
    compare_on_trials,
    student_quantile,
    worse_on_trials,
)
from espalier_agent.history import HistoryDecision, decisions
from espalier_agent.history.episodes import gather, split
from espalier_agent.history.schema import DecisionRecord
from espalier_agent.policies.advice import decide
from espalier_agent.policies.policy import load_policy, save_policy
from espalier_agent.tables.tree import DecisionTree, decision_tree
from espalier_core.estimates.gains import EVIDENCE, RACING, SHARES, trial_gains
from espalier_core.types.adaptation import Trials
from espalier_core.types.advice import AdviceResponse, TrialOutcome
from espalier_core.types.report import Arm, Slice
from espalier_core.types.task import Task
from espalier_lab.intervals import Interval

JOBS = 60
RACED = SHARES[Trials.RACE]


def arm(action: str, *losses: float, annealed: bool = False, shares: tuple[float, ...] = (RACED,)) -> Arm:
    slices = tuple(Slice(share=share, loss=loss) for share, loss in zip(shares, losses, strict=False))
    return Arm(action=action, loss=losses[-1], annealed=annealed, slices=slices)


def worth(tree: DecisionTree) -> Mapping[str, float]:
    """Return the accuracy to which each first action leads, with nothing after it."""
    nothing = len(tree.actions) - 1
    by_sequence = dict(zip(tree.sequences, tree.accuracies, strict=True))
    rest = (nothing,) * (tree.decisions - 1)
    return {str(action): by_sequence[(place, *rest)] for place, action in enumerate(tree.actions)}


def run_job(client: httpx.Client, tree: DecisionTree, job: str, number: int) -> None:
    """Ask, race what is advised against two other growths and nothing, and report what came of it."""
    asked = request(tree, 0, job)
    advice = AdviceResponse.model_validate(client.post("/v1/advice", json=asked.to_json()).json())
    found = worth(tree)
    others = [str(action) for action in tree.actions if action.grows and action != advice.action]
    names = {str(advice.action), others[number % len(others)], others[(number + 1) % len(others)], "Nothing"}
    arms = tuple(arm(name, 1.5 - found[name]) for name in sorted(names))
    best = max(names, key=lambda name: found[name])
    tried = TrialOutcome(decision_id=advice.decision_id, action=best, arms=arms)
    report = outcome(advice.decision_id, accuracy=found[best], job=job, trials=(tried,))
    client.post("/v1/outcomes", json=report.to_json()).raise_for_status()


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.parametrize("learner", ["trees", "expected"])
def test_a_service_learns_from_the_arms_of_trials(learner: str, tmp_path: Path) -> None:
    table = carried_tables("digits")[0]
    tree, served, kept = decision_tree(table), tmp_path / "served", tmp_path / "kept"
    before = poor(table, 0.1)
    save_policy(before, served)
    options = ["--explore", "0.2"] if learner == "expected" else []  # of what is tried, no probability is needed
    with serving(tmp_path, *options) as url, httpx.Client(base_url=url, timeout=60) as client:
        for number in range(JOBS):
            run_job(client, tree, f"job-{number}", number)
        history = gather(decisions(kept))
        assert len(history.tried) == JOBS
        assert history.episodes == ()  # nothing was decided by the agent
        assert history.certain == 0
        fields = ["--set", "updates=60", "--set", "learning_rate=.005", "--from", served]
        new = tmp_path / "new"
        more = fields if learner == "expected" else ["--learner", "trees"]
        run("learn", "--without-tables", "--from-history", kept, *more, "--output", new, exits=0)
        few = ["--least-effective", 3]  # which jobs are held out depends on their random ids
        judged = json.loads(
            run("promote", "--policy", new, "--to", served, "--from-history", kept, *few, "--json", exits=0).stdout
        )
        assert "history" not in judged
        assert judged["trials"]["difference"] > 0
        after = load_policy(new)
        assert after.lineage.history.trials + after.lineage.history.held_out_episodes == JOBS
        found = worth(tree)
        chosen = decide(after, request(tree, 0, "new")).action
        assert found[str(chosen)] > found[str(decide(before, request(tree, 0, "new")).action)] + 0.05
        save_policy(before, tmp_path / "worse")
        refused = run("promote", "--policy", tmp_path / "worse", "--to", served, "--from-history", kept, *few, exits=3)
        assert "held-out trials" in refused.stderr


def test_a_report_names_trials_of_its_own_decisions_only(tmp_path: Path) -> None:
    table = carried_tables("digits")[0]
    tree, kept = decision_tree(table), tmp_path / "kept"
    save_policy(poor(table, 0.1), tmp_path / "served")
    with serving(tmp_path) as url, httpx.Client(base_url=url, timeout=60) as client:
        asked = request(tree, 0, "mine").to_json()
        mine = AdviceResponse.model_validate(client.post("/v1/advice", json=asked).json()).decision_id

        def report(job: str, decided: str, tried: str, loss: float) -> None:
            trial = TrialOutcome(decision_id=tried, action="Nothing", arms=(arm("Nothing", 1.0), arm("x", loss)))
            body = outcome(decided, job=job, trials=(trial,))
            client.post("/v1/outcomes", json=body.to_json()).raise_for_status()

        report("other", mine, mine, 0.1)
        report("other", "another", mine, 0.1)
        (found,) = [one for one in decisions(kept) if one.decision_id == mine]
        assert found.trial is None
        report("mine", mine, mine, 0.5)
        report("mine", mine, mine, 0.9)  # a leader that was started again reports again: the later one holds
        (found,) = [one for one in decisions(kept) if one.decision_id == mine]
        assert found.trial.arms[1].loss == 0.9


def test_growths_are_compared_at_the_longest_slice_that_nothing_has_finished() -> None:
    shares = (0.4, RACED)
    nothing = arm("Nothing", 1.0, 0.9, shares=shares)
    dropped = arm("dropped", 1.1, shares=shares)
    survived = arm("survived", 1.05, 0.8, shares=shares)
    found = trial_gains((nothing, dropped, survived))
    assert found["dropped"].gain < 0 < found["survived"].gain
    assert found["dropped"].deviation == RACING[Task.CLASSIFICATION][0.4].deviation
    assert found["survived"].deviation == EVIDENCE[Task.CLASSIFICATION][Trials.RACE].deviation
    assert trial_gains((dropped, survived)) == {}
    annealed = arm("annealed", 0.5, annealed=True, shares=(0.1,))
    assert "annealed" not in trial_gains((nothing, annealed))


@given(st.floats(0.01, 10), st.floats(0.01, 10))
def test_a_lower_loss_shows_a_gain(nothing: float, grown: float) -> None:
    (found,) = trial_gains((arm("Nothing", nothing), arm("grown", grown))).values()
    assert (found.gain > 0) <= (grown < nothing)


def test_a_policy_is_not_judged_by_what_nobody_tried() -> None:
    policy = poor(carried_tables("digits")[0], 0.1)
    assert compare_on_trials(policy, policy, ()).difference is None
    few = OnTrials(decisions=30, jobs=3, changed=0, changed_jobs=0, untold=0, difference=0.1, low=0.05, high=0.15)
    assert "too few trials" in worse_on_trials(few, margin=0.01, least_effective=10)[0]
    untold = few.model_copy(update={"jobs": 30, "changed": 20, "changed_jobs": 2, "untold": 9})
    assert "what would change" in worse_on_trials(untold, margin=0.01, least_effective=10)[0]
    assert worse_on_trials(untold.model_copy(update={"changed_jobs": 12}), margin=0.01, least_effective=10) == []


def tried(job: str, name: str) -> HistoryDecision:
    arms = (arm("Nothing", 1.0), *(arm(str(action), 0.9) for action in ACTIONS if action.grows))
    found: HistoryDecision = decision(name, job=job, trial=TrialOutcome(decision_id=name, action="Nothing", arms=arms))
    return found


@given(st.integers(0, 2**32 - 1))
def test_all_trials_of_a_job_are_held_out_or_none(seed: int) -> None:
    found = gather([tried(f"job-{number // 3}", f"{number}") for number in range(30)]).tried
    assert len(found) == 30
    learnt, held_out = split(found, 0.25, seed)
    assert not {one.decision.job for one in learnt} & {one.decision.job for one in held_out}


def test_trials_of_one_job_promote_nothing() -> None:
    policy = poor(carried_tables("digits")[0], 0.1)
    for names in (["a"], ["a", "b", "c"]):
        judged = compare_on_trials(policy, policy, gather([tried("job", name) for name in names]).tried)
        assert (judged.decisions, judged.jobs, judged.low, judged.high) == (len(names), 1, None, None)
        assert "2 are required" in worse_on_trials(judged, margin=0.01, least_effective=1)[0]


def test_promote_says_that_trials_of_one_job_are_too_few(tmp_path: Path) -> None:
    table, kept = carried_tables("digits")[0], tmp_path / "kept.db"
    policy, asked = poor(table, 0.1), request(decision_tree(table), 0, "job")
    for folder in ("new", "served"):
        save_policy(policy, tmp_path / folder)
    arms = tuple(arm(str(action), 1.0) for action in asked.actions())
    with storing(kept) as store:
        store.keep(DecisionRecord("d", datetime.now(UTC), asked, decide(policy, asked), policy.identity), 1)
        trial = TrialOutcome(decision_id="d", action="Nothing", arms=arms)
        store.report(outcome("d", trials=(trial,))).result(PATIENCE)
    refused = run("promote", "--policy", tmp_path / "new", "--to", tmp_path / "served", "--from-history", kept, exits=3)
    assert "1 held out" in refused.stdout
    assert "gain +0.0000 (too few jobs for an interval)" in refused.stdout
    assert "refused: too few trials" in refused.stderr


@given(st.integers(1, 2000))
def test_the_quantile_is_that_of_students_t(degrees: int) -> None:
    assert student_quantile(degrees) == pytest.approx(float(stdtrit(degrees, 0.975)), rel=1e-9)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=20))
def test_values_of_their_own_groups_have_the_usual_interval(values: list[float]) -> None:
    found = clustered_interval(values, [str(place) for place in range(len(values))])
    assert found == pytest.approx(Interval.of(values)[1:], abs=1e-9)


def test_an_interval_of_groups_seldom_excludes_their_true_mean() -> None:
    chance, many, excluded = random.Random(0), 1000, 0
    for _ in range(many):
        jobs = [chance.gauss(0, 1) for _ in range(10)]
        values = [job + chance.gauss(0, 0.5) for job in jobs for _ in range(5)]
        low, high = clustered_interval(values, [str(number // 5) for number in range(50)]) or (0.0, 0.0)
        excluded += not low <= 0 <= high
    assert 0.03 < excluded / many < 0.07, "that of 50 independent values excludes it in a third of the cases"
