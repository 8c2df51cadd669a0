"""The HTTP service for trainers: `create_app` returns it; importing this module has no side effects.

Stateless but for the stored decisions and outcomes, so any number of replicas may answer. One thread answers: a
consultation is a millisecond of small tensors, which gains nothing from threads. Other threads store, watch the
policy's folder and ask a shadow (`espalier_agent.service.serving`), and no answer waits for them.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Annotated, Final

from fastapi import Depends, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from espalier_agent.history.store import NotStoredError
from espalier_agent.policies.advice import answer_of, decide, explored
from espalier_agent.policies.policy import Lineage, Policy, open_policy
from espalier_agent.service.middleware import (
    BodyLimit,
    CountedRequests,
    ErrorBody,
    ServiceError,
    install_error_handlers,
)
from espalier_agent.service.proof import Authentication, Proofs, Reviewer
from espalier_agent.service.serving import ServiceSettings, Serving
from espalier_core.base import Record
from espalier_core.metrics import CONTENT_TYPE, Exporter, Metrics
from espalier_core.types.advice import AdviceRequest, AdviceResponse, OutcomeReceipt, OutcomeReport, PolicyVersion

logger = logging.getLogger(__name__)

LONGEST_LOGGED: Final = 200
"""Maximum length of a name from a request in one line of the log, in characters."""
REPORT_SECONDS: Final = 0.9
"""Seconds that a report waits to be committed; trainers wait one second."""


class Health(Record):
    """The answer of `/healthz` and `/readyz`."""

    status: str = "ok"


class PolicyDescription(Record):
    """The policy in service."""

    policy: PolicyVersion
    growth_points: int
    """Growth points that a policy with the `lstm` encoder decides about; the others serve any number."""
    widening: bool = False
    """Whether it decides about groups of channels, too; otherwise none is ever widened."""
    vocabulary_size: int
    """Number of distinct layers that it has learnt from; others are embedded from their attributes."""
    lineage: Lineage
    parts: tuple[PolicyVersion, ...] = ()
    """The policies that answer for other tasks, and for models with layers outside this one's vocabulary."""
    exploration: float = 0.0
    """Share of the decisions that are drawn uniformly from the allowed actions, to learn their outcomes."""
    shadow: PolicyVersion | None = None
    """The shadow policy, if there is one."""


def _line(text: str) -> str:
    """Return `text` as a part of one line of the log: a request determines the names of growth points."""
    return text if text.isprintable() and len(text) <= LONGEST_LOGGED else ascii(text[:LONGEST_LOGGED])


def _serving(request: Request) -> Serving:
    serving = getattr(request.app.state, "serving", None)
    if not isinstance(serving, Serving):
        raise ServiceError(503, "NotReady", "the policy is not loaded yet; ask again in a moment")
    return serving


CurrentServing = Annotated[Serving, Depends(_serving)]


def create_app(
    settings: ServiceSettings | None = None, policy: Policy | None = None, review: Reviewer | None = None
) -> FastAPI:
    """Return the service. It begins with `policy`; without one, start-up loads the policy in the settings.

    `review` reviews tokens if `settings.authentication` is `TokenReview`; by default the API server of the cluster that
    this process runs in does. Raise `ReviewError` if there is none.

    Start-up fails with `PolicyError` if a policy or shadow cannot be read, and with `StoreError` for a database of
    another version or another program.
    """
    chosen = settings or ServiceSettings()
    metrics = Metrics(Exporter.AGENT)
    reviewer = _reviewer(chosen, review)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loaded = open_policy(chosen.policy_path) if policy is None else policy
        serving = Serving(chosen, loaded, metrics)
        serving.start()
        app.state.serving = serving
        app.state.proofs = proofs = (
            None if reviewer is None else Proofs(reviewer, advice_needs_token=chosen.advice_needs_token)
        )
        yield
        app.state.serving = None
        await run_in_threadpool(serving.close)
        if proofs is not None:
            proofs.close()

    app = FastAPI(
        title="Espalier agent",
        version=version("espalier-agent"),
        description="Advises how a network in training should grow into GPUs that appeared.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses={422: {"model": ErrorBody, "description": "The request cannot be understood."}},
    )
    app.add_middleware(BodyLimit, max_bytes=chosen.max_body_bytes)
    app.add_middleware(CountedRequests, metrics=metrics)
    install_error_handlers(app)
    app.state.metrics = metrics
    _add_routes(app, metrics, scraped=chosen.metrics_tls_dir is None)
    return app


def _reviewer(settings: ServiceSettings, review: Reviewer | None) -> Reviewer | None:
    if settings.authentication is Authentication.NONE:
        return None
    if review is None:
        from espalier_agent.service.reviews import reviewer  # a laptop does without Kubernetes

        return reviewer()
    return review


