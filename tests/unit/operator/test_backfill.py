"""Backfilling: who starts before a job that waits, and that nobody delays it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st

import sweeps
from espalier_core.types.reasons import Reason
from espalier_operator.model import JobFacts, Node, Rules, Snapshot, Worker, WorkerState
from espalier_operator.model.actions import Admit, Plan
from espalier_operator.model.constraints import ANYWHERE, Constraints
from espalier_operator.model.queues import QueueLimits, Quota
from espalier_operator.planner import plan
from espalier_operator.planner.lifecycle import ends_by
from operator_world import facts
from operator_world.facts import FAIR, NOW, base_on, node, running_on, world

RULES = Rules(startup_seconds=10.0, evaluation_seconds=5.0)
OVERHEAD = 20.0
"""Seconds by which a job that starts may exceed its budget: start-up, grace and evaluation."""


def waits(key: str, workers: int = 1, budget: float = 100.0, **changes: Any) -> JobFacts:
    return facts.job(key, workers, time_budget_seconds=budget, grace_seconds=5.0, **changes)


def runs(job: JobFacts, used: float = 0.0, gpu_type: str = "a") -> JobFacts:
    return replace(job, admitted_at=0.0, gpu_type=gpu_type, used_seconds=used, **facts.TRAINS)


decide = partial(facts.decide, rules=RULES)


def admitted(planned: Plan) -> set[str]:
    return {action.job for action in planned.actions if isinstance(action, Admit)}


def starts_by(planned: Plan, job: str) -> float | None:
    return planned.refusals[job].starts_by


HOLDER = runs(waits("holder", 3, budget=200.0), used=50.0)
"""It ends by NOW + 160: what is left of its budget, 5 of grace and 5 to evaluate."""
ALMOST_FULL = node("n", 4), *running_on("n", HOLDER)


@pytest.mark.parametrize(("budget", "is_in_time"), [(140.0, True), (141.0, False)])
def test_a_job_that_ends_in_time_starts_on_gpus_that_are_kept(budget: float, is_in_time: bool) -> None:
    planned = decide(*ALMOST_FULL, waits("head", 4, at=1), waits("other", budget=budget, at=2))
    assert admitted(planned) == ({"other"} if is_in_time else set())
    assert is_in_time or planned.refusals["other"].reason is Reason.NO_FREE_GPU
    assert starts_by(planned, "head") == NOW + 160


def test_what_a_job_waits_for_is_planned_again_once_it_would_end_too_late() -> None:
    """Then the GPU that is being given back is no longer kept for it."""
    leaving = facts.foreign(1, "n", state=WorkerState.TERMINATING)
    planned = decide(*ALMOST_FULL, waits("head", 4, at=1), waits("short", budget=130.0, at=2), leaving)
    assert not admitted(planned)
    assert starts_by(planned, "head") == NOW + 160
    assert starts_by(planned, "short") is None, "it gets what is given back"
    assert planned.wake_at == pytest.approx(NOW + 160 - (130.0 + OVERHEAD), abs=0.01)


def test_a_long_job_starts_on_what_the_head_does_not_need() -> None:
    planned = decide(*ALMOST_FULL, waits("head", 3, at=1), waits("long", budget=1e6, at=2))
    assert admitted(planned) == {"long"}, "three GPUs are enough for the head when the holder ends"
    many = [waits(f"long{n}", budget=1e6, at=2) for n in range(4)]
    planned = decide(*ALMOST_FULL, node("o", 2), waits("head", 4, at=1), many)
    assert len(admitted(planned)) == 2, "six GPUs, of which the holder has three now, and the head four later"


def test_the_second_that_waits_is_not_delayed_either() -> None:
    second = node("m", 2), *running_on("m", runs(waits("second holder"), used=50.0))
    waiting = waits("head", 2, at=1, gpus_per_worker=2), waits("next", 1, at=2, gpus_per_worker=2)
    planned = decide(*ALMOST_FULL, *second, *waiting, waits("long", budget=1e6, at=3))
    assert starts_by(planned, "head") == NOW + 160
    assert starts_by(planned, "next") is None or starts_by(planned, "next") >= NOW + 60
    assert not admitted(planned) or admitted(planned) == {"long"}


def test_a_job_keeps_its_quota_while_it_waits_for_gpus() -> None:
    queues = QueueLimits(name="q", quotas=(Quota(nominal=4),)), QueueLimits(name="default")
    waiting = waits("head", 4, at=1, queue="q"), waits("short", budget=10.0, at=2, queue="q")
    planned = decide(*ALMOST_FULL, *waiting, queues)
    assert not admitted(planned)
    assert planned.refusals["short"].reason is Reason.QUOTA_EXCEEDED
    assert starts_by(planned, "head") == NOW + 160


def test_who_would_never_fit_keeps_nothing() -> None:
    given = node("n", 5), running_on("n", HOLDER), facts.foreign(1, "n")
    planned = decide(*given, waits("head", 5, at=1), waits("long", budget=1e6, at=2))
    assert admitted(planned) == {"long"}
    assert starts_by(planned, "head") is None


def test_the_gpu_budget_ends_a_job_earlier() -> None:
    short = waits("short", budget=1e6, at=2, gpu_seconds_budget=100.0)
    planned = decide(*ALMOST_FULL, waits("head", 4, at=1), short)
    assert admitted(planned) == {"short"}, "100 s for its GPU-seconds, 30 to stop and 10 to start"


def test_only_so_many_different_gangs_are_tried() -> None:
    wide = [waits(f"ns/wide{size}", size, at=float(size)) for size in (4, 3, 2)]
    alike = [waits(f"ns/alike{number}", 4, at=10.0 + number) for number in range(5)]
    late = waits("ns/late", budget=10.0, at=20)
    for depth, expected in ((3, set()), (4, {"ns/late"})):
        planned = decide(*ALMOST_FULL, wide, alike, late, rules=replace(RULES, backfill_depth=depth, reservations=1))
        assert admitted(planned) == expected, "those alike are not tried again"
        assert planned.refusals["ns/alike0"].reason is Reason.NO_FREE_GPU


def test_the_gangs_of_one_tenant_do_not_keep_those_of_another_from_being_tried() -> None:
    """Each job of `a` would fit on empty nodes, and no two are alike."""
    holder = node("n", 16), running_on("n", runs(waits("holder", 13, budget=1e5)))
    many = [waits(f"a/{size}", size, budget=1e5, at=1) for size in range(6, 12)]
    for short, expected in (("b/short", {"b/short"}), ("a/short", set())):  # `a` has had its share
        late, rules = waits(short, 2, budget=10.0, at=2), replace(RULES, backfill_depth=4)
        assert admitted(decide(*holder, many, late, rules=rules)) == expected


@pytest.mark.parametrize(("cpus", "starts"), [(6000, True), (5000, False)])
def test_other_resources_are_kept_too(cpus: int, starts: bool) -> None:
    """The holder gives 3000 back and the head needs 4500, so 1500 of what is free are kept for it."""
    holder = replace(HOLDER, terms=replace(HOLDER.terms, constraints=Constraints(requests=(("cpu", 1000),))))
    wish = Constraints(requests=(("cpu", 1500),))
    waiting = waits("head", 3, at=1, gpus_per_worker=2, constraints=wish), waits("long", 1, 1e6, at=2, constraints=wish)
    planned = decide(node("n", 8, resources={"cpu": cpus}), running_on("n", holder), *waiting)
    assert (admitted(planned) == {"long"}) is starts


class History:
    """Jobs that run as long as they may, or less, on nodes that stay."""

    def __init__(
        self, nodes: tuple[Node, ...], jobs: dict[str, JobFacts], fractions: dict[str, float], rules: Rules
    ) -> None:
        """Begin; `fractions` is by job the part of its longest time that it runs."""
        self.nodes, self.jobs, self.fractions, self.rules = nodes, jobs, fractions, rules
        self.now = 0.0
        self.workers: dict[str, list[Worker]] = {}
        self.ends: dict[str, float] = {}
        self.started: dict[str, float] = {}

    def __repr__(self) -> str:
        nodes = [f"{node.name} {node.allocatable}{node.gpu_type} {node.labels} {node.resources}" for node in self.nodes]
        jobs = [
            f"{job.key} {job.terms.min_replicas}x{job.terms.gpus_per_worker} {job.terms.time_budget_seconds} s "
            f"{job.terms.priority} {job.terms.gpu_type} {job.terms.constraints}"
            for job in self.jobs.values()
        ]
        return "\n".join([*nodes, *jobs, str(self.fractions), f"{self.rules.reservations} reservations"])

    def snapshot(self) -> Snapshot:
        jobs = dict(self.jobs)
        for key, since in self.started.items():
            job = jobs[key]
            jobs[key] = replace(runs(job, self.now - since, job.gpu_type or ""), admitted_at=since)
        workers = [worker for some in self.workers.values() for worker in some]
        return world(self.nodes, workers, [*jobs.values()], now=self.now, rules=self.rules)

    def tick(self) -> Plan:
        """Plan, and start what was admitted where the plan said."""
        planned = plan(self.snapshot(), FAIR, self.now)
        for action in planned.actions:
            if isinstance(action, Admit):
                job = self.jobs[action.job] = replace(self.jobs[action.job], gpu_type=action.gpu_type)
                self.started[job.key] = self.now
                places = planned.placements[job.key].base
                self.workers[job.key] = base_on(job, *(places[index] or "" for index in range(job.terms.min_replicas)))
                longest = ends_by(job, self.now, self.rules) - self.now
                self.ends[job.key] = self.now + longest * self.fractions[job.key]
        self.check_gpus()
        return planned

    def advance(self) -> bool:
        """Go on to the next end of a job; return False where none runs."""
        if not self.ends:
            return False
        self.now = max(self.now, min(self.ends.values()))
        for key in [key for key, end in self.ends.items() if end <= self.now + 1e-6]:
            del self.ends[key], self.workers[key], self.jobs[key], self.started[key]
        return True

    def check_gpus(self) -> None:
        for machine in self.nodes:
            held = sum(worker.gpus for some in self.workers.values() for worker in some if worker.node == machine.name)
            assert held <= machine.allocatable, f"{held} GPUs held on {machine}"


WISHES = (ANYWHERE, Constraints(node_selector=(("zone", "east"),)), Constraints(requests=(("cpu", 3),)))


@st.composite
def histories(draw: st.DrawFn) -> History:
    nodes = tuple(
        node(
            f"n{number}",
            draw(st.integers(1, 6)),
            gpu_type=draw(st.sampled_from(("a", "a", "b"))),
            labels={"zone": draw(st.sampled_from(("east", "west")))},
            resources=draw(st.sampled_from(({}, {"cpu": 8}))),
        )
        for number in range(draw(st.integers(1, 4)))
    )
    jobs = {}
    for number in range(draw(st.integers(2, 12))):
        key = f"j{number:02}"
        jobs[key] = waits(
            key,
            draw(st.integers(1, 5)),
            draw(st.sampled_from((10.0, 50.0, 100.0, 400.0))),
            at=float(number),
            gpus_per_worker=draw(st.sampled_from((1, 1, 1, 2, 3))),
            priority=draw(st.sampled_from((0, 0, 1))),
            only_on=draw(st.sampled_from((None, None, "a"))),
            constraints=draw(st.sampled_from(WISHES)),
        )
    fractions = {key: draw(st.sampled_from((0.2, 0.9, 1.0))) for key in jobs}
    rules = Rules(startup_seconds=0.0, evaluation_seconds=0.0, reservations=draw(st.sampled_from((1, 2, 8))))
    return History(nodes, jobs, fractions, rules)


@seed(sweeps.SEED)
@settings(
    max_examples=sweeps.size("queues of simulated jobs", 10_000),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    report_multiple_bugs=False,
)
@given(histories())
def test_nobody_delays_those_who_keep_gpus(history: History) -> None:
    """No start changes when another job starts at the latest; and the first of the queue does start by then.

    Of the others one may start later: those before it end sooner than they might, and the next takes other nodes.
    """
    promised: dict[str, float] = {}
    while True:
        planned = history.tick()
        note(f"{history.now:g}: {[*planned.actions]} {planned.refusals}")
        for head in [key for key in planned.refusals if starts_by(planned, key) is not None][:1]:
            assert starts_by(planned, head) <= promised.get(head, math.inf) + 1e-6, f"{head} was told another time"
            promised[head] = starts_by(planned, head)
        for key in history.started:
            assert history.started[key] <= promised.get(key, history.now) + 1e-6, f"{key} started late"
        again = plan(history.snapshot(), FAIR, history.now)
        assert not again.actions, "a plan that was carried out is followed by an empty one"
        for key in planned.refusals:
            assert starts_by(again, key) == starts_by(planned, key), f"{key} keeps the same GPUs"
        if not history.advance():
            break
    rest = [key for key in history.jobs if planned.refusals[key].reason not in (Reason.TOO_LARGE, Reason.UNSCHEDULABLE)]
    assert not rest, "who fits starts at last"
