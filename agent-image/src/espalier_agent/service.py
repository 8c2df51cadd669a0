"""The HTTP service that trainers ask: `create_app` returns it, importing this module makes nothing.

Stateless but for the outcome log, so any number of replicas may answer. One thread answers: a consultation is a
millisecond of small tensors, which gains nothing from threads.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final

from fastapi import Depends, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from espalier_agent.advice import answer_of, decide
from espalier_agent.outcome_log import OutcomeLog
from espalier_agent.policy import Lineage, Policy
from espalier_agent.policy_files import default_policy, load_policy
from espalier_agent.service_errors import ErrorBody, ServiceError, install_error_handlers
from espalier_agent.service_limits import BodyLimit
from espalier_agent.service_metrics import CountedRequests
from espalier_api.advice import AdviceRequest, AdviceResponse, OutcomeReceipt, OutcomeReport, PolicyVersion
from espalier_api.base import Record
from espalier_api.exporting import CONTENT_TYPE, Metrics
from espalier_api.metrics import Exporter

logger = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""A described network of 500 layers is about 200 KB."""


class Settings(Record):
    """What can be set about the service."""

    policy_path: Path | None = None
    """Folder of the policy; absent: the shipped one."""
    outcomes_path: Path | None = None
    """JSON-lines file that outcome reports are appended to; absent: they are not kept."""
    max_body_bytes: int = MAX_BODY_BYTES


class Health(Record):
    """The answer of `/healthz` and `/readyz`."""

    status: str = "ok"


class PolicyDescription(Record):
    """The policy in service."""

    policy: PolicyVersion
    growth_points: int
    """Growth points that the policy decides about; a model's points beyond are never chosen."""
    vocabulary_size: int
    """Distinct layers that it has learnt from; others are embedded from their attributes."""
    lineage: Lineage


def _policy(request: Request) -> Policy:
    policy = getattr(request.app.state, "policy", None)
    if not isinstance(policy, Policy):
        raise ServiceError(503, "NotReady", "the policy is not loaded yet; ask again in a moment")
    return policy


def _outcome_log(request: Request) -> OutcomeLog | None:
    log = getattr(request.app.state, "outcome_log", None)
    return log if isinstance(log, OutcomeLog) else None


CurrentPolicy = Annotated[Policy, Depends(_policy)]
CurrentOutcomeLog = Annotated[OutcomeLog | None, Depends(_outcome_log)]


def create_app(settings: Settings | None = None, policy: Policy | None = None) -> FastAPI:
    """Return the service. `policy` is served as it is; without one, start-up loads the one the settings name.

    A policy that cannot be read ends start-up with `PolicyError`.
    """
    chosen = settings or Settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loaded = policy
        if loaded is None:
            loaded = default_policy() if chosen.policy_path is None else load_policy(chosen.policy_path)
        app.state.policy = loaded
        if chosen.outcomes_path is not None:
            app.state.outcome_log = OutcomeLog(chosen.outcomes_path)
        yield
        app.state.policy = None

    app = FastAPI(
        title="Espalier agent",
        version=version("espalier-agent"),
        description="Advises how a network in training should grow into GPUs that appeared.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses={422: {"model": ErrorBody, "description": "The request cannot be understood."}},
    )
    metrics = Metrics(Exporter.AGENT)
    app.add_middleware(BodyLimit, max_bytes=chosen.max_body_bytes)
    app.add_middleware(CountedRequests, metrics=metrics)
    install_error_handlers(app)
    _add_routes(app, metrics)
    return app


def _add_routes(app: FastAPI, metrics: Metrics) -> None:
    @app.post("/v1/advice", response_model_exclude_none=True, operation_id="advise")
    async def post_advice(request: AdviceRequest, policy: CurrentPolicy) -> AdviceResponse:
        """Advise on one consultation. Any model is answered; what cannot be grown is left as it is."""
        begun = time.perf_counter()
        decision = decide(policy, request)
        answer = answer_of(policy, decision, decision_id=str(uuid.uuid4()))
        metrics.observe("espalier_agent_advice_seconds", time.perf_counter() - begun)
        metrics.count("espalier_agent_advice_total", answer.action.kind)
        metrics.count("espalier_agent_unknown_layers_total", amount=decision.unknown_layers)
        logger.info(
            "decision %s job=%s time_left=%.1fs action=%s",
            answer.decision_id,
            request.job,
            request.time_left_seconds,
            answer.action,
        )
        return answer

    @app.post(
        "/v1/outcomes",
        operation_id="reportOutcome",
        responses={503: {"model": ErrorBody, "description": "The outcome could not be stored."}},
    )
    async def post_outcomes(report: OutcomeReport, log: CurrentOutcomeLog) -> OutcomeReceipt:
        """Take in how a job ended. The receipt counts the decisions that were stored: 0 where no log is configured."""
        metrics.count("espalier_agent_outcomes_total", amount=len(report.decision_ids))
        if log is None:
            return OutcomeReceipt(accepted=0)
        try:
            await run_in_threadpool(log.append, report)
        except OSError as error:
            logger.error("outcome of job %s not stored in %s: %s", report.job, log.path, error)
            raise ServiceError(503, "OutcomeNotStored", f"the outcome could not be stored: {error.strerror}") from error
        return OutcomeReceipt(accepted=len(report.decision_ids))

    @app.get("/v1/policy", response_model_exclude_none=True, operation_id="describePolicy")
    async def get_policy(policy: CurrentPolicy) -> PolicyDescription:
        """Describe the policy in service and where it comes from."""
        return PolicyDescription(
            policy=policy.identity,
            growth_points=policy.network.config.growth_points,
            vocabulary_size=len(policy.vocabulary),
            lineage=policy.lineage,
        )

    @app.get("/metrics", operation_id="metrics", response_class=Response)
    async def get_metrics(request: Request) -> Response:
        """Give the service's metrics as Prometheus scrapes them."""
        policy = getattr(request.app.state, "policy", None)
        if isinstance(policy, Policy):
            metrics.set("espalier_agent_policy_info", 1, policy.identity.name, str(policy.identity.version))
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/healthz", operation_id="healthz")
    async def get_healthz() -> Health:
        """Say that the process answers."""
        return Health()

    @app.get(
        "/readyz",
        operation_id="readyz",
        responses={503: {"model": ErrorBody, "description": "The policy is not loaded."}},
    )
    async def get_readyz(policy: CurrentPolicy) -> Health:
        """Say that a policy is loaded and advice can be asked for."""
        return Health()
