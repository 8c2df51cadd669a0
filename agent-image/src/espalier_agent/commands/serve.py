"""`espalier agent serve`, and the OpenAPI description of its service."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Final

import click

from espalier_agent.history.schema import StoreError
from espalier_agent.history.store import MAX_DATABASE_BYTES
from espalier_agent.policies.advice import Exploration
from espalier_agent.policies.policy import PolicyError
from espalier_agent.service.app import create_app
from espalier_agent.service.proof import Authentication, ReviewError
from espalier_agent.service.server import ServerError
from espalier_agent.service.server import serve as run_server
from espalier_agent.service.serving import ServiceSettings
from espalier_core.console import CommandError, RealRange

MEBIBYTE: Final = 1024 * 1024


def _refuse_outcomes_file(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError(
            "--outcomes-file was removed; use --outcomes-db FILE, which stores decisions and outcomes (SQLite)"
        )


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8500,
    show_default=True,
    help="Port to listen on; 0 chooses a free one.",
)
@click.option(
    "--policy", "policy_path", type=click.Path(path_type=Path), help="Policy folder; default: the shipped one."
)
@click.option(
    "--shadow",
    "shadow_path",
    type=click.Path(path_type=Path),
    help="Folder of a policy that is also asked, but does not decide.",
)
@click.option(
    "--outcomes-db", type=click.Path(path_type=Path), help="Store decisions and outcomes in this file (SQLite)."
)
@click.option(
    "--outcomes-limit",
    type=click.IntRange(min=1),
    default=MAX_DATABASE_BYTES // MEBIBYTE,
    show_default=True,
    metavar="MIB",
    help="Maximum size of that file; when it is reached, nothing more is stored.",
)
@click.option(
    "--explore",
    type=RealRange(0, 1),
    default=0.0,
    show_default=True,
    metavar="SHARE",
    help="Draw this share of the decisions uniformly from the allowed actions, so that `learn --from-history` can "
    "learn "
    "from their outcomes. Those jobs lose what the best action would have gained.",
)
@click.option(
    "--explore-seed", type=int, default=0, show_default=True, help="Seed of the draws, together with the decision's id."
)
@click.option(
    "--authentication",
    type=click.Choice([str(each) for each in Authentication]),
    default=str(Authentication.NONE),
    show_default=True,
    help="Who may ask for advice and report outcomes. TokenReview: only the leader of the job, by a token that the "
    "cluster's API server reviews. None: whoever reaches the port.",
)
@click.option(
    "--require-advice-token",
    is_flag=True,
    help="With TokenReview, refuse advice without a token. This release answers it by default, with a warning, because "
    "trainers of the release before send none.",
)
@click.option(
    "--metrics-tls-dir",
    type=click.Path(path_type=Path),
    help="Folder with tls.crt and tls.key, read again when they change. /metrics is then served over TLS on "
    "--metrics-port, and not on --port.",
)
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), default=8443, show_default=True, help="Port of /metrics over TLS."
)
@click.option(
    "--metrics-authentication",
    type=click.Choice([str(each) for each in Authentication]),
    default=str(Authentication.NONE),
    show_default=True,
    help="Who may scrape over TLS. TokenReview: who proves by a token to be allowed to get the path /metrics.",
)
@click.option("--outcomes-file", hidden=True, expose_value=False, callback=_refuse_outcomes_file)
@click.option(
    "--url-file", type=click.Path(path_type=Path), help="Write the URL to this file once requests are accepted."
)
def serve(
    host: str,
    port: int,
    policy_path: Path | None,
    shadow_path: Path | None,
    outcomes_db: Path | None,
    outcomes_limit: int,
    explore: float,
    explore_seed: int,
    authentication: str,
    require_advice_token: bool,
    metrics_tls_dir: Path | None,
    metrics_port: int,
    metrics_authentication: str,
    url_file: Path | None,
) -> None:
    """Answer trainers over HTTP until SIGTERM or Ctrl-C. Prints the URL when it is ready.

    A new policy in the folder of --policy (or --shadow) takes effect within two seconds, if it can be read.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if metrics_authentication != Authentication.NONE and metrics_tls_dir is None:
        raise click.UsageError("--metrics-authentication: tokens need TLS; give --metrics-tls-dir too")
    settings = ServiceSettings(
        policy_path=policy_path,
        shadow_path=shadow_path,
        outcomes_path=outcomes_db,
        outcomes_max_bytes=outcomes_limit * MEBIBYTE,
        exploration=Exploration(share=explore, seed=explore_seed),
        authentication=Authentication(authentication),
        metrics_tls_dir=metrics_tls_dir,
        metrics_port=metrics_port,
        metrics_authentication=Authentication(metrics_authentication),
        advice_needs_token=require_advice_token,
    )
    try:
        run_server(host, port, settings, url_file=url_file, announce=click.echo)
    except (PolicyError, ReviewError, ServerError, StoreError, OSError) as error:
        raise CommandError(
            str(error), "--port 0 takes a free port" if isinstance(error, ServerError) else None
        ) from error


@click.command()
def openapi() -> None:
    """Print the service's OpenAPI description; `docs/reference/agent.json` is this output."""
    click.echo(json.dumps(create_app().openapi(), indent=1))
