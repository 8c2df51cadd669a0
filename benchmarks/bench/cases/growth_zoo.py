"""Where 150 models of other people can grow, and by how much growth changes what they compute.

timm, Hugging Face transformers, torchvision and torch.nn; built from configurations with random weights, nothing is
downloaded. Of each model: the places where a layer can be added, runs of blocks that can be continued exactly or only
scaled, groups of channels. Then all layers and blocks are added at once, and one group drawn at random is widened: the
greatest difference of outputs, relative to the greatest output, without dropout. And for outputs that do not depend on
parts of the input (masks, causal padding): do they still not, whatever the new weights become?

Writes docs/reports/zoo.md where all models are measured. --work-dir keeps the lines, and goes on from those that are
there. Takes 20 minutes of a core.
"""

from __future__ import annotations

import argparse
import json
import random
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.command import BenchError, Option
from bench.printing import PROJECT, Parts, progress, versions
from bench.zoo.measured import Row, measured
from bench.zoo.models import Case, cases
from espalier_core.files.documents import json_lines
from espalier_core.growth.architecture import GrowthError

OPTIONS = {
    "only": Option([], "models whose names contain one of these", type=str),
    "seed": Option(0, "of the weights, and of what is drawn"),
    "sample": Option(0, "number of models, drawn by the seed; 0: all"),
    "page": Option(
        None, "write the table as a page of the documentation (default: docs/reports/zoo.md, of all)", type=Path
    ),
}
QUICK = {"only": ["test_resnet", "gpt2", "nn: LSTM"]}
_HEAD = """<!-- Written by `make bench-growth-zoo`. Do not edit. -->
# Models that grow

**Where can models of other people grow, and does growth keep what they compute?**

- {summary}
- {causality}
- {exact}
- The {count} models are of timm, Hugging Face, torchvision and torch, small, with random weights ({versions}).
- `espalier points --model MODULE:FUNCTION` says the same of yours, with the reason where there is no place.

![Models by the largest difference of their outputs after growth](images/zoo.png)

`make bench-growth-zoo` (20 minutes of a core) writes this page, and `make bench-reports` draws the figure from it.

- **Layers**: places for a layer (`deepen`). **Blocks**: runs of residual blocks that can be continued exactly
  (`add_block`), and after a plus those that only `insertion: Scaled` can double. **Groups**: channels that can be
  widened (`widen`).
- **Difference**: the largest one of the first output, relative to its largest entry, after a layer at every place, a
  block at every run and a wider random group are added at once; in eval mode, and in train mode without dropout unless
  the model uses random numbers; in float64 unless the line names another type.
- **Causality**: outputs that did not depend on parts of the input (masks, causal padding, other examples) still do not,
  with random values in all weights, including new ones.
"""


def page(rows: Sequence[Row]) -> str:
    """Return the page for these lines."""
    parts = [_HEAD.format(count=len(rows), versions=_versions(), **_answers(rows))]
    libraries = {library: [row for row in rows if row.library == library] for library in ("timm", *_others(rows))}
    parts += [f"## {library}\n\n{_table(own)}\n" for library, own in libraries.items() if own]
    refused = [row for row in rows if row.refused]
    if refused:
        lines = "\n".join(f"- {row.model} ({row.library}): {row.refused}" for row in refused)
        parts.append(f"## Models without a place\n\nThe first reason that `espalier points` gives:\n\n{lines}\n")
    return "\n".join(parts)


def _others(rows: Sequence[Row]) -> list[str]:
    return [library for library in dict.fromkeys(row.library for row in rows) if library != "timm"]


def _versions() -> str:
    found = versions("torch", "torchvision", "timm", "transformers")
    return ", ".join(f"{name} {number.partition('+')[0]}" for name, number in found.items())


def _answers(rows: Sequence[Row]) -> dict[str, str]:
    counts = Counter({name: sum(bool(getattr(row, name)) for row in rows) for name in ("layers", "blocks", "groups")})
    exact = [row for row in rows if row.evaluation is not None and row.dtype == "float64"]
    worst = max((_largest(row) or 0.0 for row in exact), default=0.0)
    seen = [row for row in rows if row.kept is not None]
    lost = ", ".join(f"{row.model} (**lost**)" for row in seen if not row.kept)
    return {
        "summary": f"Of {len(rows)} models, {counts['layers']} have places for layers, {counts['blocks']} runs of "
        f"blocks, {counts['groups']} groups of channels; {sum(bool(row.refused) for row in rows)} have none.",
        "causality": f"Causality is kept by {sum(bool(row.kept) for row in seen)} of the {len(seen)} models that tell"
        f"{f'; not by {lost}' if lost else ''}.",
        "exact": f"The largest difference of the {len(exact)} that run in float64 is {worst:.0e}.",
    }


def _table(rows: Sequence[Row]) -> str:
    lines = ["| model | layers | blocks | groups | difference |", "| --- " + "| ---: " * 4 + "|"]
    for row in rows:
        single = " (float32)" if row.dtype == "float32" else ""
        counts = (row.layers, f"{row.blocks}+{row.scaled}" if row.scaled else row.blocks, row.groups)
        lines.append("| " + " | ".join((row.model, *map(str, counts), f"{_figure(_largest(row))}{single}")) + " |")
    return "\n".join(lines)


def _largest(row: Row) -> float | None:
    return None if row.evaluation is None else max(row.evaluation, row.training or 0.0)


def _figure(value: float | None) -> str:
    return "" if value is None else "0" if value == 0 else f"{value:.0e}"


def chosen(options: argparse.Namespace) -> dict[str, Case]:
    """Return the cases that are asked for."""
    found = {
        key: case for key, case in cases().items() if not options.only or any(text in key for text in options.only)
    }
    if options.sample:
        drawn = random.Random(options.seed).sample(list(found), min(options.sample, len(found)))
        found = {key: found[key] for key in drawn}
    return found


def run(options: argparse.Namespace) -> Parts:
    """Measure, and give or write the page. Raises `BenchError` where a model could not be measured."""
    warnings.simplefilter("ignore")
    asked, file = chosen(options), options.work_dir / "rows.jsonl"
    lines = json_lines(file.read_text()) if file.exists() else ()
    rows = {f"{row.library}: {row.model}": row for row in (Row(**json.loads(line)) for line in lines)}
    failed = 0
    for number, (key, case) in enumerate(asked.items(), start=1):
        if key not in rows:
            try:
                rows[key] = measured(case, options.seed)
            except (AssertionError, GrowthError, RuntimeError, TypeError, ValueError) as error:
                failed += 1
                progress(f"{number}/{len(asked)} {key}: {type(error).__name__}: {error}")
                continue
            with file.open("a") as kept:
                kept.write(json.dumps(asdict(rows[key])) + "\n")
        row = rows[key]
        progress(
            f"{number}/{len(asked)} {key}: {row.layers} layers, {row.blocks} blocks, {row.scaled} scaled, "
            f"{row.groups} groups, differences {row.evaluation}, {row.training} ({row.dtype}), kept {row.kept}, "
            f"{row.seconds:.1f} s"
        )
    found = [rows[key] for key in asked if key in rows]
    yield {"rows": [asdict(row) for row in found]}
    to = options.page or (None if options.only or options.sample else PROJECT / "docs" / "reports" / "zoo.md")
    if to:
        to.write_text(page(found))
        yield f"{to}"
    else:
        yield page(found)
    if failed:
        raise BenchError(f"{failed} models could not be measured")
