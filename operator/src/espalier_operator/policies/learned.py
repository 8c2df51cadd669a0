"""Shares by a policy file, which another process evaluates; without an answer, the shares of `fair`.

The operator neither loads the file nor waits for it in `decide`. Before a plan, `remote.Asking` puts the file's answer,
or the reason for its absence, into the policy's memory. So a restart, a replay of the audit log and `espalier explain`
decide the same without the file. Where a file is named (`file`), as on a laptop and in simulations, this process
evaluates it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from pydantic import TypeAdapter, ValidationError

from espalier_core.registry import Registry, RegistryError
from espalier_operator.policies.fair import FairPolicy, served_before, weight_of
from espalier_operator.policies.view import Decision, Elasticity, Share, View, base_share

SERVER_URL: Final = "http://127.0.0.1:8090"
"""Address of the policy server in the operator's pod."""
LONGEST_WAIT: Final = 0.9
"""Longest `wait`, in seconds, so that `fair` decides within a second."""
AGAIN_SECONDS: Final = 5.0
"""Delay before a policy that did not answer is asked again."""
_KEY: Final = "learned"
"""Key in the policy's memory."""


NOT_ASKED: Final = "its policy file was not asked about this moment"
"""Reason for a fallback where no known answer holds: an operator asks before each plan, other programs cannot."""
FALLBACK: Final = FairPolicy()
"""The policy that decides where a policy file does not."""


