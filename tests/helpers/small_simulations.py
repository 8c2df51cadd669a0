"""What tests of the simulation's drivers simulate: policies that need no types of GPU, few nodes, random jobs."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from espalier_lab.simulator.rounds import SimulatedNode

COMMON_POLICIES: Final = (
    "fair",
    "fifo",
    "las",
    "las:thresholds=600/1200,promote=1",
    "tiresias",
    "gittins:quantum=60",
    "optimus",
)
"""Those by which a job alone takes as long by either driver."""
NODES: Final = (SimulatedNode("a", 4), SimulatedNode("b", 2))
GPUS: Final = 6
JOBS: Final = st.lists(
    st.tuples(st.floats(0, 5000), st.integers(1, GPUS), st.floats(0.5, 5000)), min_size=1, max_size=12
)
"""Submitted at, GPUs, duration."""
