"""The simulated cluster in text form: `16x4`, or `8x4,2x8`."""

from __future__ import annotations

import re
from typing import Final

from espalier_lab.simulator.errors import TraceError
from espalier_lab.simulator.rounds import SimulatedNode

MAX_GPUS: Final = 1_000_000


def nodes_of(text: str) -> list[SimulatedNode]:
    """Return the nodes of `NODESxGPUS[,NODESxGPUS...]`. Raise `TraceError`."""
    nodes: list[SimulatedNode] = []
    for part in text.split(","):
        found = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,2})", part.strip())
        if found is None:
            raise TraceError(f"cluster {text!r}: {part!r} is not NODESxGPUS, as 16x4 for 16 nodes with 4 GPUs each")
        count, gpus = map(int, found.groups())
        nodes += [SimulatedNode(f"node-{len(nodes) + index}", gpus) for index in range(count)]
    if sum(node.gpus for node in nodes) > MAX_GPUS:
        raise TraceError(f"cluster {text!r}: has more than {MAX_GPUS:,} GPUs")
    return nodes
