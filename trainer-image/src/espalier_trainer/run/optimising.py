"""The search for a faster computation of the same training steps, at the beginning of an epoch.

Channels-last is tried once a job, rewrites of the graph once at the start and once after each growth. A layout is
compared in pairs of steps that train nothing; a rewritten graph, once it is known to be exact, computes every other
step of the training for a while (`Probation`). Both ways compute the same, so no training is lost, and whole steps are
timed. All attempts together may cost a share of the time left. The run's progress records attempts and their cost, so a
resumed run goes on from there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

import torch
from torch import Tensor, nn

from espalier_core.causes import in_one_line
from espalier_core.types.adaptation import AdaptationSpec, Optimise
from espalier_core.types.allocation import Allocation
from espalier_core.types.report import Adaptation
from espalier_core.types.training import MemoryFormat
from espalier_trainer.net2net.modules import copied, mode
from espalier_trainer.optimizers.building import has_layouts, lay
from espalier_trainer.run.attempts import (
    CHANNELS_LAST,
    REWRITE,
    AttemptOutcome,
    cost_of,
    gained,
    is_tried,
    too_little,
)
from espalier_trainer.signals.scheduler import Scheduler
from espalier_trainer.training.execution import (
    PAIRS,
    WARMUP,
    BrokenOffError,
    Comparison,
    Limits,
    Rewriter,
    RewritesRefusedError,
    compare,
    rewriter,
)
from espalier_trainer.training.hooks import Change
from espalier_trainer.training.method import Method
from espalier_trainer.training.network import Network

_EARLY: Final = 5
_HOPELESS: Final = 0.9
"""Median gain after `_EARLY` pairs below which a way is not tried further."""


@dataclass
class Probation:
    """Compares two ways to compute the steps of one network: that of `network` and that of `other`."""

    network: Network
    other: Network
    """The same network with an execution."""
    found: AttemptOutcome
    spent: float
    """Seconds spent on finding it."""
    _pairs: list[tuple[float, float]] = field(default_factory=list)
    _taken: int = 0
    _first: float = 0.0

    @property
    def next(self) -> Network:
        """Network that computes the next step. Every other pair begins with the other way."""
        pair, second = divmod(self._taken, 2)
        return self.other if bool(second) != bool(pair % 2) else self.network

    def stepped(self, seconds: float) -> None:
        """Record the step that `next` has computed."""
        pair, second = divmod(self._taken, 2)
        self._taken += 1
        if not second:
            self._first = seconds
        elif pair >= WARMUP:
            self._pairs.append((self._first, seconds) if pair % 2 == 0 else (seconds, self._first))

    @property
    def over(self) -> bool:
        """Whether it is known which way is faster."""
        count = len(self._pairs)
        return count >= PAIRS or (count >= _EARLY and self.comparison.gain < _HOPELESS)

    @property
    def comparison(self) -> Comparison:
        """Comparison of the pairs so far."""
        return Comparison(tuple(self._pairs))


_COMPARING_STEPS: Final = 2 * (PAIRS + WARMUP)
_MOST_SECONDS: Final = 20.0
"""Maximum seconds of an attempt, even if GPUs are taken back: their notice is 30 s by default."""
_PLANNED: Final = 0.8
"""Share of an attempt's allowed cost after which it is cancelled: it is checked only between two measurements."""
_ASKING_SECONDS: Final = 0.1
"""Interval in seconds of an attempt's checks whether it has to end: other workers wait then."""
_KNOWN_STEPS: Final = 5
"""Number of timed steps of a network after which their duration counts as known."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Steps of the job for measurements."""

    batch: Callable[[int], tuple[Tensor, Tensor]]
    """Function from the number of workers to inputs and targets of one worker's step."""
    method: Method
    refused: str = ""
    """Reason why steps of this job cannot be rewritten; '' if they can."""


