"""`espalier agent serve`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from espalier_agent.command_errors import CommandError
from espalier_agent.policy_files import PolicyError
from espalier_agent.server import ServerError
from espalier_agent.server import serve as run_server
from espalier_agent.service import Settings


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8500, show_default=True, help="0 takes a free port.")
@click.option(
    "--policy", "policy_path", type=click.Path(path_type=Path), help="Policy folder; default: the shipped one."
)
@click.option("--outcomes-file", type=click.Path(path_type=Path), help="Append outcome reports here (JSON lines).")
@click.option("--url-file", type=click.Path(path_type=Path), help="Write the URL here once requests are accepted.")
def serve(host: str, port: int, policy_path: Path | None, outcomes_file: Path | None, url_file: Path | None) -> None:
    """Answer trainers over HTTP until SIGTERM or Ctrl-C. Prints the URL when it is ready."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = Settings(policy_path=policy_path, outcomes_path=outcomes_file)
    try:
        run_server(host, port, settings, url_file=url_file, announce=click.echo)
    except (PolicyError, ServerError, OSError) as error:
        raise CommandError(
            str(error), "--port 0 takes a free port" if isinstance(error, ServerError) else None
        ) from error
