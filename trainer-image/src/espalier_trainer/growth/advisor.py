"""Requests for advice on growth: the agent over HTTP, and the fallback when it is unavailable.

Errors here never stop training. An advisor answers, or raises `AdvisorError` with one of three reasons; `WithFallback`
turns such an error into the fallback's decision.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import httpx
from pydantic import ValidationError

from espalier_core.files.documents import first_fault, read_bounded
from espalier_core.types.advice import (
    MAX_TOKEN,
    Action,
    AdviceRequest,
    AdviceResponse,
    ExpectedGain,
    Familiarity,
    OutcomeReport,
    heuristic,
)
from espalier_core.types.job import Fallback
from espalier_core.types.reasons import Reason
from espalier_core.types.report import AdaptationSource

logger = logging.getLogger(__name__)


MAX_ANSWER_BYTES = 1 << 20
OUTCOME_WALL_SECONDS = 1.0
"""Seconds that the end of a job waits for the agent to accept its outcome."""
_POLL_WALL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class AdvisorDecision:
    """One decision, by the agent or the fallback."""

    id: str
    action: Action
    source: AdaptationSource
    policy: str
    probabilities: dict[str, float] = field(default_factory=dict)
    problem: tuple[Reason, str] | None = None
    """Reason why the fallback decided; None for the agent's decision."""
    gains: dict[str, ExpectedGain] = field(default_factory=dict)
    """Expected gain of each growth, by the action's text; empty where the policy does not state gains."""
    familiarity: Familiarity | None = None


class AdvisorError(Exception):
    """No usable advice: `AgentUnavailable` (late, away, HTTP error, garbage), `IllegalAdvice` or `ActionsUnknown`."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Advisor(Protocol):
    """Source of advice on growth. By default, outcomes are ignored."""

    def advise(self, request: AdviceRequest, wall_seconds: float) -> AdvisorDecision:
        """Return a decision on one of `request.actions()` within `wall_seconds`; raises `AdvisorError`."""

    def report_outcome(self, outcome: OutcomeReport) -> None:
        """Report how the job ended. Best effort: never raises, never takes long."""
        return


Cancelled = Callable[[], bool]
"""Function that returns whether training must end, which ends waiting."""


@dataclass
class HTTPAdvisor:
    """The agent at `url`: `POST /v1/advice`, `POST /v1/outcomes`.

    Each request runs in a separate thread, so that one deadline bounds all of it (name resolution, connecting, a server
    that drips its answer); a thread that outlives its deadline is abandoned.
    """

    url: str
    cancelled: Cancelled = lambda: False
    token_file: Path | None = None
    """File with the token that authenticates the job. Read for each request: it is replaced before it expires."""
    _client: httpx.Client = field(init=False)
    _problem: str = ""
    """Last problem with the token."""

    def __post_init__(self) -> None:
        # Made once: a TLS context takes some 30 ms. Agents are near, so the environment's proxy is not used.
        self._client = httpx.Client(base_url=self.url.rstrip("/"), trust_env=False, timeout=None)

    def advise(self, request: AdviceRequest, wall_seconds: float) -> AdvisorDecision:
        """Ask the agent; see `Advisor.advise`."""
        body = request.model_dump_json(by_alias=True)
        response = self._parse(self._post("/v1/advice", body, wall_seconds))
        allowed, action = request.actions(), request.meant(response.action)
        if action is None:
            raise AdvisorError(
                Reason.ILLEGAL_ADVICE,
                f"the agent at {self.url} advised {response.action}; allowed: {', '.join(map(str, allowed))}",
            )
        if _knows_none(response, allowed):
            known = f"{response.policy.name}@{response.policy.version}"
            raise AdvisorError(
                Reason.ACTIONS_UNKNOWN,
                f"the policy {known} knows none of {', '.join(map(str, allowed[:-1]))}",
            )
        return AdvisorDecision(
            id=response.decision_id,
            action=action,
            source=AdaptationSource.AGENT,
            policy=f"{response.policy.name}@{response.policy.version}",
            probabilities={str(entry.action): entry.probability for entry in response.probabilities},
            gains={str(entry.action): entry.gain for entry in response.probabilities if entry.gain is not None},
            familiarity=response.familiarity,
        )

    def forecast(self, request: AdviceRequest, wall_seconds: float) -> AdvisorDecision:
        """Ask for the expected gain of growing, without a decision. Raises `AdvisorError`."""
        return self.advise(request.model_copy(update={"forecast": True}), wall_seconds)

    def report_outcome(self, outcome: OutcomeReport) -> None:
        """Report the outcome to the agent; log errors."""
        try:
            body = outcome.model_dump_json(by_alias=True)
            self._post("/v1/outcomes", body, OUTCOME_WALL_SECONDS)
        except AdvisorError as error:
            logger.info("the outcome was not reported: %s", error)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _proof(self) -> dict[str, str]:
        """Return the header that authenticates the job; empty where there is no usable token."""
        if self.token_file is None:
            return {}
        try:
            token = read_bounded(self.token_file, MAX_TOKEN).decode("ascii").strip()
        except (OSError, ValueError) as error:  # the latter: too large, or no ASCII
            problem = f"{self.token_file}: cannot be read ({error}); the agent is asked without authentication"
            if problem != self._problem:
                logger.warning("%s", problem)
            self._problem = problem
            return {}
        return {"authorization": f"Bearer {token}"} if token.isprintable() and token else {}

    def _post(self, path: str, body: str, wall_seconds: float) -> bytes:
        sent = {"content-type": "application/json", **self._proof()}
        answers: queue.SimpleQueue[bytes | AdvisorError] = queue.SimpleQueue()
        started = time.monotonic()
        exchange = threading.Thread(
            target=lambda: answers.put(self._exchange(path, body, wall_seconds, sent)), name="advice", daemon=True
        )
        try:
            exchange.start()
        except RuntimeError:  # at the end of the process, where Python 3.12 starts no thread
            answers.put(self._exchange(path, body, wall_seconds, sent))
        while (left := started + wall_seconds - time.monotonic()) > 0:
            if self.cancelled():
                raise AdvisorError(Reason.AGENT_UNAVAILABLE, "training ends before the agent answered")
            try:
                answer = answers.get(timeout=min(left, _POLL_WALL_SECONDS))
            except queue.Empty:
                continue
            if isinstance(answer, AdvisorError):
                raise answer
            return answer
        raise self._late(wall_seconds)

    def _exchange(self, path: str, body: str, wall_seconds: float, headers: dict[str, str]) -> bytes | AdvisorError:
        """Return the answer's body or the error; runs in a thread, so it raises nothing."""
        try:
            with self._client.stream(
                "POST",
                path,
                content=body,
                headers=headers,
                timeout=httpx.Timeout(max(wall_seconds, 0.001)),
            ) as response:
                answer = b""
                for chunk in response.iter_bytes():
                    answer += chunk
                    if len(answer) > MAX_ANSWER_BYTES:
                        return self._away(f"answered with more than {MAX_ANSWER_BYTES} bytes")
                if response.status_code != httpx.codes.OK:
                    text = answer[:200].decode(errors="replace")
                    return self._away(f"answered with status {response.status_code}: {text!r}")
                return answer
        except httpx.TimeoutException:
            return self._late(wall_seconds)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, RuntimeError) as error:
            # RuntimeError: the client was closed meanwhile.
            return self._away(f"cannot be reached ({type(error).__name__}: {error})")

    def _late(self, wall_seconds: float) -> AdvisorError:
        return self._away(f"did not answer within {wall_seconds:.3g} s")

    def _away(self, what: str) -> AdvisorError:
        return AdvisorError(Reason.AGENT_UNAVAILABLE, f"the agent at {self.url} {what}")

    def _parse(self, answer: bytes) -> AdviceResponse:
        try:
            return AdviceResponse.model_validate_json(answer)
        except ValidationError as error:
            raise self._away(f"answered with something that is not advice ({first_fault(error)})") from error


