"""`python -m espalier_monitoring write FOLDER` or `draw`; `--help` says more."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from espalier_api.documents import write_text_atomically
from espalier_monitoring.drawing import command
from espalier_monitoring.outputs import outputs


def main(arguments: list[str]) -> int:
    """Do what the arguments say; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m espalier_monitoring", description="Dashboards, alert rules, pages."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    write = commands.add_parser("write", help="write all generated files into a checkout of the project")
    write.add_argument("folder", type=Path, metavar="FOLDER", help="the checkout")
    write.set_defaults(run=_write)
    draw = commands.add_parser("draw", help="draw the dashboards from what a Prometheus knows, without Grafana")
    command.add_arguments(draw)
    draw.set_defaults(run=command.draw)
    chosen = parser.parse_args(arguments)
    return int(chosen.run(chosen))


def _write(arguments: argparse.Namespace) -> int:
    for path, text in outputs().items():
        whole = arguments.folder / path
        whole.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(whole, text)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
