"""`python -m espalier_monitoring draw`: a picture of each dashboard, from what a Prometheus knows."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Final

from espalier_api.documents import write_bytes_atomically
from espalier_monitoring.boards import board_text
from espalier_monitoring.drawing.prometheus import Prometheus, PrometheusError, Window
from espalier_monitoring.drawing.reading import Reader, ReadingError
from espalier_monitoring.drawing.sheet import drawn
from espalier_monitoring.drawing.substitution import seconds_of
from espalier_monitoring.outputs import dashboards

_POINTS: Final = 360
"""Along the level axis: about two pixels each."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `draw` takes."""
    parser.add_argument("--prometheus", required=True, metavar="URL", help="such as http://127.0.0.1:9090")
    parser.add_argument(
        "--output", required=True, type=Path, metavar="DIR", help="takes DASHBOARD.png; made if missing"
    )
    parser.add_argument(
        "--dashboard", action="append", choices=sorted(dashboards()), help="which; may be repeated; default: all"
    )
    parser.add_argument("--namespace", help="of the job that the job dashboard shows; default: the first that is found")
    parser.add_argument("--job", help="the job that it shows; default: the first that is found")
    parser.add_argument("--last", type=_seconds, default="15m", metavar="TIME", help="how far back; default: 15m")
    parser.add_argument(
        "--scrape-interval",
        type=_seconds,
        default="15s",
        metavar="TIME",
        help="of that Prometheus, as in Grafana's data source; no rate is shown where it is too short; default: 15s",
    )


def draw(arguments: argparse.Namespace) -> int:
    """Draw; return the exit code."""
    given = {"namespace": arguments.namespace, "job_name": arguments.job}
    now = time.time()
    made = dashboards()
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
        with Prometheus(arguments.prometheus) as prometheus:
            reader = Reader(
                prometheus=prometheus,
                window=Window.until(now, arguments.last, arguments.scrape_interval, _POINTS),
                now=now,
                scrape_seconds=arguments.scrape_interval,
                given={name: value for name, value in given.items() if value is not None},
            )
            for name in arguments.dashboard or made:
                path = arguments.output / f"{name}.png"
                write_bytes_atomically(path, drawn(reader.read(json.loads(board_text(made[name])))))
                print(path)
    except (PrometheusError, ReadingError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: --output: {error}; name a folder that can be written", file=sys.stderr)
        return 1
    return 0


def _seconds(text: str) -> float:
    try:
        return seconds_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
