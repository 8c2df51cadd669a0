"""`join`: determines this process's part in the job from the environment, and creates its loop.

Before a script joins, `WATCH` reports its start, and the reason if it ends.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from espalier_core.growth.widen import WIDEN
from espalier_core.types import environment
from espalier_core.types.adaptation import Trials
from espalier_core.types.environment import ExitCode, Role
from espalier_core.types.job import AdaptiveTrainingJob, ElasticBatch
from espalier_core.types.reasons import Reason
from espalier_core.types.report import TrainerPhase
from espalier_core.validation.reading import JobFileError, load_job
from espalier_trainer.elastic.member import Member
from espalier_trainer.elastic.membership import WorkerIdentity
from espalier_trainer.elastic.states import StateCopy
from espalier_trainer.errors import OwnLoopError, SupersededError, TrainerError
from espalier_trainer.net2net.modules import ExampleInput, mode, undisturbed
from espalier_trainer.net2net.refusals import why_split
from espalier_trainer.process.settings import SettingsError, StopSignal, TermSignal, TrainerSettings
from espalier_trainer.run.batching import batching_of
from espalier_trainer.run.contracts import report_early
from espalier_trainer.run.run import Run
from espalier_trainer.run.services import connect, keep_freed, seed_of, set_threads
from espalier_trainer.run.steps import LoopSpec
from espalier_trainer.training.progress import ending_of
from espalier_trainer.user_loop.feed import Feed, StreamFeed, is_stream
from espalier_trainer.user_loop.leader import UserLeader
from espalier_trainer.user_loop.local_loop import LocalLoop
from espalier_trainer.user_loop.loop import UserLoop
from espalier_trainer.user_loop.state import UserState
from espalier_trainer.user_loop.stateful import Stateful, require_dense
from espalier_trainer.user_loop.worker import UserWorker

logger = logging.getLogger(__name__)


_OF_A_JOB: Final = (
    environment.JOB_FILE,
    environment.ALLOCATION_FILE,
    environment.REPORT_FILE,
    environment.RENDEZVOUS,
    environment.WORKER_ROLE,
    environment.JOB_NAME,
)
"""Environment variables of which at least one is set in processes started for a job."""
_WATCHED: Final = "_ESPALIER_WATCHED"
"""Variable with the id of the watched process, for this process and its children."""


def is_of_a_job() -> bool:
    """Return whether this process was started for a job."""
    return any(os.environ.get(name) for name in _OF_A_JOB)


def leads() -> bool:
    """Return whether this process will lead its job, or has none. Raises `SettingsError`."""
    return not is_of_a_job() or TrainerSettings.from_environment(os.environ).leads


class JoinWatch:
    """Reports the start of the script, and the exception that ended the process before it joined.

    So a script that ends early, with any exit code, is known to have trained nothing.
    """

    def __init__(self) -> None:
        self.joined = False

    def begin(self) -> None:
        """Watch this process if it was started for a job, and not by the job's own process."""
        if is_of_a_job() and _WATCHED not in os.environ and multiprocessing.parent_process() is None:
            os.environ[_WATCHED] = str(os.getpid())
            atexit.register(self._exit)
            self._report()

    def _exit(self) -> None:
        error = getattr(sys, "last_value", None)
        if not self.joined and error is not None and os.environ.get(_WATCHED) == str(os.getpid()):
            ending = ending_of(error, stepped=False)
            self._report(ending.phase, ending.reason, ending.message)

    def _report(self, *said: Any) -> None:
        try:
            settings = TrainerSettings.from_environment(os.environ)
            report_early(settings, load_job(settings.job_file, resource=None), *said)
        except (TrainerError, JobFileError) as problem:
            logger.warning("cannot report the start of the script: %s", problem)


WATCH: Final = JoinWatch()


Validate = Callable[[nn.Module], float | Tensor]
"""Function that returns the validation loss of a model, which is in eval mode and needs no gradients."""


class _BrokenOffError(Exception):
    """Cancels an evaluation from within the model's forward."""


