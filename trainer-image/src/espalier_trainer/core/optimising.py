"""Looks for a faster computation of the same training steps, at the beginning of an epoch.

Channels-last is tried once a job, rewrites of the graph once at the start and once after each growth. Both are measured
against the module as it is, in interleaved pairs of steps that train nothing, and kept only if they are faster. What
all attempts together may cost is a share of the time left. The records of attempts in the run's progress say what was
tried and what it has cost, so a run that resumes goes on from there.
"""

from __future__ import annotations

import copy
import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Final

import torch
from torch import Tensor, nn

from espalier_api.adaptation import AdaptationSpec, Optimise
from espalier_api.allocation import Allocation
from espalier_api.report import Adaptation, AdaptationResult, AdaptationSource
from espalier_api.training import MemoryFormat, TrainingSpec
from espalier_trainer.core.attempts import CHANNELS_LAST, REWRITE, cost_of, is_tried
from espalier_trainer.core.hooks import Change
from espalier_trainer.execution import executed, has_layouts, lay
from espalier_trainer.method import Method
from espalier_trainer.net2net.modules import mode
from espalier_trainer.network import Network
from espalier_trainer.rewriting import (
    PAIRS,
    TOLERANCE,
    Comparison,
    Costs,
    Graph,
    RewritesRefusedError,
    capture,
    compare,
    search,
    verify,
)
from espalier_trainer.scheduler import Scheduler

_WARMUP: Final = 2
_COMPARING_STEPS: Final = 2 * (PAIRS + _WARMUP)
_CHECKING_STEPS: Final = 14
"""A search measures each operator, and a check computes two steps in double precision: in steps. With a ResNet-18 and a
SqueezeNet on a CPU they took 5 and 9."""
_LAYER_SECONDS: Final = 0.007
"""What capture, search and application take for each layer besides. With these two, 5 and 6 ms."""
_MOST_SECONDS: Final = 20.0
"""Longest attempt: it ends no sooner for GPUs that are taken back, which come with a notice of 30 s by default."""
_ASKING_SECONDS: Final = 0.1
"""Interval in which an attempt asks if it has to end: other workers are told to wait then."""
_KNOWN_STEPS: Final = 5
"""Steps of a network that are timed before it is known how long they take."""


class _BrokenOffError(Exception):
    """An attempt took longer than allowed, or the run is to stop."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What steps of the job are, for measurements."""

    batch: Callable[[int], tuple[Tensor, Tensor]]
    """Returns inputs and targets of a step of one of so many workers."""
    method: Method
    refused: str = ""
    """Why steps of this job cannot be rewritten; '' if they can."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What came of an attempt."""

    network: Network
    message: str
    won: bool = False
    rules: int = 0
    pairs: Comparison | None = None
    evaluations: int | None = None
    error: float | None = None


@dataclass
class _TimedCosts(Costs):
    """Measures operators until it is broken off."""

    check: Callable[[], None] = lambda: None

    def of(self, graph: Graph, name: str) -> float:
        """Return the seconds of a node."""
        self.check()
        return super().of(graph, name)


