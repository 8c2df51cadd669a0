"""Counts where 150 models of other people can grow, and measures by how much growth changes what they compute.

    python benchmarks/growth_zoo.py [--only TEXT ...] [--seed 0] [--sample N] [--page docs/reports/zoo.md]

timm, Hugging Face transformers, torchvision and torch.nn; built from configurations with random weights, nothing is
downloaded. Of each model: the places where a layer can be added, runs of blocks that can be continued exactly or only
scaled, groups of channels. Then all layers and blocks are added at once, and one group drawn at random is widened: the
greatest difference of outputs, relative to the greatest output, without dropout. And for outputs that do not depend on
parts of the input (masks, causal padding): do they still not, whatever the new weights become?
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

import torch
from growing.cases import cases
from growing.measured import Row, measured
from growing.page import page
from harness.printed import progress

from espalier_core.files.documents import json_lines
from espalier_core.growth.architecture import GrowthError


def main() -> int:
    """Measure, print, and write the page; returns 1 where a model could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], metavar="TEXT", help="models whose names contain one of these")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, and of what is drawn")
    parser.add_argument("--sample", type=int, default=0, help="number of models, drawn by the seed; 0: all")
    parser.add_argument("--rows", type=Path, help="keep the lines here, and go on from those that are there")
    parser.add_argument("--page", type=Path, help="write the table as a page of the documentation")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    chosen = {
        key: case for key, case in cases().items() if not options.only or any(text in key for text in options.only)
    }
    if options.sample:
        drawn = random.Random(options.seed).sample(list(chosen), min(options.sample, len(chosen)))
        chosen = {key: chosen[key] for key in drawn}
    rows = _known(options.rows)
    failed = 0
    for number, (key, case) in enumerate(chosen.items(), start=1):
        if key not in rows:
            try:
                rows[key] = measured(case, options.seed)
            except (AssertionError, GrowthError, RuntimeError, TypeError, ValueError) as error:
                failed += 1
                progress(f"{number}/{len(chosen)} {key}: {type(error).__name__}: {error}")
                continue
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(asdict(rows[key])) + "\n")
        row = rows[key]
        progress(
            f"{number}/{len(chosen)} {key}: {row.layers} layers, {row.blocks} blocks, {row.scaled} scaled, "
            f"{row.groups} groups, differences {row.evaluation}, {row.training} ({row.dtype}), kept {row.kept}, "
            f"{row.seconds:.1f} s"
        )
    text = page([rows[key] for key in chosen if key in rows])
    if options.page:
        options.page.write_text(text)
    else:
        print(text)
    return 1 if failed else 0


def _known(path: Path | None) -> dict[str, Row]:
    if path is None or not path.exists():
        return {}
    rows = [Row(**json.loads(line)) for line in json_lines(path.read_text())]
    return {f"{row.library}: {row.model}": row for row in rows}


if __name__ == "__main__":
    sys.exit(main())