def _knows_none(response: AdviceResponse, allowed: tuple[Action, ...]) -> bool:
    """Return whether a policy has no output for any allowed growth: it gives each a probability of exactly 0.

    Its advice to do nothing then means nothing for them.
    """
    given = {entry.action: entry.probability for entry in response.probabilities}
    growing = [action for action in allowed if action.grows]
    return bool(growing) and not response.action.grows and all(given.get(action) == 0.0 for action in growing)


@dataclass(frozen=True)
class NoAgent(Advisor):
    """The job has no agent: neither `adaptation.agent.url` nor a default of the installation."""

    def advise(self, request: AdviceRequest, wall_seconds: float) -> AdvisorDecision:
        """Raise `AdvisorError`."""
        raise AdvisorError(
            Reason.AGENT_UNAVAILABLE, "no agent is known: set adaptation.agent.url or ESPALIER_AGENT_URL"
        )


@dataclass(frozen=True, slots=True)
class FallbackPolicy:
    """Chooses one of the allowed actions without an agent: `adaptation.fallback` of the job."""

    kind: Fallback
    seed: int = 0
    """Seed of random choices."""

    def choose(self, request: AdviceRequest) -> Action:
        """Return one of `request.actions()`.

        `None` chooses `Nothing`. `Random` chooses among all allowed actions, `Nothing` included, with equal
        probability; the choice is the same for the same seed and consultation.
        """
        if self.kind is Fallback.RANDOM:
            # A separate generator, so that training draws the same random numbers.
            return random.Random(f"{self.seed}/{request.job}/{request.progress.adaptations}").choice(request.actions())
        return heuristic(request) if self.kind is Fallback.HEURISTIC else Action.nothing()


@dataclass(frozen=True, slots=True)
class WithFallback:
    """Asks `advisor`; without usable advice, the fallback decides, and the decision gives the reason."""

    advisor: Advisor
    fallback: FallbackPolicy

    def advise(self, request: AdviceRequest, wall_seconds: float) -> AdvisorDecision:
        """Return a decision; raises nothing."""
        try:
            return self.advisor.advise(request, wall_seconds)
        except AdvisorError as error:
            return AdvisorDecision(
                id=f"fallback-{uuid.uuid4().hex}",
                action=self.fallback.choose(request),
                source=AdaptationSource.FALLBACK,
                policy=str(self.fallback.kind),
                problem=(error.reason, str(error)),
            )

    def report_outcome(self, outcome: OutcomeReport) -> None:
        """Pass the outcome on to the advisor."""
        self.advisor.report_outcome(outcome)


BACKOFF_SHARE: Final = 0.01


@dataclass
class AdvisorBackoff:
    """Back-off after an agent time-out, in used seconds of the budget.

    The first lasts 1 % of the budget, each next one in a row twice as long: seven in a budget at most.
    """

    times: int = 0
    """Number of consecutive requests without an answer."""
    until: float = 0.0

    def holds(self, used_seconds: float) -> bool:
        """Return whether it is too early for a request."""
        return used_seconds < self.until

    def record(self, answered: bool, used_seconds: float, budget_seconds: float) -> None:
        """Record a request, and whether it was answered."""
        self.times = 0 if answered else self.times + 1
        if not answered:
            self.until = used_seconds + BACKOFF_SHARE * budget_seconds * 2 ** (self.times - 1)
