"""Adversarial histories of an operator in a shared cluster, and that each clause fails where the operator is broken.

`make histories` plays a thousand of them, of 500 steps each. `operator_world.history.clauses` says what must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest

import sweeps
from espalier_core.k8s.errors import QUOTA_EXCEEDED, Status
from espalier_core.types.job import DEFAULT_CONTROLLER
from espalier_core.types.reasons import Reason
from espalier_core.types.status import JobPhase
from espalier_operator.cluster.capacity import Supply
from espalier_operator.cluster.resource_quotas import NamespaceLedger
from espalier_operator.job import ends, progress
from espalier_operator.job.state import JobState
from espalier_operator.kube import snapshot
from espalier_operator.kube.backend import KubeBackend
from espalier_operator.kube.client import ApiRefusalError
from espalier_operator.kube.objects import nodes as kube_nodes
from espalier_operator.kube.objects import pods
from espalier_operator.kube.state import managed_job, workers
from espalier_operator.kube.state.workers import foreign_worker
from espalier_operator.kube.watch import jobs, store
from espalier_operator.kube.watch.devices import ClaimedDevices
from espalier_operator.kube.watch.jobs import JobInputs
from espalier_operator.model import JobFacts, Node
from espalier_operator.model.actions import Refusal
from espalier_operator.model.constraints import ANYWHERE
from espalier_operator.model.queues import QueueUsage
from espalier_operator.planner import lifecycle
from espalier_operator.planner.admission import AdmissionStep
from espalier_operator.planner.claims import Claims
from espalier_operator.planner.lending import Lending
from espalier_operator.planner.lifecycle import PlanBuilder
from espalier_operator.planner.starting import Starting
from espalier_operator.policies import learned
from espalier_operator.policies.fair import FairPolicy
from espalier_operator.policies.view import Decision
from espalier_operator.reclaim.queue import ReclaimQueue
from operator_world.history.demands import ClauseError
from operator_world.history.devices import CLAIM_SECONDS
from operator_world.history.draws import asking_for, spec_of, temper_of
from operator_world.history.kinds import PLAIN, SECOND_CONTROLLER, Kind
from operator_world.history.quotas import limit_of
from operator_world.history.room import Room
from operator_world.history.seen import Seen
from operator_world.history.stage import Stage
from operator_world.history.story import Story
from operator_world.kube_devices import RESOURCE, claiming
from operator_world.kube_objects import GPU, MIG, Raw, template
from operator_world.kubernetes import Kubernetes
from operator_world.leaders import Temper

STEPS = 130
TRIES = 12
"""Histories in which a broken operator must be found out."""


@pytest.mark.parametrize("number", range(sweeps.size("histories of a shared cluster", 100)))
def test_nothing_that_happens_breaks_a_clause(number: int) -> None:
    story = Story(sweeps.SEED + number)
    try:
        story.run(STEPS)
    except Exception:
        print("\n".join(story.lines))
        print(f"make histories ARGS='--seed {story.seed} --histories 1 --steps {STEPS}'")
        raise


# ---- each clause fails where the operator is broken; the invariants of plans, which would fail first, are not judged


def breaks(clause: int, first: int = 0, kind: Kind = PLAIN) -> str:
    """Return how the clause is broken by a history from the seed `first` on; others may be broken before."""
    found = []
    for seed in range(first, first + TRIES):
        try:
            Story(seed, judges_plans=False, kind=kind).run(STEPS)
        except ClauseError as error:
            found.append(str(error))
            if found[-1].startswith(f"clause {clause}: "):
                return found[-1]
    raise AssertionError(f"{TRIES} histories of a broken operator do not break clause {clause}: {found}")


def test_one_gpu_too_many_on_each_node_breaks_clause_1(monkeypatch: pytest.MonkeyPatch) -> None:
    right = store.parse_node

    def wrong(raw: Raw, settings: Any) -> Node:
        node = right(raw, settings)
        return replace(node, allocatable=node.allocatable + 1)

    monkeypatch.setattr(store, "parse_node", wrong)
    breaks(1)


@pytest.mark.parametrize(
    ("whole", "name", "words", "first"),
    [(QueueUsage, "allows", "holds", 0), (NamespaceLedger, "fits", "a ResourceQuota refuses", 3)],
)
def test_a_quota_that_is_not_looked_at_breaks_clause_2(
    whole: type, name: str, words: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, name, lambda *_, **__: True)
    assert words in breaks(2, first)


def test_defaults_of_limit_ranges_that_are_not_looked_at_break_clause_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ResourceQuota counts what the API server adds."""
    monkeypatch.setattr(JobInputs, "_defaults_in", lambda *_: {})
    assert "a ResourceQuota refuses" in breaks(2, kind=Kind(has_defaults=True))


