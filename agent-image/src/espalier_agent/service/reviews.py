"""Token reviews by the API server of the agent's cluster, the agent's only use of Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from espalier_agent.service.proof import Review, Reviewer, ReviewError
from espalier_core.k8s.client import Client, NoAccessError, api_of_process
from espalier_core.k8s.errors import ApiError, Retries
from espalier_core.k8s.resources import TOKEN_REVIEWS
from espalier_core.k8s.scraping import scrapers_of, serve_metrics

DEADLINE_SECONDS: Final = 1.0
"""Deadline of a review, in seconds; nobody waits longer."""


def metrics_over_tls(
    host: str, port: int, folder: Path, scrape: Callable[[], tuple[str, bytes]], *, reviewed: bool
) -> AbstractContextManager[int]:
    """Serve metrics over TLS; `reviewed`: only to scrapers that the API server authorises.

    Raise `OSError` if there is no certificate or port, and `ReviewError` outside of a cluster.
    """
    try:
        scrapers = scrapers_of("espalier-agent") if reviewed else None
    except NoAccessError as error:
        raise ReviewError(f"--metrics-authentication TokenReview needs a cluster: {error}") from error
    return serve_metrics(host, port, folder, scrape, scrapers)


def reviewer() -> Reviewer:
    """Return a reviewer of tokens. No request is sent yet. Raise `ReviewError` outside of a cluster."""
    try:
        api = api_of_process("espalier-agent")
    except NoAccessError as error:
        raise ReviewError(f"--authentication TokenReview needs a cluster: {error}") from error
    client = Client(api, Retries(deadline=DEADLINE_SECONDS, tries=1))

    def review(token: str, audience: str) -> Review:
        try:
            answer = client.create(TOKEN_REVIEWS, TOKEN_REVIEWS.review({"token": token, "audiences": [audience]}))
        except ApiError as error:
            if error.status is not None and error.status.code in (401, 403):
                raise ReviewError(
                    "the agent may not review tokens; bind its ServiceAccount to a ClusterRole with `create` of "
                    "tokenreviews.authentication.k8s.io (chart: rbac.create, agent.authentication)"
                ) from error
            raise ReviewError(str(error)) from error
        return _review_of(answer.get("status"))

    return review


def _review_of(status: Any) -> Review:
    found = status if isinstance(status, dict) else {}
    user, audiences = found.get("user"), found.get("audiences")
    return Review(
        authenticated=found.get("authenticated") is True,
        username=str(user.get("username", "")) if isinstance(user, dict) else "",
        audiences=tuple(map(str, audiences)) if isinstance(audiences, list) else (),
        error=str(found.get("error", "")),
    )