class Optimiser:
    """Implementation of `adaptation.optimise` and `training.memoryFormat`. Errors in it never stop training."""

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
        """Seconds of the network's last steps."""
        self._probation: Probation | None = None
        self._unrecorded = 0.0
        """Seconds of attempts that were given up without a record."""
        self._began = self._allowed = self._asked = 0.0
        """Beginning, allowed duration and last check of the current attempt."""
        self._until: Callable[[], bool] = lambda: False
        self._rewriter: Rewriter | None = None
        self._refused = probe.refused if self._rewrites else ""
        if self._rewrites and not self._refused:
            try:
                self._rewriter = rewriter()
            except RewritesRefusedError as error:
                self._refused = str(error)

    @property
    def refused(self) -> str:
        """Reason why the job's request cannot be met; '' if it can."""
        return self._refused

    def computed(self, network: Network) -> Network:
        """Return the network that computes the next step of `network`."""
        if self._probation is not None and self._probation.network is not network:
            self.changed()  # another worker's state was taken over
        return network if self._probation is None else self._probation.next

    def changed(self) -> None:
        """Discard the measurements, as the network has changed."""
        self._steps.clear()
        if self._probation is not None:
            self._unrecorded += self._probation.spent
            self._probation = None

    def stepped(self, seconds: float) -> bool:
        """Record a training step; return whether `decided` must be called."""
        if self._probation is None:
            self._steps.append(seconds)
            return False
        self._probation.stepped(seconds)
        return self._probation.over

    def decided(self, allocation: Allocation) -> Change | None:
        """Return the result of the steps that were computed in another way."""
        probation, self._probation = self._probation, None
        if probation is None:
            return None
        pairs, found = probation.comparison, probation.found
        left = self._scheduler.time_left()
        why = too_little(pairs, self._spec.optimise_min_gain, median(self._steps), left, probation.spent)
        network = probation.network if why else probation.other
        message = why or f"{gained(pairs)}; {found.message}"
        found = replace(found, message=message, won=not why, pairs=pairs)
        return self._change(found, network, allocation, probation.spent)

    def reverted(self, network: Network, allocation: Allocation, message: str) -> Change | None:
        """Return to computing steps by the module after another way failed; return None if it was not in use.

        All workers get the state: a worker whose module computed that step has updated its weights.
        """
        probation, self._probation = self._probation, None
        if probation is not None:
            change = self._change(replace(probation.found, message=message), network, allocation, probation.spent)
        elif network.execution is not None:
            found = AttemptOutcome(REWRITE, message, rules=len(network.execution.plan["rules"]))
            change = self._change(found, replace(network, execution=None), allocation, 0.0)
        else:
            return None
        return replace(change, share=True)

    def look(
        self,
        network: Network,
        adaptations: Sequence[Adaptation],
        allocation: Allocation,
        workers: int,
        until: Callable[[], bool],
    ) -> Change | None:
        """Make the attempts that are due; return the result, None where there is none yet.

        `adaptations` are those of the run so far. An attempt is cancelled, without a record, once `until` returns True.
        """
        due = self._due(network, adaptations)
        if not due or len(self._steps) < _KNOWN_STEPS:
            return None
        left = self._spec.optimise_share * self._scheduler.time_left() - cost_of(adaptations) - self._unrecorded
        self._allowed = min(_MOST_SECONDS, _PLANNED * left)
        # A layout that costs too much does not prevent rewrites; later even less is allowed.
        kind = next((one for one in due if self._least(one, network) <= self._allowed), "")
        if not kind:
            return None
        self._began, self._until = self._clock(), until
        attempt = self._try_layout if kind == CHANNELS_LAST else self._try_rewrites
        try:
            with _as_it_was(network.module):
                network, found = attempt(network, *self._probe.batch(workers))
        except BrokenOffError:
            if until():
                self._unrecorded += self._clock() - self._began
                return None
            found = AttemptOutcome(kind, f"it would take longer than the {self._allowed:.3g} s that it may cost")
        except RewritesRefusedError as error:
            found = AttemptOutcome(kind, str(error))
        except torch.OutOfMemoryError as error:
            found = AttemptOutcome(kind, f"out of memory: {in_one_line(str(error))}")
        # The user's model may raise anything in double precision, and so may a rule that misjudges it.
        except Exception as error:
            found = AttemptOutcome(kind, f"failed ({type(error).__name__}: {error})")
        spent = self._clock() - self._began
        if self._probation is None:
            return self._change(found, network, allocation, spent)
        self._probation.spent = spent
        return None

    # ---- within

    def _due(self, network: Network, adaptations: Sequence[Adaptation]) -> list[str]:
        """Return the kinds of attempts that are due, in order."""
        if self._probation is not None or network.unfolds or network.execution is not None:
            return []  # a graph would freeze a growth that unfolds; rewrites are measured in a layout
        due = []
        if self._lays and not network.channels_last and not is_tried(CHANNELS_LAST, adaptations):
            self._lays = has_layouts(network.module)
            due += [CHANNELS_LAST] * self._lays
        if self._rewriter is not None and not is_tried(REWRITE, adaptations):
            due.append(REWRITE)
        return due

    def _least(self, kind: str, network: Network) -> float:
        """Return the approximate seconds of an attempt that succeeds."""
        step = median(self._steps)
        if kind == CHANNELS_LAST or self._rewriter is None:
            return _COMPARING_STEPS * step
        return self._rewriter.seconds(network.module, step)

    def _try_layout(self, network: Network, inputs: Tensor, targets: Tensor) -> tuple[Network, AttemptOutcome]:
        other = copied(network.module)
        lay(other, None, channels_last=True)

        def step(model: nn.Module) -> None:
            self._check()
            torch.autograd.backward(self._loss(self._probe.method.forward(model, inputs), targets))
            for parameter in model.parameters():
                parameter.grad = None

        pairs = compare(network.module, other, step, clock=self._clock)
        spent, left = self._clock() - self._began, self._scheduler.time_left()
        if why := too_little(pairs, self._spec.optimise_min_gain, median(self._steps), left, spent):
            return network, AttemptOutcome(CHANNELS_LAST, why, pairs=pairs)
        lay(network.module, network.optimizer, channels_last=True)
        if self._rewriter is not None:
            self._rewriter.forget()  # measured in the other layout
        return replace(network, channels_last=True), AttemptOutcome(CHANNELS_LAST, gained(pairs), won=True, pairs=pairs)

    def _try_rewrites(self, network: Network, inputs: Tensor, targets: Tensor) -> tuple[Network, AttemptOutcome]:
        """Find an exact rewrite and put it on probation; the network is unchanged until it passes."""
        if self._rewriter is None:
            raise RewritesRefusedError(self._refused)
        limits = Limits(median(self._steps), self._allowed, self._check, self._clock)
        rewrite = self._rewriter.attempt(network.module, inputs, targets, self._loss, limits)
        found = AttemptOutcome(
            REWRITE, rewrite.message, rules=rewrite.rules, evaluations=rewrite.evaluations, error=rewrite.error
        )
        if rewrite.execution is not None:
            self._probation = Probation(network, replace(network, execution=rewrite.execution), found, 0.0)
        return network, found

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._probe.method.losses(outputs, targets) / len(targets)

    def _check(self) -> None:
        now = self._clock()
        if now - self._began > self._allowed:
            raise BrokenOffError
        if now - self._asked > _ASKING_SECONDS:
            self._asked = now
            if self._until():
                raise BrokenOffError

    def _change(self, found: AttemptOutcome, network: Network, allocation: Allocation, spent: float) -> Change:
        return Change(network, found.record(network, allocation, self._scheduler.used_seconds(), spent))


@contextmanager
def _as_it_was(module: nn.Module) -> Iterator[None]:
    """Restore buffers, the mode and random generators afterwards: measurements train nothing."""
    kept = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    devices = {each.device for each in module.parameters() if each.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)), mode(module, training=True):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, values in kept:
                    buffer.copy_(values)
