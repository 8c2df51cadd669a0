"""The command `python -m espalier_operator`, and its log on stderr: lines for people, or JSON for collectors."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from espalier_core.k8s.scraping import AUTHENTICATIONS, NOBODY_ASKED
from espalier_operator.kube.objects.names import LEASE_NAME
from espalier_operator.kube.process.health import Address
from espalier_operator.kube.process.lease import LEASE_SECONDS, SHORTEST_LEASE_SECONDS
from espalier_operator.kube.process.service import Invocation, run_operator
from espalier_operator.kube.settings import settings_of, settings_options

TEXT, JSON = "text", "json"
_EXITS = """Exit codes: 0 stopped by SIGTERM or SIGINT; 1 a fault of the program; 2 options that are not valid;
3 the lease was lost; 4 no credentials for an API server, or an address or folder that cannot be used."""


def _address(context: click.Context, parameter: click.Parameter, value: str) -> Address | None:
    try:
        address = Address.parse(value) if value else None
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error
    if parameter.name == "snapshot_http" and address is not None and not address.is_loopback:
        problem = f"{value!r} is reachable from outside, and a snapshot names everybody's jobs; give 127.0.0.1:PORT"
        raise click.BadParameter(problem, context, parameter)
    return address


@click.command(
    context_settings={"auto_envvar_prefix": "ESPALIER_OPERATOR", "help_option_names": ["-h", "--help"]}, epilog=_EXITS
)
@settings_options
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Path of the kubeconfig. Default: the cluster of this pod; outside a cluster, $KUBECONFIG.",
)
@click.option(
    "--lease/--no-lease",
    default=True,
    show_default=True,
    help=f"Whether to wait for the Lease {LEASE_NAME}, so that only one operator is active. With another "
    f"--controller-name it is {LEASE_NAME}-HASH.",
)
@click.option(
    "--lease-seconds",
    type=click.IntRange(min=SHORTEST_LEASE_SECONDS, max=3600),
    default=LEASE_SECONDS,
    show_default=True,
    help="Seconds after which others take over an expired Lease. The holder gives up after two thirds of it.",
)
@click.option(
    "--namespace",
    envvar=["ESPALIER_OPERATOR_NAMESPACE", "POD_NAMESPACE"],
    default="espalier-system",
    show_default=True,
    help="Namespace of the Lease; in a pod, $POD_NAMESPACE.",
)
@click.option(
    "--http",
    default="0.0.0.0:8080",
    show_default=True,
    callback=_address,
    help="Address of /healthz; '' switches it off.",
)
@click.option(
    "--metrics-tls-dir",
    type=click.Path(path_type=Path),
    help="Folder with tls.crt and tls.key, read again when they change. /metrics is then served over TLS on "
    "--metrics-https, and not on --http.",
)
@click.option(
    "--metrics-https",
    default="0.0.0.0:8443",
    show_default=True,
    callback=_address,
    help="Address of /metrics over TLS.",
)
@click.option(
    "--metrics-authentication",
    type=click.Choice(AUTHENTICATIONS),
    default=NOBODY_ASKED,
    show_default=True,
    help="Who may scrape over TLS. TokenReview: who proves by a token to be allowed to get the path /metrics.",
)
@click.option(
    "--snapshot-http",
    default="127.0.0.1:8081",
    show_default=True,
    callback=_address,
    help="Loopback address of /snapshot, for kubectl port-forward; '' switches it off.",
)
@click.option(
    "--audit-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for a log of all decisions, with the snapshots from which `espalier plan` repeats them.",
)
@click.option(
    "--audit-mib",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    help="Maximum size of that folder in MiB; the oldest entries are removed.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Minimum level of log messages.",
)
@click.option(
    "--log-format", type=click.Choice([TEXT, JSON]), default=TEXT, show_default=True, help="Format of log lines."
)
def main(log_level: str, log_format: str, **given: Any) -> None:
    """Schedule AdaptiveTrainingJobs: which job gets which GPUs, and for how long.

    Each option has an environment variable: ESPALIER_OPERATOR_ and its name in capitals.
    """
    set_up_logs(log_level, log_format)
    if given["metrics_authentication"] != NOBODY_ASKED and given["metrics_tls_dir"] is None:
        raise click.UsageError("--metrics-authentication: tokens need TLS; give --metrics-tls-dir too")
    invocation = Invocation(**{name: given[name] for name in Invocation.__dataclass_fields__})
    sys.exit(asyncio.run(run_operator(settings_of(given), invocation)))


# ---- the log


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time, level, logger, message, and the traceback of an error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logs(level: str, style: str) -> None:
    """Log everything of `level` and above in `style`; from kopf and libraries, only messages for administrators."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if style == JSON else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level.upper() != "DEBUG":
        for noisy in ("kopf.activities", "kopf._core.engines.activities", "aiohttp.access"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # a line for each event of each object
