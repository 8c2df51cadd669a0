"""`onReclaim: Distill` in a run: measurements, decision, training of a smaller model, and choice of the better one.

It takes part in the run by hooks (`training.hooks`). Its whole state is in the checkpoint, so that a kill at any
moment loses neither model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from espalier_core.types.reasons import Reason
from espalier_core.types.report import Adaptation, AdaptationResult
from espalier_trainer.checkpoints.document import Checkpoint, CheckpointState
from espalier_trainer.data.objective import Evaluation
from espalier_trainer.data.source import epoch_order
from espalier_trainer.distillation.decision import ShrinkFacts, ShrinkRule, better, decide
from espalier_trainer.distillation.filling import ShrinkError, adjust
from espalier_trainer.distillation.teacher import Teacher, Teaching
from espalier_trainer.distillation.trial import (
    LESSON,
    MEASURED_STEPS,
    DistillationTrial,
    EarlierSize,
    PendingReclaim,
    ShrinkingState,
    StepTimings,
    kept_network,
    kept_tensors,
    lesson_tensors,
    recorded,
    size_of,
    smaller_network,
    structure,
)
from espalier_trainer.errors import CheckpointMismatchError
from espalier_trainer.training.hooks import Boundary, Change, Criterion, HookContext, Hooks
from espalier_trainer.training.method import evaluate
from espalier_trainer.training.network import Network


@dataclass(frozen=True, slots=True)
class ShrinkOptions:
    """Settings; jobs use the defaults, studies others."""

    rule: ShrinkRule = field(default_factory=ShrinkRule)
    teaching: Teaching = field(default_factory=Teaching)
    folding: bool = True
    """Whether the neighbours of removed layers are fitted (`fold`)."""
    insist: bool = False
    """Whether to keep the smaller model, whatever the result of the comparison."""


class Shrinker(Hooks):
    """The hooks of one run. Not thread-safe: only the training loop uses it."""

    def __init__(self, context: HookContext, options: ShrinkOptions | None = None) -> None:
        training = context.job.spec.training
        self._data, self._start, self._spec = context.data, context.start, training.optimizer
        self._batch_size, self._seed, self._device = training.batch_size, context.seed, context.device
        self._used, self._clock = context.used_seconds, context.clock
        self._options = options or ShrinkOptions()
        self._sizes: list[EarlierSize] = []
        self._times = StepTimings()
        self._replicas = 0
        self._pending: PendingReclaim | None = None
        self._trial: DistillationTrial | None = None
        self._kept: Network | None = None
        self.teacher: Teacher | None = None
        """The teacher of the network in training, if any."""
        self._key: tuple[Network | None, str] = (None, "")
        self._spent = 0.0
        """Wall seconds of filling and comparing."""

    @property
    def may_grow(self) -> bool:
        """Whether no smaller model is on trial."""
        return self._trial is None

    @property
    def kept(self) -> Network | None:
        """The larger network while a smaller one is on trial; otherwise None."""
        return self._kept

    def grew(self, before: Network, state: Callable[[], CheckpointState]) -> None:
        """Record the size before a growth."""
        self._sizes.append(size_of(before, state()))
        self.teacher = None
        self._pending = None

    def growth_undone(self) -> None:
        """Discard the size before a growth that was reverted."""
        self._sizes.pop()

    def criterion(self, indices: Tensor, inputs: Tensor) -> Criterion | None:
        """Return the criterion for the logits of this batch; None for the labels alone."""
        return None if self.teacher is None else self.teacher.criterion(indices, inputs)

    def stepped(self, network: Network, seconds: float) -> None:
        """Record the budget seconds of a step."""
        self._times.took(self._structure(network), self._replicas, seconds)
        if self._trial is not None:
            self._trial = self._trial.model_copy(update={"steps": self._trial.steps + 1})

    def at_boundary(self, boundary: Boundary) -> Change | None:
        """Respond to GPUs that were taken back, and compare the smaller model with the larger one when due."""
        network, allocation = boundary.network, boundary.allocation
        replicas, before = allocation.replicas, self._replicas
        self._replicas = replicas
        if replicas > before > 0:
            self._pending = None
            if self._trial is not None:
                return self._give_up(Reason.GPUS_CAME_BACK)
        elif replicas < before and self._sizes and self._trial is None:
            self._pending = PendingReclaim(trigger=allocation.reason, generation=allocation.generation)
            self._times.forget(self._structure(network), replicas)
        if self._trial is not None:
            return self._judged(network, self._trial, boundary.until)
        if self._pending is None or not self._times.known(self._structure(network), replicas):
            return None
        return self._decided(boundary, self._pending)

    def failed(self, message: str) -> Change | None:
        """End a trial whose step failed, with the larger network."""
        return None if self._trial is None else self._give_up(Reason.TRIAL_FAILED, message)

    def completed(self) -> Change | None:
        """End a trial with the larger network if the budget leaves no time for it."""
        return self.failed("the budget ended before they were compared")

    # ---- for checkpoints

    def capture(self) -> tuple[dict[str, object] | None, dict[str, Tensor]]:
        """Return the state for a checkpoint: (JSON types, tensors)."""
        state = ShrinkingState(
            sizes=tuple(self._sizes),
            times=self._times.state(),
            replicas=self._replicas,
            pending=self._pending,
            trial=self._trial,
            taught=self.teacher is not None,
        )
        lesson = {} if self.teacher is None else self.teacher.tensors()
        tensors = lesson_tensors(lesson) if self._kept is None else kept_tensors(self._kept, lesson)
        return state.to_json(), tensors

    def restore(self, checkpoint: Checkpoint, network: Network) -> Network:
        """Restore the state that `capture` returned for a checkpoint of `network`."""
        content = checkpoint.state.shrinking
        state = ShrinkingState() if content is None else ShrinkingState.model_validate(content)
        self._sizes = list(state.sizes)
        self._times = StepTimings(state.times)
        self._replicas, self._pending, self._trial = state.replicas, state.pending, state.trial
        self._kept = self.teacher = None
        if state.trial is not None:
            example = self._data.example_input()
            self._kept = kept_network(state.trial, checkpoint, self._start, self._spec, example)
        if state.taught:
            self.teacher = self._new_teacher()
            self.teacher.load(checkpoint.under(LESSON))
        return network

    # ---- within

    def _give_up(self, reason: Reason, message: str = "") -> Change:
        """End a trial with the larger network; raises `ValueError` where there is no trial."""
        trial, kept = self._trial, self._kept
        if trial is None or kept is None:
            raise ValueError("no smaller model is on trial")
        self._end()
        return Change(kept, self._record(trial, AdaptationResult.KEPT, reason, message, kept, kept))

    def _structure(self, network: Network) -> str:
        if self._key[0] is not network:
            description = network.architecture
            self._key = (network, "" if description is None else description.fingerprint)
        return self._key[1]

    def _new_teacher(self) -> Teacher:
        module = None if self._kept is None else self._kept.module
        return Teacher(module, len(self._data.train), self._device, self._options.teaching)

    def _decided(self, boundary: Boundary, pending: PendingReclaim) -> Change:
        network = boundary.network
        began = self._clock()
        key = self._structure(network)
        large = self._times.median(key, self._replicas)
        # The largest first, as the rule requires.
        places = list(reversed(range(len(self._sizes))))
        sizes = [self._times.expected(self._sizes[place].key, self._replicas, key, large) for place in places]
        facts = ShrinkFacts(
            boundary.time_left,
            large,
            self._times.with_more(key, self._replicas),
            sizes,
            2 * boundary.evaluation_seconds,
        )
        verdict = decide(facts, self._options.rule)
        self._pending = None
        used = self._used()
        place = None if verdict.size is None else places[verdict.size]
        trial = DistillationTrial(
            trigger=pending.trigger,
            generation=pending.generation,
            kept=structure(boundary.state()),
            size=place or 0,
            began=used,
            ends=used + verdict.seconds - facts.comparing,
            large_seconds=large,
            measured=verdict.size is not None and sizes[verdict.size] is not None,
        )
        if place is None:
            kept = self._record(trial, AdaptationResult.KEPT, verdict.reason, str(facts), network, network)
            return Change(network, kept)
        try:
            smaller = self._smaller(network, self._sizes[place], boundary.epoch)
        except (ShrinkError, CheckpointMismatchError) as error:
            kept = self._record(trial, AdaptationResult.KEPT, Reason.CANNOT_SHRINK, str(error), network, network)
            return Change(network, kept)
        network.optimizer.zero_grad(set_to_none=True)
        self._trial, self._kept = trial, network
        self.teacher = self._new_teacher()
        self._spent = self._clock() - began
        return Change(smaller, None, verdict.seconds)

    def _smaller(self, large: Network, size: EarlierSize, epoch: int) -> Network:
        order = epoch_order(len(self._data.train), self._batch_size, self._seed, epoch, self._device)
        smaller = smaller_network(size, large, self._start, self._spec, self._data.example_input())
        adjust(smaller, large, self._data, order, folding=self._options.folding)
        return smaller

    def _judged(self, network: Network, trial: DistillationTrial, until: Callable[[], bool]) -> Change | None:
        """Compare the two models when due."""
        if not trial.measured and trial.steps == MEASURED_STEPS:
            seconds = self._times.median(self._structure(network), self._replicas)
            if seconds > trial.large_seconds:
                message = f"a step takes {seconds:.3g} s with teaching, {trial.large_seconds:.3g} s of the grown model"
                return self._give_up(Reason.NOT_CHEAPER, message)
        if self._used() < trial.ends or self._kept is None:
            return None
        began = self._clock()
        own, theirs = self._accuracy(network, until), self._accuracy(self._kept, until)
        if own is None or theirs is None:
            return None  # interrupted: the resumed run compares
        self._spent += self._clock() - began
        mine, its = own.score.value, theirs.score.value
        won = self._options.insist or better(mine, its, len(self._data.validation))
        result, reason = (
            (AdaptationResult.SHRUNK, Reason.DISTILLED) if won else (AdaptationResult.KEPT, Reason.LARGER_IS_BETTER)
        )
        message = (
            f"after {trial.steps} steps in {self._used() - trial.began:.3g} s the smaller model has a validation "
            f"accuracy of {mine:.4f}, the grown one of {its:.4f}"
        )
        kept, chosen = self._kept, network if won else self._kept
        record = self._record(trial, result, reason, message, kept, chosen)
        accuracies = {"accuracy_before": its, "accuracy_after": mine if won else its}
        teacher = self.teacher
        self._end()
        if won:
            del self._sizes[trial.size :]
            if teacher is not None and teacher.keeps:
                teacher.release()
                self.teacher = teacher
        return Change(chosen, record.model_copy(update=accuracies), share=won)

    def _accuracy(self, network: Network, until: Callable[[], bool]) -> Evaluation | None:
        return evaluate(network.module, self._data.validation, self._batch_size, until)

    def _end(self) -> None:
        self._trial = self._kept = self.teacher = None

    def _record(
        self,
        trial: DistillationTrial,
        result: AdaptationResult,
        reason: Reason,
        message: str,
        before: Network,
        after: Network,
    ) -> Adaptation:
        return recorded(trial, result, reason, message, before, after, used_seconds=self._used(), seconds=self._spent)