class PolicyFileError(ValueError):
    """A policy file cannot be read or cannot serve this cluster; the message names the file and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment:
    """The workers of a job in an answer."""

    job: str
    workers: int
    spare: int = 0
    nodes: tuple[str, ...] = ()
    """As in `Share`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAnswer:
    """A policy file's answer to one view."""

    policy: str
    """Name and version of the policy in the file."""
    allotments: tuple[Allotment, ...]
    """Allotments in the order in which jobs are served."""
    preempts: bool = False
    until: float | None = None
    """As in `Decision`, like `follows_progress`."""
    follows_progress: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the answer in plain JSON types."""
        found: dict[str, Any] = _ANSWERS.dump_python(self, mode="json")
        return found


def answer_of(raw: Any) -> PolicyAnswer:
    """Parse the output of `PolicyAnswer.to_json`. Raises `PolicyFileError`."""
    try:
        return _ANSWERS.validate_python(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise PolicyFileError(f"the answer cannot be read: {place}: {first['msg']}") from error


class PolicyFile(Protocol):
    """A loaded policy file."""

    def answer(self, view: View) -> PolicyAnswer:
        """Return the workers of each job. Raises `PolicyFileError` where the file cannot serve this cluster."""


READERS: Final[Registry[Callable[[Path], PolicyFile]]] = Registry(
    "reader of policy files", "espalier.scheduling_policy_files", {}
)
"""Readers by file extension. They come with another package, as they need NumPy, and raise `PolicyFileError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPolicy:
    """Workers of each job, and preferred nodes if any, by a policy file; otherwise the shares of `fair`.

    An answer holds until jobs or GPUs have changed, at most `hold` seconds. Without one in time all GPUs go as under
    `fair`, and the file is asked again after a few seconds.
    """

    elasticity: ClassVar[Elasticity] = Elasticity.WORKERS
    queue_order: ClassVar[str] = "in the order of its policy file"

    file: str = ""
    """Path of a policy file that this process evaluates; empty: the policy server evaluates it."""
    url: str = SERVER_URL
    """URL of the policy server."""
    wait: float = 0.5
    """Seconds for which a plan waits for an answer."""
    hold: float = 60.0
    """Seconds after which the file is asked again if nothing has changed."""
    name: str = "learned"
    _read: PolicyFile | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        """Read the file, if one is named. Raises `ValueError` for an invalid setting, and `PolicyFileError`."""
        if not 0 < self.wait <= LONGEST_WAIT:
            raise ValueError(f"wait: {self.wait:g} s is out of range; must be above 0 and at most {LONGEST_WAIT:g}")
        if not 1 <= self.hold < math.inf:
            raise ValueError(f"hold: {self.hold:g} s is out of range; must be finite and at least 1")
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: {self.url!r} is not a URL; write http://HOST:PORT")
        if self.file:
            object.__setattr__(self, "_read", read_file(Path(self.file)))

    def decide(self, view: View) -> Decision:
        """Return the shares of the valid answer, or the shares of `fair` with the reason.

        Raises `PolicyFileError` where this process evaluates the file and it cannot serve the cluster.
        """
        if not view.jobs:
            return Decision(shares=(), memory=view.memory)
        kept = _remembered(view)
        if kept.why:
            return _fallback(view, kept.why, kept.again_at)
        if self._read is not None and (kept.is_outdated(view) or not view.continuous):
            memory = answered(view, self._read.answer(view), self.hold)
            return _decision(view, _remembered(replace(view, memory=memory)), memory)
        if kept.answer is None or view.now >= kept.until:
            return _fallback(view, NOT_ASKED, None)
        return _decision(view, kept, view.memory)

    def is_due(self, view: View) -> bool:
        """Return whether the file must be asked before a decision about this view."""
        if not view.jobs:
            return False
        kept = _remembered(view)
        return view.now >= kept.again_at if kept.why else kept.is_outdated(view)

    @property
    def evaluates(self) -> PolicyFile | None:
        """The file, if this process evaluates it."""
        return self._read


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remembered:
    """The policy's memory: the last answer, and the reason for which there is no newer one."""

    answer: PolicyAnswer | None = None
    jobs: tuple[str, ...] = ()
    """Keys of the jobs in the question."""
    gpus: int = 0
    until: float = 0.0
    why: str = ""
    """Reason of the last failed question; empty: the last one was answered."""
    again_at: float = 0.0

    def is_outdated(self, view: View) -> bool:
        """Return whether the answer is for other jobs or GPUs, or too old."""
        same = self.answer is not None and self.gpus == view.gpus and set(self.jobs) == {job.key for job in view.jobs}
        return not same or view.now >= self.until


def read_file(path: Path) -> PolicyFile:
    """Read a policy file. Raises `PolicyFileError`."""
    try:
        return READERS.load(path.suffix.removeprefix(".") or "none")(path)
    except RegistryError as error:
        known = ", ".join(f".{name}" for name in READERS.names())
        ending = f"its name must end with {known}" if known else "install espalier-lab, which reads it"
        raise PolicyFileError(f"{path}: no installed reader supports this type of file: {ending}") from error


def answered(view: View, answer: PolicyAnswer, hold: float) -> dict[str, Any]:
    """Return the memory after an answer to `view`, which holds for at most `hold` seconds."""
    until = view.now + hold if answer.until is None else min(view.now + hold, answer.until)
    kept = _Remembered(answer=answer, jobs=tuple(job.key for job in view.jobs), gpus=view.gpus, until=until)
    return _memory_of(kept)


def unanswered(view: View, why: str) -> dict[str, Any]:
    """Return the memory after a failed question."""
    return _memory_of(replace(_remembered(view), why=why, again_at=view.now + AGAIN_SECONDS))


def _memory_of(kept: _Remembered) -> dict[str, Any]:
    return {_KEY: _MEMORY.dump_python(kept, mode="json")}


def _remembered(view: View) -> _Remembered:
    """Return the memory of the view; an empty one where it is of another version."""
    try:
        return _MEMORY.validate_python(view.memory.get(_KEY, {}))
    except ValidationError:
        return _Remembered()


def _decision(view: View, kept: _Remembered, memory: Mapping[str, Any]) -> Decision:
    """Return the shares of the stored answer, followed by those of newer jobs, as under `fair`."""
    answer = kept.answer
    if answer is None:
        raise ValueError("there is no answer")
    jobs = {job.key: job for job in view.jobs}
    shares = [
        Share(
            job=each.job,
            workers=each.workers,
            spare=each.spare,
            nodes=each.nodes,
            weight=weight_of(jobs[each.job].priority),
        )
        for each in answer.allotments
        if each.job in jobs
    ]
    known = set(kept.jobs)
    later = sorted((job for job in view.jobs if job.key not in known), key=served_before)
    return Decision(
        shares=(*shares, *(base_share(job, weight=weight_of(job.priority)) for job in later)),
        preempts=answer.preempts,
        until=kept.until if view.continuous else answer.until,
        follows_progress=answer.follows_progress,
        memory=memory,
    )


def _fallback(view: View, why: str, until: float | None) -> Decision:
    shares = FALLBACK.decide(view).shares
    return Decision(shares=shares, until=until, memory=view.memory, fallback=why)


_ANSWERS: Final[TypeAdapter[PolicyAnswer]] = TypeAdapter(PolicyAnswer)
_MEMORY: Final[TypeAdapter[_Remembered]] = TypeAdapter(_Remembered)