def _starts_no_gang(right: Callable[..., Any]) -> Callable[..., Any]:
    def start(self: Starting, job: JobFacts, node_pools: Any) -> Any:
        return Reason.NO_FREE_GPU if job.terms.min_replicas > 2 else right(self, job, node_pools)

    return start


def test_a_gang_that_is_not_started_breaks_clause_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Starting, "_start", _starts_no_gang(Starting._start))
    assert "though it fits" in breaks(3, first=6)


def test_gpus_that_nobody_is_lent_break_clause_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lending, "lend", lambda self: None)
    assert "is lent nothing" in breaks(3, first=9)


def test_pods_of_others_that_fit_nowhere_break_clause_3_if_they_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    right = workers.foreign_worker

    def wrong(pod: Any) -> Any:
        found = right(replace(pod, wants_gpus=True))
        return None if found is None else replace(found, constraints=ANYWHERE, gpu_type=None)

    monkeypatch.setattr(jobs, "foreign_worker", wrong)
    breaks(3, first=10)


@pytest.mark.parametrize("reason", [Reason.NO_FREE_GPU, Reason.QUOTA_EXCEEDED, Reason.TOO_LARGE])
def test_a_reason_that_is_always_the_same_breaks_clause_4(reason: Reason, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: PlanBuilder, job: JobFacts, _: Reason, *, starts_by: float | None = None) -> None:
        self.refusals[job.key] = Refusal(job=job.key, reason=reason, starts_by=starts_by)

    monkeypatch.setattr(PlanBuilder, "refuse", refuse)
    breaks(4)


# ---- the operator is woken when its plan says so


def test_a_job_that_was_held_back_is_judged_by_a_plan_of_later() -> None:
    """A ResourceQuota refuses a worker that is made again, so the job waits for a while whatever comes free."""
    stage = Stage(0, policy=FairPolicy())
    try:
        stage.world.add_machine("node", 4, 16, {}, [])
        chance = Random(0)
        spec = {**spec_of(chance), "minReplicas": 2, "maxReplicas": 2, "timeBudgetSeconds": 600, "backoffLimit": 9}
        stage.world.submit("vision", "job", {**spec, "template": template({"resources": {"limits": {GPU: 1}}})})
        stage.world.tempers["vision/job"] = replace(temper_of(chance), lasts=1e9, silent=False, hangs=False)
        stage.rest()
        stage.world.set_resource_quota("vision", {"pods": 1})
        stage.world.delete_pod("vision/job-base-1-0", force=True)
        while not (job := only_job(stage)).waits:
            stage.world.pass_time(1.0)
            stage.rest()
        held_until = job.status.scheduling.hold_until
        assert (job.reason, held_until is not None) == (Reason.POD_REJECTED, True)
        while held_until is not None and stage.world.now < held_until.timestamp():
            stage.world.pass_time(1.0)
            stage.rest()
        assert only_job(stage).reason is Reason.RESOURCE_QUOTA_EXCEEDED
    finally:
        stage.close()


# ---- a person lowers a budget to less than is used


@pytest.mark.parametrize("watches", [True, False])
def test_a_budget_that_is_lowered_to_less_than_is_used_ends_the_job_in_order(stage: Stage, watches: bool) -> None:
    """Whether its leader watches the job or reads the annotation of its pod."""
    submit(stage, "job", Temper(watches=watches, evaluation=4.0), timeBudgetSeconds=120)
    lives(stage, 40)
    stage.world.change_spec("vision/job", timeBudgetSeconds=15)
    lives(stage, 4)
    assert only_job(stage).status.phase is JobPhase.EVALUATING
    lives(stage, 6)
    assert (only_job(stage).status.phase, only_job(stage).reason) == (JobPhase.COMPLETE, Reason.BUDGET_EXHAUSTED)


# ---- what others need comes back, and ends are in order: each fails where the operator is broken


