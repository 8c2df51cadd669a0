"""What trials have shown reaches the service with the outcome, and teaches: the whole round with a real service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs_world import poor, request
from test_agent_goes_on import run

from agent_service import serving
from espalier_agent.data import carried_tables
from espalier_agent.evaluation.on_trials import OnTrials, compare_on_trials, worse_on_trials
from espalier_agent.history import decisions
from espalier_agent.history.episodes import gather
from espalier_agent.policies.advice import decide
from espalier_agent.policies.files import load_policy, save_policy
from espalier_agent.tables.tree import DecisionTree, decision_tree
from espalier_api.adaptation import Trials
from espalier_api.advice import AdviceResponse, OutcomeReport, TrialOutcome
from espalier_api.report import Arm, Slice
from espalier_api.trials import EVIDENCE, RACING, SHARES, gains_seen

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
    report = OutcomeReport(
        job=job,
        decision_ids=(advice.decision_id,),
        final_accuracy=found[best],
        time_budget_seconds=asked.time_budget_seconds,
        trials=(TrialOutcome(decision_id=advice.decision_id, action=best, arms=arms),),
    )
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
        run("learn", "--without-tables", "--from-history", kept, *more, "-o", new)
        few = ["--least-effective", 3]  # which jobs are held out depends on their random ids
        judged = json.loads(
            run("promote", "--policy", new, "--to", served, "--from-history", kept, *few, "--json").stdout
        )
        assert "history" not in judged
        assert judged["trials"]["difference"] > 0
        after = load_policy(new)
        assert after.lineage.history is not None
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
            body = OutcomeReport(
                job=job, decision_ids=(decided,), final_accuracy=0.5, time_budget_seconds=9, trials=(trial,)
            )
            client.post("/v1/outcomes", json=body.to_json()).raise_for_status()

        report("other", mine, mine, 0.1)
        report("other", "another", mine, 0.1)
        (found,) = [one for one in decisions(kept) if one.decision_id == mine]
        assert found.trial is None
        report("mine", mine, mine, 0.5)
        report("mine", mine, mine, 0.9)  # a leader that was started again reports again: the later one holds
        (found,) = [one for one in decisions(kept) if one.decision_id == mine]
        assert found.trial is not None
        assert found.trial.arms[1].loss == 0.9


def test_growths_are_compared_at_the_longest_slice_that_nothing_has_finished() -> None:
    shares = (0.4, RACED)
    nothing = arm("Nothing", 1.0, 0.9, shares=shares)
    dropped = arm("dropped", 1.1, shares=shares)
    survived = arm("survived", 1.05, 0.8, shares=shares)
    found = gains_seen((nothing, dropped, survived))
    assert found["dropped"].gain < 0 < found["survived"].gain
    assert found["dropped"].deviation == RACING[0.4].deviation
    assert found["survived"].deviation == EVIDENCE[Trials.RACE].deviation
    assert gains_seen((dropped, survived)) == {}
    annealed = arm("annealed", 0.5, annealed=True, shares=(0.1,))
    assert "annealed" not in gains_seen((nothing, annealed))


@given(st.floats(0.01, 10), st.floats(0.01, 10))
def test_a_lower_loss_shows_a_gain(nothing: float, grown: float) -> None:
    (found,) = gains_seen((arm("Nothing", nothing), arm("grown", grown))).values()
    assert (found.gain > 0) <= (grown < nothing)


def test_a_policy_is_not_judged_by_what_nobody_tried() -> None:
    policy = poor(carried_tables("digits")[0], 0.1)
    assert compare_on_trials(policy, policy, ()).difference is None
    few = OnTrials(decisions=3, changed=0, untold=0, difference=0.1, low=0.05, high=0.15)
    assert "too few trials" in worse_on_trials(few, margin=0.01, least_effective=10)[0]
    untold = OnTrials(decisions=30, changed=2, untold=9, difference=0.1, low=0.05, high=0.15)
    assert "what would change" in worse_on_trials(untold, margin=0.01, least_effective=10)[0]
    assert worse_on_trials(untold.model_copy(update={"changed": 12}), margin=0.01, least_effective=10) == []