def validation_loss(validate: Validate, model: nn.Module, stop: Callable[[], bool]) -> float | None:
    """Return the loss that the script's `validate` computes for the model; None where `stop` cancelled it."""

    def look(*_: Any) -> None:
        if stop():
            raise _BrokenOffError

    handle = model.register_forward_pre_hook(look)
    try:
        with undisturbed(model), mode(model, training=False):
            return float(validate(model))
    except _BrokenOffError:
        return None
    finally:
        handle.remove()


def join(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    loader: DataLoader[Any],
    *others: Stateful,
    grow: bool = False,
    accumulate: int = 1,
    example: ExampleInput | None = None,
    validate: Validate | None = None,
) -> tuple[UserLoop, Iterable[Any]]:
    """Make this script's loop a worker of a job; return the loop, and the batches that replace `loader`.

    `optimizer` may be a list of several, which together train the model. `others` are the other parts of the training
    state: objects with `state_dict` and `load_state_dict`, such as learning-rate schedulers, a `GradScaler`, or an
    average of the weights. With `grow` the model may be grown between two epochs, as the job's agent advises, and
    averages of its weights with it; all stay the same objects. With `accumulate`, an optimizer step takes this many
    batches. `example` is a batch of two as the model's forward takes it (a tensor, a tuple of arguments, or a
    dictionary of named ones); it is only needed with `grow`, if a batch of the loader does not begin with it.
    `validate` takes the model, in eval mode, and returns its validation loss: with it, extra workers try a growth first
    if the job has `adaptation.trials`. Under a job `model`, `optimizer` and `others` hold the newest checkpoint
    afterwards, if there is one.

    A script that was not started for a job gets a plain loop and `loader` itself. Under a job a script joins once.
    Raises `OwnLoopError` if the script requests something impossible. An error in the job, environment or checkpoint
    ends the process with exit code 2; exit code 4 means that a later leader has taken over.
    """
    if accumulate < 1:
        raise OwnLoopError(f"join: accumulate is {accumulate}; give the number of batches of a step, 1 or more")
    if is_of_a_job() and (why := why_split(model)):
        raise OwnLoopError(f"join: {why}")
    state = UserState(model, optimizer, others)
    if not is_of_a_job():
        return LocalLoop(state, loader, accumulate), loader
    if WATCH.joined:
        # A second loop would continue the first one's checkpoint, report and budget.
        raise OwnLoopError("join: this process has joined already, and a job trains one model; start a job for each")
    try:
        settings = TrainerSettings.from_environment(os.environ)
        # The trainer does not know the cluster's GPU resource; the operator has checked the template.
        job = load_job(settings.job_file, resource=None)
        if job.spec.training.elastic_batch is not None:
            require_dense(state.optimizer)
        set_threads(model, state.device)
        keep_freed(state.device)
        joined = _Joining(settings, job, state, loader, accumulate, grow, example, validate)
        loop = joined.lead() if settings.leads else joined.follow()
    except OwnLoopError:
        raise  # with its traceback: the mistake is in the script
    except JobFileError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
    except SupersededError as error:
        print(error, file=sys.stderr)
        raise SystemExit(int(ExitCode.SUPERSEDED)) from None
    except SettingsError as error:
        print(error, file=sys.stderr)
    except TrainerError as error:
        print(error, file=sys.stderr)
        report_early(settings, job, TrainerPhase.FAILED, Reason.INVALID_SPEC, str(error))
    else:
        WATCH.joined = True
        return loop, loop
    raise SystemExit(int(ExitCode.INVALID))


