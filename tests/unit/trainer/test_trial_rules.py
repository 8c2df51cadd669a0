"""What is tried on extra workers, and which arm wins: without processes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from espalier_core.estimates.gains import ACCURACY_SCALE, EVIDENCE, RACING, SHARES, SPREAD, Belief, LossScale
from espalier_core.types.advice import Action, ExpectedGain
from espalier_core.types.allocation import Allocation
from espalier_core.types.job import Insertion, Trials
from espalier_core.types.outcomes import MARKS
from espalier_core.types.report import AdaptationSource, Arm, Slice
from espalier_core.types.task import Task
from espalier_trainer.elastic.states import StateCopy, TrialRates
from espalier_trainer.growth.advisor import AdvisorDecision
from espalier_trainer.growth.consultation import Advised
from espalier_trainer.optimizers.schedules import Moment
from espalier_trainer.trials import rules
from espalier_trainer.trials.growth_trial import GrowthTrial, TrialConditions, begun, weighed
from espalier_trainer.trials.rules import TrialOrder, TrialResult
from espalier_trainer.trials.solo import SoloStep, SoloTrial
from espalier_trainer.user_loop.state import UserState

POINTS = [Action(kind="Deepen", target=name) for name in "abcdef"]
NOTHING = Action.nothing()
ALLOWED = (*POINTS, NOTHING)
RATES = TrialRates(grown=0.1, same=0.01, linear=True)
losses = st.none() | st.floats(allow_nan=True, allow_infinity=True, min_value=None)


def expects(mean: float, width: float = 0.02) -> ExpectedGain:
    return ExpectedGain(mean=mean, low=mean - width / 2, high=mean + width / 2)


def asked(advised: Action = POINTS[0], probabilities: dict[str, float] | None = None) -> Advised:
    decision = AdvisorDecision("one", advised, AdaptationSource.AGENT, "mine@1", probabilities or {})
    return Advised(decision, ALLOWED, 3.0, Allocation(generation=2, replicas=3, gpus=3, reason="ExtraGPUsGranted"), 0.1)


def trial(
    mode: Trials = Trials.RACE,
    workers: int = 2,
    network: Any = None,
    now: float = 0.0,
    loss: float | None = None,
    base: int = 1,
    **options: Any,
) -> GrowthTrial:
    names = tuple(f"worker{number}" for number in range(workers))
    conditions = TrialConditions(mode, names, workers + 1, 100.0, RATES, 7, loss=loss, base=base)
    found = begun(asked(**options), network, conditions, lambda: now)
    assert found is not None
    return found


def results(of: GrowthTrial, found: dict[str, float | None]) -> dict[str, str]:
    """Return what the workers of a trial send, with these losses by action."""
    texts = {}
    for worker, order in of.orders.items():
        arms = tuple(Arm(action=str(each), loss=found[str(each)]) for each in order.actions if str(each) in found)
        if arms:
            texts[worker] = TrialResult(trial=order.trial, arms=arms).model_dump_json()
    return texts


@given(
    st.sampled_from([Trials.OFF, Trials.CONFIRM, Trials.RACE]),  # Auto becomes one of them
    st.sampled_from(ALLOWED),
    st.lists(st.floats(0, 1), min_size=7, max_size=7),
    st.integers(0, 9),
)
def test_the_best_growths_are_tried_against_nothing(mode, advised, chances, workers):
    probabilities = {str(action): chance for action, chance in zip(ALLOWED, chances, strict=True)}
    growths = rules.ranked(advised, ALLOWED, probabilities, {})
    found = rules.arms(mode, growths, workers)
    if mode is Trials.OFF or not (advised.grows or any(chances[:-1])) or not workers:
        assert found == ()
        return
    flat = [action for actions in found for action in actions]
    assert all(probabilities[str(action)] for action in growths if action != advised)
    if advised.grows:
        assert flat[0] == advised
    # In a race of one worker the base is that arm.
    assert flat.count(NOTHING) == (mode is not Trials.RACE or workers > 1)
    assert len(flat) == len(set(flat))
    assert len(found) <= workers
    if mode is Trials.CONFIRM:
        assert len(flat) == 2
    others = [probabilities[str(action)] for action in flat[1:-1]]
    assert others == sorted(others, reverse=True)
    assert rules.keeps_winner(mode, found) == (mode is Trials.RACE)


def test_a_race_tries_the_best_actions_by_the_policys_probabilities():
    chances = {
        str(action): chance for action, chance in zip(ALLOWED, (0.1, 0.3, 0.05, 0.2, 0.1, 0.15, 0.1), strict=True)
    }
    found = rules.arms(Trials.RACE, rules.ranked(POINTS[1], ALLOWED, chances, {}), 4)
    assert found == ((POINTS[1],), (POINTS[3],), (POINTS[5],), (NOTHING,))


def test_where_nothing_is_advised_the_growths_that_gain_most_are_tried():
    chances = dict.fromkeys(map(str, ALLOWED), 0.1)
    gains = {
        str(action): expects(mean) for action, mean in zip(POINTS, (-0.3, 0.1, -0.2, -0.1, -0.3, -0.3), strict=True)
    }
    assert rules.ranked(NOTHING, ALLOWED, chances, gains)[:3] == (POINTS[1], POINTS[3], POINTS[2])
    assert rules.ranked(NOTHING, ALLOWED, {}, gains) == ()  # an agent that is away, and a policy that knows none


def test_a_fallback_without_probabilities_races_alone():
    assert rules.arms(Trials.RACE, rules.ranked(POINTS[0], ALLOWED, {}, {}), 4) == ((POINTS[0],), (NOTHING,))


@given(st.lists(losses, min_size=2, max_size=4))
def test_the_best_arm_has_the_lowest_loss_and_nothing_is_better_than_an_equal(found):
    arms = [
        Arm.model_construct(action=str(action), loss=loss)
        for action, loss in zip((NOTHING, *POINTS), found, strict=False)
    ]
    best = rules.best(arms, Trials.RACE, {}, ACCURACY_SCALE)
    finite = [arm.loss for arm in arms if arm.loss is not None and math.isfinite(arm.loss)]
    if arms[0].loss is None or not math.isfinite(arms[0].loss):
        assert best is None
        return
    assert best.loss == min(finite)
    if arms[0].loss == best.loss:
        assert best.action == "Nothing"


@given(
    st.floats(-0.1, 0.1),
    st.floats(0, 0.2),
    st.floats(-1, 1),
    st.sampled_from([Trials.CONFIRM, Trials.RACE]),
    st.sampled_from(Task),
)
def test_what_is_believed_lies_between_what_was_expected_and_what_was_seen(mean, width, ratio, mode, task):
    evidence = EVIDENCE[task][mode]
    after = Belief.of(expects(mean, width), task).after(ratio, evidence)
    ends = sorted([mean, evidence.slope * ratio])
    assert ends[0] - 1e-9 <= after <= ends[1] + 1e-9


def test_the_surer_the_advice_the_less_a_trial_moves_it():
    evidence = EVIDENCE[ACCURACY_SCALE.task][Trials.CONFIRM]
    moved = [Belief.of(expects(0.05, width), ACCURACY_SCALE.task).after(-0.5, evidence) for width in (0.0, 0.05, 0.2)]
    assert moved == sorted(moved, reverse=True)


def test_a_growth_that_is_expected_to_pay_survives_a_trial_that_says_little():
    arms = [Arm(action="Nothing", loss=1.0), Arm(action=str(POINTS[0]), loss=1.001)]
    assert rules.best(arms, Trials.CONFIRM, {str(POINTS[0]): expects(0.05)}, ACCURACY_SCALE).action == str(POINTS[0])
    assert rules.best(arms, Trials.CONFIRM, {}, ACCURACY_SCALE).action == "Nothing"


@given(st.sampled_from(Task), st.floats(-5, 5), st.floats(-5, 5), st.floats(0.5, 8))
def test_the_lower_loss_is_always_seen_as_better(task, nothing, grown, characters):
    seen = LossScale(task, characters).seen(nothing, grown)
    assert (seen > 0) <= (grown < nothing)
    assert -1 <= seen <= 1


def test_a_lower_loss_of_a_language_model_is_seen_in_bits_per_character():
    nats = {"validation_loss": 4 * math.log(2), "validation_bits_per_character": 2.0}  # two characters a token
    scale = LossScale.of(Task.LANGUAGE_MODEL, nats)
    assert scale.seen(4 * math.log(2), 3.5 * math.log(2)) == pytest.approx(0.25)
    assert LossScale.of(Task.LANGUAGE_MODEL, {}).characters_per_token == 1.0


def test_evidence_of_a_race_is_known_for_each_task_wherever_its_arms_are_compared():
    for task in Task:
        assert set(RACING[task]) == {*rules.KEPT, SHARES[Trials.RACE]}
        deviations = [RACING[task][share].deviation for share in sorted(RACING[task])]
        assert deviations == sorted(deviations, reverse=True)


def test_an_arm_of_a_race_is_measured_where_judgements_measure():
    assert SHARES[Trials.RACE] in MARKS


def test_arms_begin_with_the_rates_that_the_decision_would_bring():
    (order,) = trial(Trials.CONFIRM, 1).orders.values()
    assert order.actions == (POINTS[0], NOTHING)
    assert order.rates == (0.1, 0.01)
    assert order.seconds == pytest.approx(10)
    assert order.ends == 0
    assert not order.keep
    raced = list(trial(Trials.RACE, 2).orders.values())
    assert [each.rates for each in raced] == [(0.1,), (0.01,)]
    assert [each.seconds for each in raced] == [pytest.approx(60)] * 2
    assert [each.ends for each in raced] == [pytest.approx(0.4)] * 2  # as without a race, so that it can be kept
    assert [each.keep for each in raced] == [True, False]  # the model as it is goes on anyway


def test_one_worker_races_a_growth_against_the_base_itself():
    one = trial(Trials.RACE, 1, loss=2.0)
    (order,) = one.orders.values()
    assert order.actions == (POINTS[0],)
    assert order.seconds == pytest.approx(60)
    assert order.keep
    assert one.actions == (POINTS[0], NOTHING)
    text = results(one, {"Deepen(a)": 1.0})
    assert one.verdict(text, None, 2) is None  # the base is not so far
    object.__setattr__(one, "clock", lambda: 36.0)
    one.base_measured(1.5)
    assert one.verdict(text, None, 2) is None
    object.__setattr__(one, "clock", lambda: 84.0)
    one.base_measured(0.75)
    verdict = one.verdict(text, None, 2)
    assert verdict.winner == "worker0"
    # Halfway between 36 and 84, where the arm ended: not what the base has come to since.
    assert verdict.arms[1].loss == pytest.approx(math.sqrt(1.5 * 0.75))


def test_the_base_of_a_loop_that_does_not_evaluate_is_measured_now_and_then_and_once_after_the_slice():
    one, found = trial(Trials.RACE, 1, loss=2.0), []
    for second in range(0, 80, 2):
        object.__setattr__(one, "clock", lambda now=second: float(now))
        if one.base_due:
            one.base_measured(1.0)
            found.append(second)
    assert found == [6, 12, 18, 24, 30, 36, 42, 48, 54, 60]
    object.__setattr__(one, "base", [(0.0, 2.0)])
    object.__setattr__(one, "clock", lambda: 61.0)  # however long an epoch lasts
    assert one.base_due
    assert not trial(Trials.RACE, 2, loss=2.0).base_due
    assert not trial(Trials.CONFIRM, 1, loss=2.0).base_due


def test_an_arm_knows_where_the_job_stands_in_its_budget():
    """For scripts whose learning rate follows it; budget seconds may pass faster than those of the wall."""
    one = begun(asked(), None, TrialConditions(Trials.CONFIRM, ("x",), 2, 50.0, RATES, 0, moment=Moment(20.0, 120.0)))
    (order,) = one.orders.values()
    assert order.moment(0.0) == Moment(20.0, 120.0)
    assert order.moment(25.0) == Moment(70.0, 120.0)


def test_where_a_script_sets_the_rates_a_race_leaves_them_and_confirm_takes_them_to_0():
    script = TrialRates(1.0, 1.0, linear=False)
    for mode, workers, ends in ((Trials.CONFIRM, 1, 0.0), (Trials.RACE, 2, 1.0)):
        found = begun(asked(), None, TrialConditions(mode, ("x", "y")[:workers], 3, 50.0, script, 0))
        assert {(rate, order.ends) for order in found.orders.values() for rate in order.rates} == {(1.0, ends)}


@pytest.mark.parametrize(("base", "loss"), [(2, 1.0), (1, None)])
def test_a_base_that_is_faster_or_not_measured_is_no_arm(base, loss):
    """Then one worker tries both in turn."""
    (order,) = trial(Trials.RACE, 1, base=base, loss=loss).orders.values()
    assert order.actions == (POINTS[0], NOTHING)
    assert order.seconds == pytest.approx(10)
    assert not order.keep


def told(of: GrowthTrial, found: dict[str, list[float]]) -> dict[str, str]:
    """Return what the workers of a race tell, with these losses at the ends of their first slices."""
    return {
        worker: TrialResult(
            trial=order.trial,
            arms=(
                Arm(
                    action=str(order.actions[0]),
                    slices=tuple(
                        Slice(share=share, loss=loss)
                        for share, loss in zip(order.shares, found[str(order.actions[0])], strict=False)
                    ),
                ),
            ),
        ).model_dump_json()
        for worker, order in of.orders.items()
        if str(order.actions[0]) in found
    }


CHANCES = {str(action): 0.1 for action in ALLOWED}


@pytest.mark.parametrize(
    ("workers", "shares"), [(2, (0.6,)), (3, (0.6,)), (4, (0.4, 0.6)), (5, (0.4, 0.6)), (7, (0.2, 0.4, 0.6))]
)
def test_a_race_of_many_narrows(workers, shares):
    one = trial(workers=workers, probabilities=CHANCES)
    assert {order.shares for order in one.orders.values()} == {shares}
    assert one.actions[-1] == NOTHING


def test_the_growths_behind_do_not_go_on():
    one = trial(workers=5, probabilities=CHANCES)
    losses = {"Deepen(a)": [1.4], "Deepen(b)": [1.1], "Deepen(c)": [1.2], "Deepen(d)": [1.3]}
    assert one.narrowed(told(one, losses)) == ()  # nothing is not so far
    losses["Nothing"] = [1.25]
    assert set(one.narrowed(told(one, losses))) == {"worker0", "worker3"}
    assert one.narrowed(told(one, losses)) == ()  # those that are left go on
    ends = results(one, {"Deepen(b)": 1.0, "Deepen(c)": 0.9, "Nothing": 1.2})
    verdict = one.verdict(ends, None, 6)
    assert verdict.winner == "worker2"
    assert [arm.loss for arm in verdict.arms] == [None, 1.0, 0.9, None, 1.2]
    assert verdict.arms[0].message == "others were ahead after 40%"
    assert verdict.arms[0].slices == (Slice(share=0.4, loss=1.4),)


def test_a_race_of_seven_narrows_twice():
    one = trial(workers=7, probabilities=CHANCES)
    losses = {str(action): [float(place + 2), float(9 - place)] for place, action in enumerate((*POINTS, NOTHING))}
    first = one.narrowed(told(one, {action: found[:1] for action, found in losses.items()}))
    assert set(first) == {"worker4", "worker5"}
    assert set(one.narrowed(told(one, losses))) == {"worker0", "worker1"}


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=6), st.sampled_from([0.2, 0.4]), st.floats(0.1, 10))
def test_the_best_always_goes_on(losses, share, base):
    def arm(action: str, loss: float) -> Arm:
        return Arm(action=action, slices=(Slice(share=share, loss=loss),))

    growths = [arm(str(action), loss) for action, loss in zip(POINTS, losses, strict=False)]
    out = rules.behind(share, growths, arm("Nothing", base), {}, ACCURACY_SCALE)
    assert len(out) == max(0, len(growths) - rules.KEPT[share])
    left = [growth.slices[0].loss for growth in growths if growth.action not in out]
    assert min(left) == min(losses)


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0.01, 10)), min_size=2, max_size=5, unique_by=lambda one: one[0])
)
def test_a_loss_between_two_lies_between_them(measured):
    measured.sort()
    (before, first), (after, second) = measured[:2]
    found = rules.interpolated(measured, (before + after) / 2)
    assert min(first, second) - 1e-9 <= found <= max(first, second) + 1e-9
    assert rules.interpolated(measured, measured[-1][0] + 1) is None


def test_what_would_end_too_late_is_broken_off():
    """On a slow machine: of what is left, half may be gone before a growth is carried out, and nine tenths kept."""
    for mode, workers, most in ((Trials.CONFIRM, 1, 0.5), (Trials.RACE, 2, 0.9)):
        one = begun(asked(), None, TrialConditions(mode, ("x", "y")[:workers], 3, 8.0, RATES, 0), lambda: 0.0)
        assert one.until == pytest.approx(8.0 * most)
        object.__setattr__(one, "clock", lambda: 7.9)
        assert one.verdict({}, None, 3).best is None
        won = one.verdict(results(one, {"Deepen(a)": 1.0, "Nothing": 2.0}), None, 3)
        assert (won.best, won.why) == (None, "Deepen(a) won, and the epoch ended too late for it")


@pytest.mark.parametrize(("epoch", "begins"), [(0.0, True), (0.3, True), (0.5, False), (0.7, True), (0.95, False)])
def test_what_the_end_of_an_epoch_would_read_too_late_is_not_begun(epoch, begins):
    now = TrialConditions(Trials.RACE, ("x", "y"), 3, 8.0, RATES, 0, epoch=epoch)
    assert (begun(asked(), None, now) is not None) == begins
    assert (rules.worth([POINTS[0]], {}, Task.CLASSIFICATION, 2, confirms=False, epoch=epoch) is not None) == begins


def test_a_growth_that_won_is_taken_over_from_its_worker():
    one = trial()
    verdict = one.verdict(results(one, {"Deepen(a)": 1.0, "Nothing": 2.0}), None, 3)
    assert verdict.grows
    assert verdict.winner == "worker0"
    lost = one.verdict(results(one, {"Deepen(a)": 2.0, "Nothing": 1.0}), None, 3)
    assert not lost.grows
    assert lost.winner is None
    assert lost.best is not None


def test_it_is_waited_for_the_slowest_but_not_for_ever():
    one, half = trial(now=0.0), {"Deepen(a)": 1.0}
    assert one.verdict(results(one, half), None, 3) is None
    late = trial(now=0.0)
    object.__setattr__(late, "clock", lambda: late.until + 1)
    over = late.verdict(results(late, half), None, 3)
    assert over.best is None
    assert over.why == "results are missing"


def test_workers_that_are_taken_back_end_it_unless_the_others_will_do():
    one = trial(workers=3, probabilities={"Deepen(b)": 0.5})
    assert one.verdict(results(one, {"Deepen(a)": 1.0}), None, 3).why == "workers on the trial were taken back"
    rest = one.verdict(results(one, {"Deepen(b)": 1.0, "Nothing": 2.0}), None, 3)
    assert rest.winner == "worker1"


def test_results_of_an_earlier_trial_or_of_another_version_do_not_count():
    one, other = trial(), trial()
    stale = results(other, {"Deepen(a)": 1.0, "Nothing": 2.0})
    assert one.verdict(stale, None, 3) is None
    assert one.verdict({"worker0": "{", "worker1": "{}"}, None, 3) is None


def test_a_model_that_has_changed_meanwhile_ends_it():
    one = trial(network=object())
    verdict = one.verdict(results(one, {"Deepen(a)": 1.0, "Nothing": 2.0}), object(), 3)
    assert verdict.best is None
    assert verdict.why == "the model has changed meanwhile"


def test_without_a_worker_or_time_nothing_is_tried():
    assert begun(asked(), None, TrialConditions(Trials.CONFIRM, (), 1, 100.0, RATES, 0)) is None
    assert begun(asked(), None, TrialConditions(Trials.CONFIRM, ("one",), 2, 0.0, RATES, 0)) is None
    assert begun(asked(NOTHING), None, TrialConditions(Trials.RACE, ("one", "two"), 3, 100.0, RATES, 0)) is None


class Counting(SoloTrial):
    """A loop of four batches an epoch, in which each step takes a second and has its number as its loss."""

    def __init__(self, state: UserState, held: StateCopy) -> None:
        super().__init__(state, held, torch.ones(1, 2), Insertion.EXACT, lambda: False, lambda: self.now)
        self.now, self.left = 0.0, []

    def batches(self, epoch: int) -> int:
        return 4

    def step(self, epoch: int, cursor: int, rate: float, moment: Moment) -> Any:
        self.now += 1
        yield from ()
        return SoloStep(self.now)

    def loss(self, stop: Any) -> float:
        return 1.0

    def leave(self, epoch: int, *, keep: bool) -> Any:
        self.left.append((epoch, keep))
        yield from ()


@pytest.mark.parametrize(
    ("seconds", "epoch", "cursor", "total"),
    [(1, 3, 3, 10.0 + 1), (2, 3, 4, 10.0 + 1 + 2), (4, 4, 2, 3.0 + 4), (6, 4, 4, 3.0 + 4 + 5 + 6), (7, 5, 1, 7.0)],
)
def test_the_losses_of_the_epoch_that_an_arm_is_in_are_kept_with_it(make_checkpoint, seconds, epoch, cursor, total):
    """Who goes on with its copy divides their sum by all batches of the epoch."""
    model = nn.Linear(2, 2)
    state = UserState(model, torch.optim.SGD(model.parameters(), lr=0.1), [])
    held = StateCopy(state)
    loop = Counting(state, held)
    began = {"epoch": 3, "cursor": 2, "epoch_loss_sum": 10.0, "schedule": state.state(), "optimizer_groups": ()}
    held.note(make_checkpoint().state.model_copy(update=began))
    order = TrialOrder(
        trial="t", actions=(NOTHING,), rates=(0.1,), ends=1, seconds=seconds, shares=(0.5, 1.0), seed=0, keep=True
    )
    line = SimpleNamespace(dismissed=lambda: False, report=lambda text: None)
    with pytest.raises(StopIteration):
        next(loop(order.model_dump_json(), line))
    found = held.capture().state
    assert (found.epoch, found.cursor, found.epoch_loss_sum) == (epoch, cursor, total)
    assert loop.left == [(epoch, True)]


def weighed_trial(mode: Trials, workers: int, **options: Any) -> tuple[Advised, GrowthTrial | None]:
    names = tuple(f"worker{number}" for number in range(workers))
    now = TrialConditions(mode, names, workers + 1, 100.0, RATES, 7, **options)
    advised = weighed(asked(), now, workers)
    return advised, begun(advised, None, now, lambda: 0.0)


def test_auto_races_a_growth_that_nobody_knows():
    advised, found = weighed_trial(Trials.AUTO, 2)
    assert found.mode is advised.worth.kind is Trials.RACE
    assert advised.untried == f"not tried first: {advised.worth}"


def test_auto_tries_nothing_without_workers_and_nothing_short_of_a_growth_that_unfolds():
    assert weighed_trial(Trials.AUTO, 0) == (asked(), None)
    assert weighed_trial(Trials.AUTO, 1, base=2, confirms=False)[1] is None
    assert weighed_trial(Trials.AUTO, 1, loss=1.0, confirms=False)[1].mode is Trials.RACE


@given(
    st.lists(st.tuples(st.floats(-0.2, 0.2), st.floats(0, 0.3)), min_size=1, max_size=6),
    st.sampled_from(Task),
    st.integers(0, 6),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
)
def test_the_worth_of_a_trial_is_that_of_arms_which_the_workers_can_try(found, task, workers, base, races, confirms):
    growths = POINTS[: len(found)]
    gains = {str(action): expects(*one) for action, one in zip(growths, found, strict=False)}
    best = rules.worth(growths, gains, task, workers, base=base, races_base=races, confirms=confirms)
    if best is None:
        assert not workers or (not confirms and workers == 1)
        return
    assert workers
    assert confirms or best.kind is Trials.RACE
    assert best.workers <= workers
    tried = rules.arms(best.kind, growths, best.workers, base=base if races else 0)
    assert rules.keeps_winner(best.kind, tried) == (best.kind is Trials.RACE)
    assert 0 < best.cost <= 0.1 * SPREAD[task] * best.workers * SHARES[best.kind] * 2


@given(st.sampled_from([Trials.CONFIRM, Trials.RACE]), st.integers(1, 9))
def test_workers_are_lent_until_their_arm_ends(mode, workers):
    tried = rules.arms(mode, POINTS, workers)
    most = SHARES[mode] * sum(map(len, tried))
    assert 0 < rules.lent(mode, tried) <= most + 1e-9
    if len(tried) <= 3:  # nothing is narrowed
        assert rules.lent(mode, tried) == pytest.approx(most)