def test_gpus_that_are_lent_break_clause_5_if_nobody_gets_them_back(stage: Stage, broken: Broken) -> None:
    broken(ReclaimQueue, "_cover", lambda *_: (Supply.NEVER, 0))
    submit(stage, "job", maxReplicas=4)
    lives(stage, 8)
    submit(stage, "late", minReplicas=2, maxReplicas=2)
    assert "waits for GPUs that others are lent" in fails(stage, 5)


def test_a_quota_that_is_borrowed_breaks_clause_5_if_its_owner_does_not_get_it_back(
    stage: Stage, broken: Broken
) -> None:
    broken(AdmissionStep, "_borrowers", lambda *_: ([], 0))
    stage.world.set_gpus("node", 8)
    for name in ("default", "night"):
        stage.world.set_queue(name, {"cohort": "all", "quotas": [{"nominal": 2}]})
    submit(stage, "job", minReplicas=4, maxReplicas=4)
    lives(stage, 8)
    submit(stage, "late", queue="night")
    assert "waits for its own quota" in fails(stage, 5)


@pytest.mark.parametrize("largest", [1, 2])
def test_what_stays_on_a_node_that_is_about_to_go_breaks_clause_5(stage: Stage, broken: Broken, largest: int) -> None:
    """The job itself, and a worker that is lent."""
    broken(Claims, "leave_departing_gpus", lambda _: None)
    base = "Checkpoint" if largest == 1 else "Never"
    submit(stage, "job", maxReplicas=largest, preemption={**PREEMPTION, "base": base})
    lives(stage, 8)
    stage.world.set_maintained("node", True)
    assert ("job-base-0-0" if largest == 1 else "job-extra-0-") in fails(stage, 5)


def test_a_leader_that_is_ended_while_it_evaluates_breaks_clause_6(stage: Stage, broken: Broken) -> None:
    broken(lifecycle, "_enforced_at", lambda job, _: job.terms.time_budget_seconds + 1)
    submit(stage, "job", timeBudgetSeconds=12)
    assert "into its evaluation" in fails(stage, 6)


def test_a_deleted_job_that_keeps_its_workers_breaks_clause_6(stage: Stage, broken: Broken) -> None:
    async def nothing(*_: Any) -> None:
        """Do nothing."""

    broken(KubeBackend, "_end_deleted", nothing)
    submit(stage, "job", finalizers=["example.com/archive"])
    lives(stage, 8)
    stage.world.delete_job("vision/job")
    assert "vision/job is deleted" in fails(stage, 6)


# ---- what has ended stays ended


def test_a_worker_whose_end_is_not_recorded_breaks_clause_9(stage: Stage, broken: Broken) -> None:
    right = ends.judge
    broken(ends, "judge", lambda *given: replace(right(*given), completed_workers=()))
    submit(stage, "job", DONE_EARLY, minReplicas=2, maxReplicas=2, program={})
    assert "vision/job: worker 1 was done" in fails(stage, 9)


def test_a_completed_worker_that_is_owed_a_gpu_breaks_clause_9(stage: Stage, broken: Broken) -> None:
    broken(JobState, "needed", lambda self, terms: terms)
    stage.world.set_gpus("node", 2)
    submit(stage, "job", DONE_EARLY, minReplicas=2, maxReplicas=2, program={})
    lives(stage, 8)
    stage.world.delete_pod("vision/job-base-1-0")
    stage.world.set_gpus("node", 1)
    assert "is to wait again, and all of its workers run" in fails(stage, 9)


def test_an_operator_that_begins_and_does_not_know_of_a_completed_worker_breaks_clause_9(
    stage: Stage, broken: Broken
) -> None:
    right = managed_job.state_of
    broken(managed_job, "state_of", lambda *given: replace(right(*given), completed_workers=()))
    submit(stage, "job", DONE_EARLY, minReplicas=2, maxReplicas=2, program={})
    lives(stage, 8)
    stage.world.delete_pod("vision/job-base-1-0")
    stage.operators[0].restart()
    assert "job-base-1-1 is made, and that worker was done" in fails(stage, 9)


def test_an_end_that_goes_with_its_pod_breaks_clause_9(stage: Stage, broken: Broken) -> None:
    broken(store.Store, "_is_known", lambda *_: False)
    submit(stage, "job", replace(DONE_EARLY, lasts=4.0), program={})
    stage.rest()
    stage.world.pass_time(5.0)
    stage.world.delete_pod("vision/job-base-0-0")
    assert "job-base-0-1 is made, and that worker was done" in fails(stage, 9)


