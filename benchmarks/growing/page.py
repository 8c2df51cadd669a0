"""The table of the zoo as a page of the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.printed import versions

from growing.measured import Row

_HEAD = """<!-- Written by `make bench-growth-zoo`. Do not edit. -->
# Models that grow

{count} models of other libraries, built from their configurations with random weights, in small versions where
possible, with {versions}.

- **Layers**: places where a layer can be added (`deepen`). **Blocks**: runs of residual blocks that can be continued
  exactly (`add_block`). **Scaled**: further runs that only `insertion: Scaled` can double, which is not exact.
  **Groups**: channels that can be widened (`widen`).
- **Eval** and **train**: the largest difference of the first output, relative to its largest entry, after a layer at
  every place, a block at every run and a wider random group are added at once; without dropout, in float64 unless the
  line names another type. **Train** is empty if the model uses random numbers.
- **Causality**: outputs that did not depend on parts of the input (masks, causal padding, other examples) still do not,
  with random values in all weights, including new ones.

{summary}
"""


def page(rows: Sequence[Row]) -> str:
    """Return the page for these lines."""
    parts = [_HEAD.format(count=len(rows), versions=_versions(),
                          summary=_summary(rows))]  # fmt: skip
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


def _summary(rows: Sequence[Row]) -> str:
    counts = Counter({name: sum(bool(getattr(row, name)) for row in rows) for name in ("layers", "blocks", "groups")})
    compared = [row for row in rows if row.evaluation is not None]
    exact = [row for row in compared if row.dtype == "float64"]
    worst = max((max(row.evaluation or 0.0, row.training or 0.0) for row in exact), default=0.0)
    kept = [row for row in rows if row.kept is not None]
    return (
        f"Of {len(rows)} models, {counts['layers']} have places for layers, {counts['blocks']} runs of blocks, "
        f"{counts['groups']} groups of channels; {sum(bool(row.refused) for row in rows)} have none of them. "
        f"The largest difference of the {len(exact)} that run in float64 is {worst:.0e}. "
        f"Causality is kept by {sum(bool(row.kept) for row in kept)} of the {len(kept)} in which it can be measured."
    )


def _table(rows: Sequence[Row]) -> str:
    lines = [
        "| model | layers | blocks | scaled | groups | eval | train | causality |",
        "| --- " + "| ---: " * 6 + "| --- |",
    ]
    for row in rows:
        single = " (float32)" if row.dtype == "float32" else ""
        kept = {True: "kept", False: "**lost**", None: ""}[row.kept]
        counts = (row.layers, row.blocks, row.scaled, row.groups)
        figures = (f"{_figure(row.evaluation)}{single}", _figure(row.training))
        lines.append("| " + " | ".join((row.model, *map(str, counts), *figures, kept)) + " |")
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    return "" if value is None else "0" if value == 0 else f"{value:.0e}"