def _add_routes(app: FastAPI, metrics: Metrics, *, scraped: bool) -> None:
    @app.post(
        "/v1/advice",
        response_model_exclude_none=True,
        operation_id="advise",
        responses={
            401: {"model": ErrorBody, "description": "The proof of the job is missing or not valid."},
            403: {"model": ErrorBody, "description": "The proof is of another job, or from another namespace."},
            503: {"model": ErrorBody, "description": "The policy is not loaded, or the proof not checked, in time."},
        },
    )
    async def post_advice(request: AdviceRequest, raw: Request, serving: CurrentServing) -> AdviceResponse:
        """Advise on one consultation. Any model is answered; one that cannot be grown is left as it is.

        With `--authentication TokenReview`, the header `Authorization: Bearer` carries the token of the job, as in a
        report of an outcome. This release answers requests without it, unless `--require-advice-token` is set.
        """
        proofs: Proofs | None = raw.app.state.proofs
        if proofs is not None:
            await proofs.may_ask(raw.headers.get("authorization"), request.job)
        begun = time.perf_counter()
        # Read once: one policy gives the whole answer, though another may replace it meanwhile.
        policy = serving.policy.current.answering(request)
        decision_id = str(uuid.uuid4())
        decision = decide(policy, request)
        if not request.forecast:
            decision = explored(decision, serving.exploration, decision_id)
        answer = answer_of(policy, decision, decision_id)
        metrics.observe("espalier_agent_advice_seconds", time.perf_counter() - begun)
        if request.forecast:
            return answer
        metrics.count("espalier_agent_advice_total", answer.action.kind)
        metrics.count("espalier_agent_unknown_layers_total", amount=decision.unknown_layers)
        serving.decided(answer.decision_id, request, decision, answer.policy, weight=len(await raw.body()))
        logger.info(
            "decision %s job=%s time_left=%.1fs action=%s",
            answer.decision_id,
            request.job,
            request.time_left_seconds,
            _line(str(answer.action)),
        )
        return answer

    @app.post(
        "/v1/outcomes",
        operation_id="reportOutcome",
        responses={
            401: {"model": ErrorBody, "description": "The proof of the job is missing or not valid."},
            403: {"model": ErrorBody, "description": "The proof is of another job, or from another namespace."},
            503: {"model": ErrorBody, "description": "The outcome was not stored, or its proof not checked, in time."},
        },
    )
    async def post_outcomes(report: OutcomeReport, raw: Request, serving: CurrentServing) -> OutcomeReceipt:
        """Record the outcome of a job.

        200 means that the outcome is committed to the disk; the receipt counts its decisions, 0 if nothing is stored.
        503 means that it is not, or not within a second. It may be reported again any number of times: the same report
        changes nothing, and among different ones about a decision the latest counts. With `--authentication
        TokenReview`, the header `Authorization: Bearer` carries the token that the operator mounts into the pod of the
        job's leader.
        """
        proofs: Proofs | None = raw.app.state.proofs
        if proofs is not None:
            proven = await proofs.identity(raw.headers.get("authorization"), report.job)
            report = report.model_copy(update={"job": proven.key})
        metrics.count("espalier_agent_outcomes_total", amount=len(set(report.decision_ids)))
        if serving.store is None:
            return OutcomeReceipt(accepted=0)
        committed = asyncio.wrap_future(serving.store.report(report))
        try:
            accepted = await asyncio.wait_for(committed, REPORT_SECONDS)
        except NotStoredError as error:
            raise ServiceError(503, "OutcomeNotStored", f"the outcome is not stored: {error}") from error
        except TimeoutError as error:
            raise ServiceError(
                503, "OutcomeNotStored", f"the outcome was not committed within {REPORT_SECONDS:g} s; report it again"
            ) from error
        return OutcomeReceipt(accepted=accepted)

    @app.get("/v1/policy", response_model_exclude_none=True, operation_id="describePolicy")
    async def get_policy(serving: CurrentServing) -> PolicyDescription:
        """Describe the policy in service and its origin: its learner, settings, seed, tables and parent."""
        policy = serving.policy.current
        return PolicyDescription(
            policy=policy.identity,
            growth_points=policy.network.config.growth_points,
            widening=bool(policy.network.config.widening),
            vocabulary_size=len(policy.vocabulary),
            lineage=policy.lineage,
            exploration=serving.exploration.share,
            parts=tuple(part.identity for part in policy.parts),
            shadow=None if serving.shadow is None else serving.shadow.policy.current.identity,
        )

    if scraped:

        @app.get("/metrics", operation_id="metrics", response_class=Response)
        async def get_metrics() -> Response:
            """Return the service's metrics in Prometheus' text format."""
            return Response(metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/healthz", operation_id="healthz")
    async def get_healthz() -> Health:
        """Liveness probe."""
        return Health()

    @app.get(
        "/readyz",
        operation_id="readyz",
        responses={503: {"model": ErrorBody, "description": "The policy is not loaded."}},
    )
    async def get_readyz(serving: CurrentServing) -> Health:
        """Readiness probe: a policy is loaded, and advice can be requested."""
        return Health()