@dataclass(frozen=True, slots=True)
class _Joining:
    """What a script joins its job with."""

    settings: TrainerSettings
    job: AdaptiveTrainingJob
    state: UserState
    loader: DataLoader[Any]
    accumulate: int
    grow: bool
    example: ExampleInput | None
    """None: the beginning of a batch."""
    validate: Validate | None
    """Function that judges trials of growths; None where growths cannot be tried."""

    def lead(self) -> UserLeader:
        """Return the loop of the leader."""
        job, state, stop = self.job, self.state, StopSignal()
        stop.install()
        seed = seed_of(self.settings, job)
        feed, cannot_grow = self._feed(seed)
        with ExitStack() as stack:
            services = stack.enter_context(
                connect(self.settings, job, stop, state.device, seed, grows=self.grow, hashed=state.digest)
            )
            identity = state.identity(job.key, feed.examples, feed.batch_size, seed)
            # The script computes each part of a batch at once.
            batching = batching_of(job.spec.training, feed.batch_size, state.optimizer, accumulates=False)
            validate = self.validate
            spec = LoopSpec(
                example=self._example_input(feed) if self.grow else None,
                cannot_grow=cannot_grow,
                batching=batching,
                cannot_try=self._cannot_try(),
                base_loss=lambda: (
                    None if validate is None else validation_loss(validate, state.model, run.cannot_go_on)
                ),
            )
            run = Run(job, state, services, identity, spec)
            return UserLeader(run, state, feed, stop, stack.pop_all())

    def follow(self) -> UserWorker:
        """Return the loop of another worker."""
        settings, job, state, term = self.settings, self.job, self.state, TermSignal()
        term.install()
        seed = seed_of(settings, job)
        feed, _ = self._feed(seed)
        held, trial = StateCopy(state), None
        trials = job.spec.adaptation.trials is not Trials.OFF
        if trials and self.grow and self.validate is not None and not is_stream(self.loader):
            from espalier_trainer.user_loop.trial import UserTrial

            loss, example = partial(validation_loss, self.validate, state.model), self._example_input(feed)
            trial = UserTrial(state, held, feed, loss, example, job.spec.adaptation.described_insertion, term)
        identity = WorkerIdentity(settings.role is Role.BASE, settings.index, settings.node)
        member = Member(held, seed, state.device, identity, stop=term, hashed=state.digest, carry_out=trial)
        training = job.spec.training
        rendezvous = None if training.elastic_batch is None else settings.rendezvous
        return UserWorker(state, held, feed, member, rendezvous, term, sync_batch_norm=bool(training.sync_batch_norm))

    def _cannot_try(self) -> str:
        """Return why extra workers cannot try growths, and the remedy; '' if they can."""
        if is_stream(self.loader):
            return (
                "a stream of examples is read by one worker; give a map-style data set, or set adaptation.trials to Off"
            )
        if not self.grow:
            return (
                "the script does not let its model grow; give grow=True where it joins, or set adaptation.trials to Off"
            )
        if self.validate is None:
            return (
                "the script gives no validation loss, by which trials are judged; give validate=, a function that "
                "takes the model and returns it, in addition to grow=True where it joins (join, ElasticWorker, "
                "ElasticTrainer)"
            )
        return ""

    def _feed(self, seed: int) -> tuple[Feed, str]:
        """Return the feed of batches, and why the model cannot grow ('' if it can)."""
        elastic = self.job.spec.training.elastic_batch
        if elastic is None and is_stream(self.loader):
            feed: Feed = StreamFeed(self.loader, seed, self.accumulate)
        else:
            feed = Feed(self.loader, elastic or ElasticBatch.KEEP_GLOBAL, seed, self.accumulate)
        if not self.grow:
            return feed, "the script does not let its model grow; give grow=True where it joins"
        spec = self.job.spec.adaptation
        only_adding = [name for name in spec.actions if name != WIDEN.name]
        return feed, self.state.may_grow(self._example_input(feed), spec.described_insertion, only_adding)

    def _example_input(self, feed: Feed) -> ExampleInput:
        example, device = feed.example_input() if self.example is None else self.example, self.state.device
        if isinstance(example, Mapping):
            return {name: _to(each, device) for name, each in example.items()}
        return tuple(_to(each, device) for each in example) if isinstance(example, tuple) else example.to(device)


def _to(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value
