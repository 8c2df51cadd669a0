"""Authentication of leaders, which request advice and report outcomes, by a token that the API server reviews.

A token is a claim until its review: its audience only names the job to check. Reviews are limited in time and in rate,
and a result is kept for a short time under the hash of the token.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from espalier_agent.service.middleware import ServiceError
from espalier_core.types.advice import AUDIENCE, MAX_TOKEN, JobIdentity, namespace_of_account
from espalier_core.types.environment import AGENT_TOKEN_FILE

logger = logging.getLogger(__name__)

REVIEW_SECONDS: Final = 0.5
"""Seconds that a request waits for a review. Trainers wait one second in all."""
REVIEWS_PER_SECOND: Final = 10.0
REVIEWS_AT_ONCE: Final = 20.0
"""Number of reviews without delay; in the long run, more than `REVIEWS_PER_SECOND` are refused."""
REVIEWERS: Final = 4
"""Number of threads that send reviews."""
KEPT: Final = 1024
"""Maximum number of kept results; the least recently used one is forgotten first."""
KEPT_SECONDS: Final = 60.0
"""Seconds for which a result is kept: a revoked token is accepted for that long."""
_UNCHECKED: Final = 503
_SHAPE: Final = f"{AUDIENCE}/NAMESPACE/NAME/UID"


class Authentication(StrEnum):
    """The service's method of authenticating leaders."""

    NONE = "None"
    """No authentication: every client that reaches the port may send requests and reports."""
    TOKEN_REVIEW = "TokenReview"
    """By a token of the job's leader that the cluster's API server reviews."""


@dataclass(frozen=True, slots=True)
class Review:
    """The API server's answer about a token."""

    authenticated: bool
    username: str = ""
    audiences: tuple[str, ...] = ()
    error: str = ""


class ReviewError(Exception):
    """The API server did not review the token. The message has the reason and the remedy."""


Reviewer = Callable[[str, str], Review]
"""Reviews a token for an audience; blocks for at most a second, and raises `ReviewError`."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A token bucket that limits reviews."""

    left: float = REVIEWS_AT_ONCE
    at: float = 0.0

    def taken(self, now: float) -> Rate | None:
        """Return the rate after one more review at `now` (seconds); None if none is left."""
        left = min(REVIEWS_AT_ONCE, self.left + max(0.0, now - self.at) * REVIEWS_PER_SECOND)
        return Rate(left - 1, now) if left >= 1 else None


class Proofs:
    """Checks the senders of requests and reports. Used from one event loop."""

    def __init__(
        self, review: Reviewer, clock: Callable[[], float] = time.monotonic, *, advice_needs_token: bool = False
    ) -> None:
        """`clock` gives seconds. Without `advice_needs_token`, advice without a token is answered, with a warning."""
        self._review, self._clock, self._advice_needs_token = review, clock, advice_needs_token
        self._unproven: set[str] = set()
        """Jobs for which a warning was logged."""
        self._rate = Rate(at=clock())
        self._kept: OrderedDict[bytes, tuple[float, Review]] = OrderedDict()
        self._threads = ThreadPoolExecutor(REVIEWERS, "token-review")

    def __len__(self) -> int:
        """Return the number of kept results."""
        return len(self._kept)

    async def identity(self, authorization: str | None, job: str) -> JobIdentity:
        """Return the proven sender of a request, which is `job` (`namespace/name`).

        Raise `ServiceError`: 401 if the proof is missing or not valid, 403 if it is for another job or from another
        namespace, 503 if it could not be checked.
        """
        token = _token(authorization)
        claimed = claimed_job(token)
        if claimed is None:
            raise _unauthenticated(f"the token names no job: its one audience must be {_SHAPE}")
        if claimed.key != job:
            raise _forbidden(f"the token is for job {claimed.key[:320]!r} and the request is of job {job!r}; send each "
                             "request with the token of its job")  # fmt: skip
        review = await self._reviewed(token, claimed.audience)
        if not review.authenticated or claimed.audience not in review.audiences:
            reason = review.error or f"it is not for the audience {claimed.audience}"
            raise _unauthenticated(f"the API server does not accept the token: {reason[:300]}")
        if namespace_of_account(review.username) != claimed.namespace:
            raise _forbidden(
                f"the token is of {review.username[:300]!r}, and job {job!r} needs one of a ServiceAccount in "
                f"namespace {claimed.namespace!r}"
            )
        return claimed

    async def may_ask(self, authorization: str | None, job: str) -> None:
        """Allow `job` to ask for advice, or raise `ServiceError` as `identity` does.

        Trainers of the previous release send no token. While they are answered, so is a token that cannot be checked.
        """
        try:
            await self.identity(authorization, job)
        except ServiceError as error:
            if self._advice_needs_token or not (authorization is None or error.status == _UNCHECKED):
                raise
            if job not in self._unproven and len(self._unproven) < KEPT:
                self._unproven.add(job)
                logger.warning("job %s: advice is given without proof, which the next release refuses: %s", job, error)

    def close(self) -> None:
        """End the threads; reviews that still wait are cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _reviewed(self, token: str, audience: str) -> Review:
        digest, now = hashlib.sha256(token.encode()).digest(), self._clock()
        known = self._kept.get(digest)
        if known is not None and now < known[0]:
            self._kept.move_to_end(digest)
            return known[1]
        rate = self._rate.taken(now)
        if rate is None:
            raise _unchecked(f"more than {REVIEWS_PER_SECOND:g} token reviews per second are requested; try again")
        self._rate = rate
        try:
            asked = asyncio.wrap_future(self._threads.submit(self._review, token, audience))
            review = await asyncio.wait_for(asked, REVIEW_SECONDS)
        except TimeoutError as error:
            raise _unchecked(f"the API server did not answer within {REVIEW_SECONDS:g} s; try again") from error
        except (ReviewError, RuntimeError) as error:  # RuntimeError: the service ends
            raise _unchecked(str(error)) from error
        self._kept[digest] = (now + KEPT_SECONDS, review)
        self._kept.move_to_end(digest)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return review


def claimed_job(token: str) -> JobIdentity | None:
    """Return the job in the audience of a token, without checking the token; None if it names none."""
    with suppress(ValueError, RecursionError):  # not base64, not UTF-8, not JSON
        payload = token.split(".")[1] if token.count(".") == 2 else ""
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        audience = claims.get("aud") if isinstance(claims, dict) else None
        if isinstance(audience, list) and len(audience) == 1:
            audience = audience[0]
        return JobIdentity.of_audience(audience) if isinstance(audience, str) else None
    return None


def _token(authorization: str | None) -> str:
    scheme, _, token = (authorization or "").strip().partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise _unauthenticated(
            "the request carries no proof of its job: send the header `Authorization: Bearer TOKEN` with the text of "
            f"the file that {AGENT_TOKEN_FILE} names; the operator mounts it into the leader's pod"
        )
    if len(token) > MAX_TOKEN or not token.isascii():
        raise _unauthenticated(f"the token has {len(token)} characters; at most {MAX_TOKEN} of ASCII are accepted")
    return token


def _unauthenticated(message: str) -> ServiceError:
    return ServiceError(401, "Unauthenticated", message)


def _forbidden(message: str) -> ServiceError:
    return ServiceError(403, "Forbidden", message)


def _unchecked(message: str) -> ServiceError:
    return ServiceError(_UNCHECKED, "ProofNotChecked", f"the token could not be checked: {message}")
