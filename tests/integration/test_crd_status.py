"""The status as a real API server keeps it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, get_args

from apiserver import ApiServer
from crd_cases import changed, jobs_of
from mutations import FULL
from pydantic import BaseModel

from espalier_core.types.allocation import Allocation, Direction
from espalier_core.types.measurements import (
    MAX_BIDS,
    MAX_CONFIGURATIONS,
    MAX_LOSS_POINTS,
    MAX_SCORES,
    Bid,
    BidUse,
    GradientNoise,
    GrowthForecast,
    LossPoint,
    Measurements,
    ScorePoint,
    Speed,
)
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Adaptation, AdaptationResult, AdaptationSource, Arm, Metric, Slice
from espalier_core.types.status import (
    MAX_ADAPTATIONS_KEPT,
    MAX_AVOIDED_NODES,
    AvoidedNode,
    Condition,
    ConditionStatus,
    ConditionType,
    JobPhase,
    JobStatus,
    SchedulingStatus,
    StandingReclaim,
    StandingStop,
    TimeBudgetStatus,
    TrainingStatus,
)
from espalier_core.types.task import Score


def test_a_full_status_comes_back_as_it_was(api_server: ApiServer, namespace: str) -> None:
    """What the operator writes is neither refused nor pruned, to the microsecond."""
    moment = datetime(2026, 1, 1, 12, 0, 0, 123456, UTC)
    condition = Condition(
        type=ConditionType.ADMITTED,
        status=ConditionStatus.TRUE,
        reason=Reason.GPUS_GRANTED,
        message="naïve: 2 GPUs\n" * 200,
        last_transition_time=moment,
        observed_generation=3,
    )
    adaptation = Adaptation(
        decision_id="d-1",
        time=moment,
        used_seconds=1e-9,
        trigger=Reason.EXTRA_GPUS_GRANTED,
        generation=2,
        action="Deepen(block0)",
        source=AdaptationSource.AGENT,
        policy="reinforce@3",
        probabilities={"Deepen(block0)": 0.75, "Nothing": 0.25},
        result=AdaptationResult.GROWN,
        message="-",
        depth_before=3,
        depth_after=4,
        parameters_before=10**10,
        parameters_after=2**53,
        width_before=6,
        width_after=12,
        accuracy_before=0.5,
        accuracy_after=1.0,
        loss_before=0.5,
        loss_after=1e300,
        score_before=Score(measure="r2", value=-1e300),
        score_after=Score(measure="r2", value=1.0),
        arms=(
            Arm(
                action="Nothing",
                loss=1e300,
                steps=2**53,
                seconds=0.5,
                annealed=True,
                slices=(Slice(share=0.2, loss=1e300),),
                message="-",
            ),
        ),
        seconds=0.0,
        step_seconds_before=0.5,
        step_seconds_after=0.25,
        evaluations=2**31,
        largest_error=1e-300,
    )
    status = JobStatus(
        observed_generation=3,
        phase=JobPhase.RUNNING,
        conditions=(condition, condition.model_copy(update={"type": ConditionType.FAILED})),
        start_time=moment,
        completion_time=moment,
        time_budget=TimeBudgetStatus(used_seconds=0.1, remaining_seconds=31_536_000, gpu_seconds_used=1e15),
        allocation=Allocation(
            generation=7,
            replicas=3,
            gpus=6,
            direction=Direction.DOWN,
            reason=Reason.GPU_LOST,
            deadline=moment,
            traceparent=f"00-{'a' * 32}-{'b' * 16}-01",
        ),
        training=TrainingStatus(
            epoch=2,
            step=10**9,
            progress_percentage=100,
            done_percentage=99,
            metrics=(Metric(name="val_accuracy", value=-1e300),),
            depth=4,
            parameters=10**10,
            last_updated_time=moment,
        ),
        adaptations=(adaptation,) * MAX_ADAPTATIONS_KEPT,
        measurements=Measurements(
            speeds=(
                Speed(
                    nodes=1, workers=2, batch_size=64, parameters=10**10, steps=9, step_seconds=0.1, sync_seconds=0.0
                ),
            )
            * MAX_CONFIGURATIONS,
            gradient=GradientNoise(squared_norm=0.0, variance=1e300, samples=1),
            losses=(LossPoint(epoch=1, step=10**9, loss=-1e300),) * MAX_LOSS_POINTS,
            growth=GrowthForecast(gain=-1.0, low=-1.0, high=1.0, seconds=1e6),
            scores=(ScorePoint(work=0.5, value=-1e300),) * MAX_SCORES,
            bids=(Bid(use=BidUse.WORKER, workers=2, gain=-1.0, low=-1.0, high=1.0, seconds=1e6),) * MAX_BIDS,
        ),
        adaptation_count=21,
        restarts=1,
        preemptions=2,
        last_checkpoint_time=moment,
        replicas=3,
        selector="espalier.dev/job=written",
        scheduling=SchedulingStatus(
            admitted_at=moment,
            gpu_type="NVIDIA-H200",
            extra=1,
            extra_generation=6,
            reclaim=StandingReclaim(extra=0, deadline=moment, reason=Reason.NEEDED_BY_OTHER_JOB),
            granted_at=moment,
            changed_at=moment,
            promised_until=moment,
            stopping=StandingStop(reason=Reason.SUSPENDED, deadline=moment),
            counted_until=moment,
            budget_end_seconds=12.5,
            start_seconds=3.5,
            node_group="large",
            nodes_by=moment,
            avoided_nodes=(
                AvoidedNode(
                    node="n", last_time=moment, times=2, message="-", refused=True, elsewhere=True, loan=2**31 - 1
                ),
            )
            * MAX_AVOIDED_NODES,
            trained=True,
            failures=1,
            last_failure="exit code 1",
            attempts=(0, 2),
            pod_uids=("", "b9c1"),
            down_since=moment,
            not_before=moment,
            unplaced=2,
            hold_until=moment,
            extra_losses=1,
            lend_after=moment,
        ),
    )
    unset = _names(JobStatus) - _names_in(status.to_json())
    assert not unset, "this test is to set every field"
    api_server.request("POST", jobs_of(namespace), changed(FULL, "metadata.name", "written"))
    api_server.request("PATCH", f"{jobs_of(namespace)}/written/status", {"status": status.to_json()})
    stored = api_server.request("GET", f"{jobs_of(namespace)}/written")["status"]
    assert JobStatus.model_validate_json(json.dumps(stored), strict=True) == status


def _names(model: type[BaseModel]) -> set[str]:
    """Return the outside names of all fields within a model."""
    found = set()
    for name, field in model.model_fields.items():
        found.add(field.alias or name)
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                found |= _names(part)
    return found


def _names_in(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {name for item in value.values() for name in _names_in(item)}
    return {name for item in value for name in _names_in(item)} if isinstance(value, list) else set()