class Optimiser:
    """Carries out `adaptation.optimise` and `training.memoryFormat`. Errors in it never stop training."""

    def __init__(
        self,
        spec: AdaptationSpec,
        memory_format: MemoryFormat,
        probe: Probe,
        scheduler: Scheduler,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._spec, self._probe, self._scheduler, self._clock = spec, probe, scheduler, clock
        self._lays, self._rewrites = memory_format is MemoryFormat.AUTO, spec.optimise is Optimise.REWRITES
        self._steps: deque[float] = deque(maxlen=64)
        """Durations of the last steps of the network."""
        self._began = self._allowed = 0.0
        """Of the attempt."""
        self._asked = 0.0
        """When `until` was asked last."""
        self._until: Callable[[], bool] = lambda: False

    @property
    def refused(self) -> str:
        """Why what the job asks for cannot be done; '' if it can."""
        return self._probe.refused if self._rewrites else ""

    def changed(self) -> None:
        """Forget the durations of steps, as the network is another one."""
        self._steps.clear()

    def stepped(self, seconds: float) -> None:
        """Take note of a training step."""
        self._steps.append(seconds)

    def look(
        self,
        network: Network,
        adaptations: Sequence[Adaptation],
        allocation: Allocation,
        workers: int,
        until: Callable[[], bool],
    ) -> Change | None:
        """Try what is due; returns what came of it, None where nothing was tried.

        `adaptations` are those of the run so far. An attempt is broken off, without a record, once `until` returns
        True.
        """
        kind = self._due(network, adaptations)
        if not kind or len(self._steps) < _KNOWN_STEPS:
            return None
        left = self._spec.optimise_share * self._scheduler.time_left() - cost_of(adaptations)
        self._allowed = min(_MOST_SECONDS, left)
        if self._least(kind, network) > self._allowed:
            return None  # and later less is allowed
        self._began, self._until = self._clock(), until
        used = self._scheduler.used_seconds()
        attempt = self._try_layout if kind == CHANNELS_LAST else self._try_rewrites
        try:
            with _as_it_was(network.module):
                found = attempt(network, *self._probe.batch(workers))
        except _BrokenOffError:
            if until():
                return None
            found = _Found(network, f"it would take longer than the {self._allowed:.3g} s that it may cost")
        except RewritesRefusedError as error:
            found = _Found(network, str(error))
        except torch.OutOfMemoryError as error:
            found = _Found(network, f"out of memory: {str(error).splitlines()[0]}")
        # Whatever the user's model raises in double precision, or a rule that misjudges it.
        except Exception as error:
            found = _Found(network, f"failed ({type(error).__name__}: {error})")
        return Change(found.network, self._record(kind, found, network, allocation, used))

    def reverted(self, network: Network, allocation: Allocation, message: str) -> Change:
        """Return the network whose module computes its steps again, since its execution has failed."""
        rules = 0 if network.execution is None else len(network.execution.plan.rules)
        self._began = self._clock()
        found = _Found(replace(network, execution=None), message, rules=rules)
        return Change(found.network, self._record(REWRITE, found, network, allocation, self._scheduler.used_seconds()))

    # ---- within

    def _due(self, network: Network, adaptations: Sequence[Adaptation]) -> str:
        """Return the kind of the attempt that is due, '' if none is."""
        if self._lays and not network.channels_last and not is_tried(CHANNELS_LAST, adaptations):
            if has_layouts(network.module):
                return CHANNELS_LAST
            self._lays = False
        wanted = self._rewrites and not self._probe.refused and network.execution is None
        return REWRITE if wanted and not is_tried(REWRITE, adaptations) else ""

    def _least(self, kind: str, network: Network) -> float:
        """Return the least seconds that an attempt takes if it succeeds."""
        step = median(self._steps)
        if kind == CHANNELS_LAST:
            return _COMPARING_STEPS * step
        layers = sum(not list(module.children()) for module in network.module.modules())
        return (_COMPARING_STEPS + _CHECKING_STEPS) * step + _LAYER_SECONDS * layers

    def _try_layout(self, network: Network, inputs: Tensor, targets: Tensor) -> _Found:
        other = copy.deepcopy(network.module)
        lay(other, None, channels_last=True)
        pairs = self._compared(network.module, other, inputs, targets)
        if why := self._too_little(pairs):
            return _Found(network, why, pairs=pairs)
        lay(network.module, network.optimizer, channels_last=True)
        return _Found(replace(network, channels_last=True), _gained(pairs), won=True, pairs=pairs)

    def _try_rewrites(self, network: Network, inputs: Tensor, targets: Tensor) -> _Found:
        module = network.module
        costs = _TimedCosts(module, clock=self._clock, check=self._check)
        searched = search(capture(module, inputs), costs)
        plan, evaluations = searched.plan, searched.evaluations
        if not plan.rules:
            why = f"no rule makes the costs of its operators smaller ({evaluations} graphs)"
            return _Found(network, why, evaluations=evaluations)
        self._check()
        execution = executed(module, plan, inputs)
        error = verify(module, execution.module, inputs, lambda outputs: self._loss(outputs, targets)).largest
        found = _Found(network, "", rules=len(plan.rules), evaluations=evaluations, error=error)
        if not error <= TOLERANCE:
            return replace(found, message=f"not exact: relative error {error:.1e} in double precision")
        pairs = self._compared(module, execution.module, inputs, targets)
        if why := self._too_little(pairs):
            return replace(found, message=why, pairs=pairs)
        rules = ", ".join(sorted({step.rule for step in plan.rules}))
        faster = replace(network, execution=execution)
        return replace(found, network=faster, message=f"{_gained(pairs)} ({rules})", won=True, pairs=pairs)

    def _compared(self, module: nn.Module, other: nn.Module, inputs: Tensor, targets: Tensor) -> Comparison:
        method = self._probe.method

        def step(model: nn.Module) -> None:
            self._check()
            torch.autograd.backward(self._loss(method.forward(model, inputs), targets))
            for parameter in model.parameters():
                parameter.grad = None

        return compare(module, other, step, warmup=_WARMUP, clock=self._clock)

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._probe.method.losses(outputs, targets) / len(targets)

    def _too_little(self, pairs: Comparison) -> str:
        """Return why a computation is not worth a change; '' if it is."""
        if not pairs.faster(self._spec.optimise_min_gain):
            least = self._spec.optimise_min_gain
            return f"{_gained(pairs)}; wanted are {least:.1%}, and more than 0 in three of four pairs"
        before, after = pairs.seconds
        # A step has parts that stay as they are: reading examples, the update, messages of other workers.
        saved = (before - after) / max(before, median(self._steps)) * self._scheduler.time_left()
        spent = self._clock() - self._began
        return "" if saved > spent else f"{_gained(pairs)}; saves {saved:.2g} s until the end, and cost {spent:.2g} s"

    def _check(self) -> None:
        now = self._clock()
        if now - self._began > self._allowed:
            raise _BrokenOffError
        if now - self._asked > _ASKING_SECONDS:
            self._asked = now
            if self._until():
                raise _BrokenOffError

    def _record(
        self, kind: str, found: _Found, network: Network, allocation: Allocation, used_seconds: float
    ) -> Adaptation:
        before, after = (None, None) if found.pairs is None else found.pairs.seconds
        return Adaptation(
            decision_id=f"measurement-{uuid.uuid4().hex}",
            time=datetime.now(UTC),
            used_seconds=used_seconds,
            trigger=allocation.reason,
            generation=allocation.generation,
            action=kind if kind == CHANNELS_LAST else f"{kind}({found.rules})",
            source=AdaptationSource.MEASUREMENT,
            policy="memoryFormat" if kind == CHANNELS_LAST else "optimise",
            result=AdaptationResult.REWRITTEN if found.won else AdaptationResult.REVERTED,
            message=found.message,
            depth_before=network.depth,
            depth_after=network.depth,
            parameters_before=network.parameters,
            parameters_after=network.parameters,
            seconds=self._clock() - self._began,
            step_seconds_before=before,
            step_seconds_after=after,
            evaluations=found.evaluations,
            largest_error=found.error if found.error is not None and math.isfinite(found.error) else None,
        )


def refusal(training: TrainingSpec) -> str:
    """Return why steps of a job cannot be rewritten, and the remedy; '' if they can."""
    fields = {"syncBatchNorm": training.sync_batch_norm, "gradientCheckpointing": training.gradient_checkpointing}
    found = next((name for name, value in fields.items() if value), None)
    if found is None:
        return ""
    return f"adaptation.optimise: does not go with training.{found}, which changes how layers compute; leave one out"


def _gained(pairs: Comparison) -> str:
    low, high = pairs.quartiles
    return f"gain {pairs.gain - 1:+.1%}, quartiles {low - 1:+.1%} and {high - 1:+.1%}"


@contextmanager
def _as_it_was(module: nn.Module) -> Iterator[None]:
    """Restore buffers, the mode and random generators afterwards: what is measured trains nothing."""
    kept = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    devices = {each.device for each in module.parameters() if each.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)), mode(module, training=True):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, values in kept:
                    buffer.copy_(values)
