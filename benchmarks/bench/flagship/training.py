"""The runs: the ready trainer in virtual time. All that grow with one seed begin as the same run of the small net."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from bench.flagship.gradients import Measured, observed, ratios
from bench.flagship.subject import DECIDED, LARGE, SMALL, Arm, Cell, Run, Subject, blocks_of
from bench.runs import ShippedPolicy
from espalier_core.estimates.gains import LossScale
from espalier_core.types.advice import Action
from espalier_core.types.job import AdaptiveTrainingJob, Insertion, Trials
from espalier_core.types.report import Adaptation, AdaptationResult, TrainerPhase
from espalier_core.types.report import Arm as TrialArm
from espalier_core.validation.reading import with_spec
from espalier_lab.virtual_run import FinishedRun, VirtualRun, as_built, undisturbed
from espalier_lab.virtual_time import ReplicaChange, Scripted, VirtualScheduler
from espalier_trainer.builtin_loop.state import identity
from espalier_trainer.builtin_loop.trainer import Trainer
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.checkpoints.store import CheckpointStore
from espalier_trainer.data.objective import Evaluation, objective_of
from espalier_trainer.growth.advisor import Advisor
from espalier_trainer.run.growing import Study
from espalier_trainer.run.services import Services
from espalier_trainer.training.method import evaluate
from espalier_trainer.trials.rules import SHARES, best

INSERTIONS = {Arm.UNFOLDED: Insertion.UNFOLD, Arm.SCALED: Insertion.SCALED, Arm.EXACT: Insertion.EXACT}
GROWTHS = {Insertion.UNFOLD: 2, Insertion.SCALED: 2, Insertion.EXACT: LARGE - SMALL}
"""Of a run. An exact growth adds a block, the others double it."""
OTHER_ORDER = 1_000_000
"""Added to the seed of a control, which begins its epochs again: it is not to read the same examples again."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What all runs have in common."""

    subject: Subject
    moments: tuple[float, ...]
    trunks: Path
    """Folder of the small nets that wait to be grown."""
    recipes: Mapping[Arm, Callable[[Bench, Cell], FinishedRun]] = field(default_factory=dict)
    """How to make arms that are not made here."""
    gradients: dict[Cell, Measured] = field(default_factory=dict)

    def run(self, cell: Cell) -> Run:
        """Make a run."""
        began, trial_seconds = time.monotonic(), 0.0
        if cell.arm is Arm.ONE:
            done = self.train(cell, SMALL, start=self.trunk(cell, self.moments[-1]))
        elif cell.moment is None:
            done = self.train(cell, cell.arm.blocks)
        elif cell.arm in self.recipes:
            done = self.recipes[cell.arm](self, cell)
        elif cell.arm in INSERTIONS:
            done = self.grown(cell, INSERTIONS[cell.arm])
        elif cell.arm is Arm.ADVISED:
            done = self.train(cell, SMALL, insertion=Insertion.UNFOLD, advisor=ShippedPolicy())
        elif cell.arm is Arm.RACED:
            done, trial_seconds = self._raced(cell)
        else:
            done = self._begun_again(cell)
        trainer, result = done.trainer, done.result
        if result.test_score is None:
            raise RuntimeError(f"{cell}: ended with {result.reason}: {result.message}")
        wanted = cell.arm.blocks * len(self.subject.runs)
        if cell.arm not in DECIDED and blocks_of(trainer.network.architecture) != wanted:
            raise RuntimeError(f"{cell}: has {blocks_of(trainer.network.architecture)} blocks at its end")
        validation = self._validated(trainer)
        jumps = [each for each in result.adaptations if each.loss_before is not None and each.loss_after is not None]
        return Run(
            cell=cell,
            figure=self.subject.figure(result.test_score.value),
            validation=self.subject.figure(validation.score.value),
            steps=result.steps,
            blocks=blocks_of(trainer.network.architecture),
            losses=tuple([each.loss_before or 0.0 for each in jumps[:1]] + [each.loss_after or 0.0 for each in jumps]),
            answered=tuple(answer(each) for each in result.adaptations) if cell.arm in DECIDED else (),
            gradients=ratios(self.gradients.pop(cell, [])),
            trial_seconds=trial_seconds,
            seconds=time.monotonic() - began,
        )

    def seconds(self, rate: float, blocks: int, steps: int) -> float:
        """Return how long a run of `steps` takes here, in wall seconds, with its beginning and its end.

        For a subject whose steps cost one virtual second.
        """
        began = time.perf_counter()
        self.train(Cell(budget=float(steps), arm=Arm.ONE, moment=None, rate=rate, seed=0), blocks)
        return time.perf_counter() - began

    def _validated(self, trainer: Trainer) -> Evaluation:
        data, objective = self.subject.data, objective_of(self.subject.task)
        validation = evaluate(trainer.network.module, data.validation, 128, objective=objective)
        if validation is None:
            raise RuntimeError("an evaluation that nobody breaks off was broken off")
        return validation

    def _raced(self, cell: Cell) -> tuple[FinishedRun, float]:
        """Let a growth and doing nothing train until the race ends, and return the run of the one that wins.

        Each arm trains as the job would, so the winner's run from the beginning is the one that goes on.
        """
        moment = cell.moment or 0.0
        slice_ = SHARES[Trials.RACE] * (1 - moment) * cell.budget
        asking = ShippedPolicy()
        found: list[TrialArm] = []
        for action in (*self.additions, Action.nothing()):
            asking.instead = action
            until = moment * cell.budget + slice_
            start = self.trunk(cell, moment)  # read again for each arm, which trains in the tensors that it is given
            done = self.train(
                cell, SMALL, insertion=Insertion.UNFOLD, advisor=asking, most=1, start=start, stop_at=until
            )
            loss, steps = self._validated(done.trainer).loss, done.result.steps - start.state.step
            found.append(TrialArm(action=str(action), loss=loss, steps=steps, seconds=slice_))
        winner = best(found, Trials.RACE, asking.gains, LossScale(self.subject.task))
        if winner is None:
            raise RuntimeError(f"{cell}: the race has no result")
        script = tuple(action for action in self.additions if str(action) == winner.action)
        start = self.trunk(cell, moment)
        done = self.train(cell, SMALL, insertion=Insertion.UNFOLD, script=script, start=start)
        return done, slice_ * len(found)

    def grown(self, cell: Cell, insertion: Insertion, warmup: float = 0.0) -> FinishedRun:
        """Grow the small net at the cell's moment by the trainer's own growth."""
        script = self.additions * GROWTHS[insertion]
        start = self.trunk(cell, cell.moment or 0.0)
        done = self.train(cell, SMALL, insertion=insertion, script=script, start=start, warmup=warmup)
        if failed := [each for each in done.result.adaptations if each.result is not AdaptationResult.GROWN]:
            raise RuntimeError(f"{cell}: {failed[0].action} {failed[0].result}: {failed[0].message}")
        return done

    def _begun_again(self, cell: Cell) -> FinishedRun:
        """Train a large net from the moment on that has kept some weights of the small one."""
        trunk = self.trunk(cell, cell.moment or 0.0)
        kept = self.subject.kept[cell.arm]

        def keep(model: nn.Module) -> nn.Module:
            weights = {name: tensor for name, tensor in trunk.model.items() if name.startswith(kept)}
            model.load_state_dict(weights, strict=False)
            return model

        return self.train(cell, LARGE, used=trunk.state.used_seconds, prepare=keep)

    @property
    def additions(self) -> tuple[Action, ...]:
        """A growth of each run of blocks."""
        return tuple(Action(kind="AddBlock", target=run) for run in self.subject.runs)

    def trunk(self, cell: Cell, moment: float) -> Checkpoint:
        """Return the small net of a seed as it is at this moment; trained once."""
        place = self.moments.index(moment)
        store = CheckpointStore(self.trunks / f"{cell.budget:g}-{cell.rate:g}-{cell.seed}-{moment:g}")
        if (found := store.load_latest()) is not None:
            return found
        before = self.trunk(cell, self.moments[place - 1]) if place else None
        trunk = self.train(cell, SMALL, start=before, until=moment).checkpoint
        if trunk is None:
            raise RuntimeError(f"{cell}: no checkpoint at {moment:.0%}")
        store.save(trunk)
        found = store.load_latest()
        if found is None:
            raise RuntimeError(f"{store.folder} holds no checkpoint that was just written")
        return found

    def train(
        self,
        cell: Cell,
        blocks: int,
        *,
        insertion: Insertion = Insertion.EXACT,
        script: Sequence[Action] = (),
        start: Checkpoint | None = None,
        used: float = 0.0,
        until: float | None = None,
        prepare: Callable[[nn.Module], nn.Module] = as_built,
        arrange: Callable[[Checkpoint, nn.Module], Checkpoint] | None = None,
        old: str = "blocks.0.",
        advisor: Advisor | None = None,
        most: int = 2,
        stop_at: float = math.inf,
        warmup: float = 0.0,
    ) -> FinishedRun:
        """Train from `start` or the beginning; as far as `stop_at`, in virtual seconds. `advisor`, where there is one,
        may grow the net `most` times, in place of the `script`. `arrange` makes of `start` and the model of this run
        its checkpoint. Names of blocks that are not new begin with `old`.
        """
        adaptation = {"insertion": insertion, "maxAdaptations": most if advisor else max(1, len(script))}
        moment = cell.moment if until is None else until
        arrives = cell.budget * moment if moment is not None and not used else None
        cost = self.subject.cost if blocks else lambda _: self.subject.cost.base
        clock = VirtualScheduler(cell.budget, cost, () if arrives is None else (ReplicaChange(arrives, 2),))
        run = VirtualRun(
            job=with_spec(self.job(cell, blocks, asks=advisor is not None), adaptation=adaptation),
            seed=cell.seed + (OTHER_ORDER if used else 0),
            services=Services(clock, advisor=advisor or Scripted(tuple(script)), used_seconds=used),
            data=self.subject.data,
            prepare=prepare,
            start=start,
            stop_at=stop_at,
            study=Study(stop_before_decision=None if until is None else 0),
            device=self.subject.device,
        ).begin()
        if start is not None:
            # Described for this way of growing, which the small net did not know of.
            start = start if arrange is None else arrange(start, run.trainer.network.module)
            described, itself = run.trainer.network.architecture, identity(self.job(cell, blocks), cell.seed)
            state = start.state.model_copy(update={"architecture": described, "identity": itself})
            run.checkpoints.start = replace(start, state=state)
        network, used = (lambda: run.trainer.network.module), (lambda: clock.used_seconds() / cell.budget)
        seen = self.gradients.setdefault(cell, [])
        # Where nothing grows, what a step takes may be measured.
        with nullcontext() if cell.moment is None else observed(network, used, seen, old, warmup):
            finished = run.train()
        result = finished.result
        wanted = TrainerPhase.COMPLETED if until is None and stop_at == math.inf else TrainerPhase.STOPPED
        if result.phase is not wanted:
            raise RuntimeError(f"{cell}: ended as {result.phase}: {result.reason} {result.message}")
        return finished

    def job(self, cell: Cell, blocks: int, *, asks: bool = False) -> AdaptiveTrainingJob:
        """Return the job of a cell's net with this number of blocks. One that `asks` an agent shows it evaluations."""
        training = {"model": {"options": {"blocks": blocks or SMALL}}, "optimizer": {"learningRate": cell.rate}}
        job = self.subject.shortened
        every = {"evaluateEveryEpochs": job.spec.training.evaluate_every_epochs} if asks else {}
        return undisturbed(job, timeBudgetSeconds=cell.budget, training=training | every)


def answer(given: Adaptation) -> str:
    """Return what was advised, or that the policy does not know such a model, which then stays as it is."""
    return str(given.result) if given.result is AdaptationResult.UNKNOWN else given.action


def prepare_process() -> None:
    """Let this process compute with one thread."""
    torch.set_num_threads(1)