def test_side_cars_that_are_taken_for_the_worker_break_clause_9(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods, "trainer_of", lambda spec: spec["containers"][0]["name"])
    breaks(9, kind=Kind(has_programs=True, has_side_cars=True))


def test_a_former_leader_whose_status_is_taken_breaks_clause_9(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Kubernetes.put_status

    def put(self: Kubernetes, key: str, uid: str, version: str, status: Any) -> None:
        right(
            self,
            key,
            uid,
            self.jobs.get(key, {"metadata": {"resourceVersion": ""}})["metadata"]["resourceVersion"],
            status,
        )

    monkeypatch.setattr(Kubernetes, "put_status", put)
    assert "a former leader has written its status" in breaks(9, kind=Kind(has_frozen_operators=True))


# ---- statuses are true: fails where the operator is broken


def test_a_budget_that_runs_by_itself_breaks_clause_10(stage: Stage, broken: Broken) -> None:
    right = progress.look

    def wrong(*given: Any) -> JobState:
        state = right(*given)
        return replace(state, used_seconds=state.used_seconds + 9 * state.active)

    broken(progress, "look", wrong)
    submit(stage, "job")
    assert "s are counted, leaders ran" in fails(stage, 10)


def test_an_end_that_is_counted_as_two_failures_breaks_clause_10(stage: Stage, broken: Broken) -> None:
    right = ends.failed

    def wrong(*given: Any) -> JobState:
        state = right(*given)
        return replace(state, failures=state.failures + 1)

    broken(ends, "failed", wrong)
    submit(stage, "job", backoffLimit=9)
    lives(stage, 10)
    (leader,) = stage.world.processes.values()
    leader.crash(stage.world, 1)
    assert "2 failures are counted, 1 containers ended" in fails(stage, 10)


def test_an_operator_that_begins_and_does_not_know_the_type_of_a_job_breaks_clause_10(
    stage: Stage, broken: Broken
) -> None:
    right = managed_job.state_of
    broken(managed_job, "state_of", lambda *given: replace(right(*given), gpu_type="other"))
    submit(stage, "job")
    lives(stage, 8)
    stage.operators[0].restart()
    assert "gpu_type changed, which nobody decided" in fails(stage, 10)


def test_a_job_that_is_gone_and_not_yet_seen_to_be_is_looked_at_again(stage: Stage) -> None:
    """Its status cannot be written, and the operator does not fall silent about it."""
    operator = stage.operators[0].operator
    stage.world.set_gpus("node", 1)
    submit(stage, "job")
    operator.see("jobs", "nodes")
    stage.world.delete_job("vision/job")
    operator.tick()
    (job,) = operator.backend.jobs.values()
    assert job.state.active, "the operator admits what it still sees"
    assert job.due_at is not None
    stage.rest()
    assert not operator.backend.jobs


def test_a_status_that_was_written_without_an_answer_keeps_its_times(stage: Stage) -> None:
    submit(stage, "job", suspend=True)
    operator = stage.operators[0].operator
    operator.see(*stage.kinds)
    operator.client.unanswered = 1
    operator.tick()
    first = only_job(stage).status
    stage.world.pass_time(30.0)
    operator.tick()
    assert first.conditions
    assert only_job(stage).status == first


def test_a_leader_that_cannot_be_pulled_again_gives_its_gpus_back_until_it_can(stage: Stage) -> None:
    stage.world.set_gpus("node", 1)
    submit(stage, "job", timeBudgetSeconds=40)
    lives(stage, 12)
    (leader,) = (process for process in stage.world.processes.values() if process.leads)
    stage.world.unable_to_pull.add("node")
    leader.crash(stage.world, 1)
    lives(stage, 10)
    assert stage.world.free("node") == 0, "it may still be pulled"
    lives(stage, 20)
    assert stage.world.free("node") == 1
    stage.world.unable_to_pull.clear()
    lives(stage, 120)
    assert only_job(stage).status.phase is JobPhase.COMPLETE


def test_an_extra_worker_that_cannot_be_pulled_is_given_up(stage: Stage) -> None:
    stage.world.set_gpus("node", 1)
    submit(stage, "job", maxReplicas=2)
    lives(stage, 8)
    stage.world.add_machine("second", 1, 16, {}, [])
    stage.world.unable_to_pull.add("second")
    lives(stage, 4)
    assert stage.world.free("second") == 0
    lives(stage, 20)
    assert stage.world.free("second") == 1, "and it is lent no more for a while"
    status = only_job(stage).status
    assert (status.preemptions, status.scheduling.extra) == (0, 0)


@pytest.mark.parametrize("seen", [True, False])
def test_a_report_that_somebody_deletes_is_made_again_for_the_leader_that_runs(stage: Stage, seen: bool) -> None:
    """Otherwise the operator hears nothing more of it: it is lent nothing, and is ended in its last evaluation."""
    stage.world.set_gpus("node", 1)
    submit(stage, "job", maxReplicas=2)
    lives(stage, 10)
    assert only_job(stage).status.phase is JobPhase.RUNNING
    pods = dict(stage.world.pods)
    del stage.world.config_maps["vision/job-report"]
    if not seen:
        stage.operators[0].restart()
    lives(stage, 40)
    assert "vision/job-report" in stage.world.config_maps
    assert stage.world.pods.keys() == pods.keys()
    assert only_job(stage).status.restarts == 0
    stage.world.add_machine("more", 1, 16, {}, [])
    lives(stage, 20)
    assert only_job(stage).status.scheduling.extra == 1, "it is heard of, so it is lent what is spare"


def test_an_account_that_somebody_deletes_is_made_again_for_the_next_leader(stage: Stage) -> None:
    accounts: list[str] = []
    client = stage.operators[0].operator.client

    def create(manifest: Mapping[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        if manifest["kind"] == "ServiceAccount":
            accounts.append(name)
        if manifest["kind"] == "Pod" and not accounts:
            message = f'pods "{name}" is forbidden: error looking up service account vision/job: not found'
            raise ApiRefusalError(f"create {name}", Status(403, "Forbidden", message))

    client.on_create = create
    stage.world.set_gpus("node", 1)
    submit(stage, "job")
    lives(stage, 10)
    assert only_job(stage).status.phase is JobPhase.RUNNING
    accounts.clear()
    stage.world.evict("vision/job-base-0-0")
    lives(stage, 40)
    assert accounts
    status = only_job(stage).status
    assert status.phase is JobPhase.RUNNING
    assert all(each.reason is not Reason.POD_REJECTED for each in status.conditions)


# ---- two operators, two kinds of GPU, and a policy file that does not answer: each is judged, too


@pytest.mark.parametrize("stage", [Kind(controllers=(DEFAULT_CONTROLLER, SECOND_CONTROLLER))], indirect=True)
def test_gpus_that_another_operator_has_chosen_break_clause_1_if_they_are_given_out(
    stage: Stage, broken: Broken
) -> None:
    broken(snapshot, "foreign_worker", lambda pod: None if pod.node is None else foreign_worker(pod))
    stage.world.set_gpus("node", 1)
    submit(stage, "one")
    submit(stage, "other", controllerName=SECOND_CONTROLLER)
    assert "is created for node, which has 0" in fails(stage, 1)


@pytest.mark.parametrize("stage", [Kind(has_slices=True)], indirect=True)
def test_slices_of_gpus_break_clause_1_if_they_are_not_counted_apart(stage: Stage, broken: Broken) -> None:
    broken(kube_nodes, "restricted", lambda constraints, *_: constraints)
    submit(stage, "job", limits={MIG: 1})
    assert "is created for node, which has 0" in fails(stage, 1)


@pytest.mark.parametrize("stage", [Kind(has_devices=True)], indirect=True)
def test_devices_that_a_pod_claims_break_clause_1_if_they_do_not_count(stage: Stage, broken: Broken) -> None:
    """Those that a pod of others holds are the claim's; those of a worker are counted by its pod."""
    broken(ClaimedDevices, "count", lambda *_: None)
    stage.world.add_machine("node", 0, 16, {}, [], devices=2)
    stage.world.add_stranger("vision/other", claiming("devices-2"), 60.0)
    submit(stage, "job", limits={RESOURCE: 1})
    assert "is created for node, which has 0" in fails(stage, 1)


@pytest.mark.parametrize("stage", [Kind(has_devices=True)], indirect=True)
def test_a_device_stays_its_claim_s_for_a_while_after_its_pod(stage: Stage) -> None:
    """So a gang that needs it as well waits until the claim is gone, and runs then."""
    stage.world.add_machine("node", 0, 16, {}, [], devices=2)
    stage.world.add_stranger("vision/other", claiming("devices-1"), 60.0)
    submit(stage, "job", limits={RESOURCE: 1}, minReplicas=2, maxReplicas=2)
    stage.rest()
    (claim,) = stage.world.resource_claims
    stage.world.delete_pod("vision/other", force=True)
    stage.rest()
    assert [*stage.world.resource_claims] == [claim]
    assert only_job(stage).reason is Reason.NO_FREE_GPU
    stage.world.pass_time(CLAIM_SECONDS)
    stage.rest()
    claims = [each["status"]["allocation"]["devices"]["results"] for each in stage.world.resource_claims.values()]
    assert sorted(result["device"] for results in claims for result in results) == ["0", "1"]
    assert claim not in stage.world.resource_claims


@pytest.mark.parametrize("stage", [Kind(has_devices=True)], indirect=True)
def test_a_quota_of_devices_that_is_not_looked_at_breaks_clause_2(stage: Stage, broken: Broken) -> None:
    broken(NamespaceLedger, "fits", lambda *_: True)
    stage.world.add_machine("node", 0, 16, {}, [], devices=4)
    stage.world.set_resource_quota("vision", {limit_of(RESOURCE): 1})
    submit(stage, "job", limits={RESOURCE: 2})
    assert "a ResourceQuota refuses pods" in fails(stage, 2)


@pytest.mark.parametrize("stage", [Kind(answers=False)], indirect=True)
def test_jobs_that_wait_for_the_answer_of_a_policy_file_break_clause_4(stage: Stage, broken: Broken) -> None:
    broken(learned, "_fallback", lambda view, why, _: Decision(shares=(), memory=view.memory, fallback=why))
    submit(stage, "job")
    assert "vision/job might run and says HeldByPolicy" in fails(stage, 4)


def test_what_is_lent_comes_back_while_the_api_server_refuses_another_pod_of_the_job(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for that pod again less and less often; the leader is told, and the extra worker ends, at once."""
    right = stage.world.create

    def create(manifest: Mapping[str, Any]) -> None:
        if manifest["metadata"]["name"] == "job-base-1-1":
            raise ApiRefusalError("create", Status(403, "Forbidden", f"{QUOTA_EXCEEDED}: scoped"))
        right(manifest)

    monkeypatch.setattr(stage.world, "create", create)
    submit(stage, "job", minReplicas=2, maxReplicas=3)
    lives(stage, 20)
    assert only_job(stage).status.scheduling.extra == 1
    stage.world.delete_pod("vision/job-base-1-0", force=True)
    lives(stage, 40)
    assert only_job(stage).status.scheduling.extra == 1
    stage.world.add_stranger("others/large", template({"resources": {"limits": {GPU: 2}}})["spec"], 60.0)
    lives(stage, 4, step=1)
    assert [*stage.world.pods] == ["vision/job-base-0-0", "others/large"]


# ---- two operators grant the same room of a ResourceQuota at the same moment


class AtOnce(Stage):
    """All operators work at the same time: what each creates comes between what the others do."""

    def _operators_work(self) -> bool:
        busy = [each for each in self.operators if each.look()]
        if busy:
            busy[0].work_beside(busy[1:])
        return bool(busy)


def test_gangs_of_two_operators_for_which_one_quota_has_room_in_turn_both_run() -> None:
    """The API server refuses a part of one: that gives way at once, and runs whole later."""
    stage = AtOnce(0, policy=FairPolicy(), kind=Kind(controllers=(DEFAULT_CONTROLLER, SECOND_CONTROLLER)))
    try:
        stage.world.add_machine("node", 8, 16, {}, [])
        stage.world.set_resource_quota("vision", {f"requests.{GPU}": 4})
        for name, controller in (("one", DEFAULT_CONTROLLER), ("other", SECOND_CONTROLLER)):
            submit(stage, name, minReplicas=3, maxReplicas=3, timeBudgetSeconds=12, controllerName=controller)
        stage.rest()
        assert "ResourceQuotaExceeded" in stage.lines[-1]
        left = [key for key, pod in stage.world.pods.items() if "deletionTimestamp" not in pod["metadata"]]
        assert sorted(left) == [f"vision/one-base-{index}-0" for index in range(3)]
        lives(stage, 50)
        for job in stage.world.jobs.values():
            assert (job["status"]["phase"], job["status"]["scheduling"]["failures"]) == ("Complete", 0)
    finally:
        stage.close()


# ---- what stages are made of

Broken = Callable[[Any, str, Any], None]
OBEDIENT: Final = Temper(evaluation=4.0)
DONE_EARLY: Final = Temper(silent=True, lasts=1e9, others_last=5.0)
ONE_GPU: Final = {GPU: 1}
PREEMPTION: Final = {"noticeSeconds": 3, "cooldownSeconds": 2, "minRuntimeSeconds": 2, "base": "Checkpoint"}


@pytest.mark.parametrize("cause", ["webhook", "image"])
def test_gpus_that_are_kept_for_refused_workers_break_clause_8(stage: Stage, broken: Broken, cause: str) -> None:
    broken(Claims, "_doubt", lambda *_: None)
    stage.world.set_gpus("node", 8)
    refuse(stage, cause)
    submit(stage, "job")
    assert "has held GPUs" in fails(stage, 8)


def test_a_denial_that_is_taken_as_final_breaks_clause_8(stage: Stage, broken: Broken) -> None:
    broken(Status, "is_invalid", property(lambda status: status.code == 422))
    stage.world.set_gpus("node", 8)
    refuse(stage, "webhook")
    submit(stage, "job")
    assert "ends by a denial" in fails(stage, 8)


@pytest.mark.parametrize("cause", ["webhook", "image"])
def test_a_job_whose_workers_are_refused_starts_once_they_are_not(stage: Stage, cause: str) -> None:
    """It is tried again with back-off."""
    stage.world.set_gpus("node", 1)
    refuse(stage, cause)
    submit(stage, "job")
    lives(stage, 30)
    assert only_job(stage).waits
    stage.world.denials.clear()
    stage.world.unable_to_pull.clear()
    lives(stage, 70)
    assert only_job(stage).holds


def refuse(stage: Stage, cause: str) -> None:
    """Let workers be refused."""
    if cause == "image":
        stage.world.unable_to_pull.add("node")
    else:
        denial = Status(422, "Invalid", 'admission webhook "w" denied the request: Pod "a" is invalid')
        stage.world.denials["vision"] = stage.world.now + 1e6, denial


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Broken:
    """Break a part of the operator."""
    return monkeypatch.setattr


@pytest.fixture
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A cluster of the kind that is the parameter, with a node of four GPUs where they are no devices.

    Plans are not judged.
    """
    kind = getattr(request, "param", PLAIN)
    made = Stage(0, judges_plans=False, policy=FairPolicy(), kind=kind)
    if not kind.has_devices:
        made.world.add_machine("node", 4, 16, {}, [])
    yield made
    made.close()


def submit(
    stage: Stage,
    name: str,
    temper: Temper = OBEDIENT,
    finalizers: Sequence[str] = (),
    limits: Mapping[str, int] = ONE_GPU,
    **spec: Any,
) -> None:
    """Make a job of one worker, or as `spec` says."""
    stage.world.tempers[f"vision/{name}"] = temper
    asked = {"timeBudgetSeconds": 600, "minReplicas": 1, "maxReplicas": 1, "preemption": PREEMPTION, **spec}
    resource, amount = next(iter(limits.items()))
    pod = asking_for(resource, template({"resources": {"limits": {GPU: amount}}})["spec"])
    whole = {**asked, "template": {"spec": pod}}
    stage.world.submit("vision", name, whole, finalizers)


def lives(stage: Stage, seconds: int, step: int = 2) -> None:
    """Let so many seconds pass, with a rest after each `step`."""
    stage.rest()
    for _ in range(seconds // step):
        stage.world.pass_time(step)
        stage.rest()


def fails(stage: Stage, clause: int) -> str:
    """Return how the clause is broken within a minute."""
    with pytest.raises(ClauseError, match=f"clause {clause}: ") as caught:
        lives(stage, 60)
    return str(caught.value)


def only_job(stage: Stage) -> Seen:
    (job,) = Room(stage.world).jobs()
    return job
