"""The arms: one trunk a seed, and from the moment of the reclaim five ways to continue."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from espalier_core.types.advice import Action
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.report import TrainerPhase
from espalier_lab.virtual_run import VirtualRun, data_of, undisturbed
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.distillation import ShrinkRule, Teaching
from espalier_trainer.distillation.shrinking import ShrinkOptions
from espalier_trainer.growth.advisor import Scripted
from espalier_trainer.run.growing import Study
from espalier_trainer.run.services import Services
from espalier_trainer.signals.scheduler import ReplicaChange
from espalier_trainer.training.progress import TrainingResult
from reclaiming.costs import Charged, Prices

ARMS = ("keep", "return", "weights", "distil", "rule")
ARRIVAL = 0.2
"""Of the budget."""
GROWTHS = 3
_ALWAYS = ShrinkRule(slower=0.0, cheaper=0.0, least_steps=1)
"""Always tries, and the original size."""
MANNERS: dict[str, ShrinkOptions] = {
    "weights": ShrinkOptions(_ALWAYS, Teaching(weight=0.0), insist=True),
    "distil": ShrinkOptions(_ALWAYS, insist=True),
    "rule": ShrinkOptions(),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A moment and its prices."""

    job: AdaptiveTrainingJob
    """The trunk's, without `onReclaim`."""
    reclaim: float
    """Budget seconds."""
    prices: Prices


@dataclass(frozen=True, slots=True)
class Run:
    """What an arm came to."""

    arm: str
    seed: int
    dearer: float
    reclaim: float
    accuracy: float
    """On the test split."""
    steps: int
    """After the reclaim."""
    depth: int
    reason: str
    """The reasons that the arm `rule` gave."""


def run_seed(case: Case, seed: int) -> list[Run]:
    """Run the trunk and all arms of one seed."""
    torch.set_num_threads(1)
    old, _ = _train(case, seed, None, "Keep", gone=False, stop_before_decision=0)
    at_reclaim, _ = _train(case, seed, old, "Distill", gone=False)
    runs = []
    for arm in ARMS:
        start = _returned(old, at_reclaim) if arm == "return" else at_reclaim
        on_reclaim = "Distill" if arm in MANNERS else "Keep"
        _, result = _train(case, seed, start, on_reclaim, gone=True, shrink_options=MANNERS.get(arm))
        if result.phase is not TrainerPhase.COMPLETED or result.test_accuracy is None:
            raise RuntimeError(f"{arm}, seed {seed}: ended with {result.reason}: {result.message}")
        decided = [each for each in result.adaptations if each.action == "Distill"]
        runs.append(
            Run(
                arm,
                seed,
                case.prices.dearer,
                case.reclaim,
                result.test_accuracy,
                result.steps - at_reclaim.state.step,
                result.depth_after,
                str(decided[0].reason) if decided else "",
            )
        )
    return runs


def _train(
    case: Case,
    seed: int,
    start: Checkpoint | None,
    on_reclaim: str,
    *,
    gone: bool,
    shrink_options: ShrinkOptions | None = None,
    stop_before_decision: int | None = None,
) -> tuple[Checkpoint, TrainingResult]:
    """Train from a checkpoint; to the reclaim, or if the GPUs are `gone` to the end. Returns the last checkpoint."""
    job = undisturbed(
        case.job,
        training={"weightAveraging": 0.0},
        adaptation={"mode": "Auto", "maxAdaptations": GROWTHS, "onReclaim": on_reclaim},
    )
    data = data_of(job.spec.training.dataset)
    budget, base = job.spec.time_budget_seconds, job.spec.min_replicas
    arrivals = [ReplicaChange(ARRIVAL * budget, base + 1)]
    if gone:
        arrivals.append(ReplicaChange(case.reclaim, base))
    prices = case.prices
    scheduler = Charged(
        budget,
        prices.step,
        arrivals,
        base,
        speedup=lambda replicas: prices.speed if replicas > base else 1.0,
        prices=None if shrink_options is None or shrink_options.teaching.weight == 0 else prices,
        batch=job.spec.training.batch_size,
        validation=len(data.validation),
    )
    run = VirtualRun(
        job=job,
        seed=seed,
        services=Services(scheduler, advisor=Scripted((Action.deepen("block0"),) * GROWTHS)),
        start=None if start is None else start.copied(),
        stop_at=math.inf if gone else case.reclaim,
        study=Study(stop_before_decision=stop_before_decision),
        shrink_options=shrink_options,
    ).begin()
    scheduler.trainer = run.trainer
    finished = run.train()
    if finished.checkpoint is None:
        raise RuntimeError(f"seed {seed}: no checkpoint at {scheduler.used_seconds():g} s: {finished.result.message}")
    return finished.checkpoint.copied(), finished.result


def _returned(old: Checkpoint, now: Checkpoint) -> Checkpoint:
    """Return the model of before its growth, at the present time, with nothing more to decide."""
    names = ("epoch", "step", "cursor", "epoch_loss_sum", "used_seconds", "schedule", "consultations")
    state = old.state.model_copy(update={name: getattr(now.state, name) for name in names})
    return Checkpoint(state, old.model, old.training)
