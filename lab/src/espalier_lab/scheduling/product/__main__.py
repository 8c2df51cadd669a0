"""The policy server as a process: `python -m espalier_lab.scheduling.product --file FILE`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from espalier_lab.scheduling.product.server import create_app


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command, or of `given`."""
    parser = argparse.ArgumentParser(prog="espalier_lab.scheduling.product", description="Evaluate a policy file.")
    parser.add_argument("--file", type=Path, required=True, help="the policy file; it may be replaced at any time")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8090, help="port to listen on; 0: a free one (%(default)s)")
    return parser.parse_args(given)


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    given = arguments()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    uvicorn.run(
        create_app(given.file),
        host=given.host,
        port=given.port,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    main()
