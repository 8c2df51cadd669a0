"""`python -m espalier_monitoring write FOLDER` or `draw`; see `--help`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Final

from espalier_core.files.documents import write_bytes_atomically, write_text_atomically
from espalier_monitoring.outputs import BOARDS, outputs
from espalier_monitoring.reading import Prometheus, PrometheusError, Reader, ReadingError, Window, seconds_of
from espalier_monitoring.sheet import drawn

_POINTS: Final = 360
"""Number of points along the time axis: about two pixels each."""


def main(arguments: list[str]) -> int:
    """Run the command in the arguments; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m espalier_monitoring", description="Dashboards, alert rules, pages."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    write = commands.add_parser("write", help="write all generated files into a checkout of the project")
    write.add_argument("folder", type=Path, metavar="FOLDER", help="the checkout")
    write.set_defaults(run=_write)
    draw = commands.add_parser("draw", help="draw the dashboards from the data of a Prometheus, without Grafana")
    draw.add_argument("--prometheus", required=True, metavar="URL", help="such as http://127.0.0.1:9090")
    draw.add_argument("--output", required=True, type=Path, metavar="DIR", help="takes DASHBOARD.png; made if missing")
    draw.add_argument(
        "--dashboard", action="append", choices=sorted(BOARDS), help="dashboard to draw; may be repeated; default: all"
    )
    draw.add_argument("--namespace", help="namespace of the job on the job dashboard; default: the first found")
    draw.add_argument("--job", help="job on the job dashboard; default: the first found")
    draw.add_argument("--last", type=_seconds, default="15m", metavar="TIME", help="time range up to now; default: 15m")
    draw.add_argument(
        "--scrape-interval",
        type=_seconds,
        default="15s",
        metavar="TIME",
        help="of that Prometheus, as in Grafana's data source; no rate is shown where it is too short; default: 15s",
    )
    draw.set_defaults(run=_draw)
    chosen = parser.parse_args(arguments)
    return int(chosen.run(chosen))


def _write(arguments: argparse.Namespace) -> int:
    for path, text in outputs().items():
        whole = arguments.folder / path
        whole.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(whole, text)
        print(path)
    return 0


def _draw(arguments: argparse.Namespace) -> int:
    given = {"namespace": arguments.namespace, "job_name": arguments.job}
    now = time.time()
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
            for name in arguments.dashboard or BOARDS:
                path = arguments.output / f"{name}.png"
                write_bytes_atomically(path, drawn(reader.read(BOARDS[name])))
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
