"""What tests of the simulator simulate, and how: by the command, or on the types of GPU of Gavel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner, Result
from hypothesis import strategies as st

from espalier_lab.commands.simulate_command import simulate
from espalier_lab.simulator.gavel import Throughputs, nodes_by_type, read_gavel
from espalier_lab.simulator.outcome import SimulationOutcome, outcome_of
from espalier_lab.simulator.rounds import SimulatedNode
from espalier_lab.simulator.typed import TypedRounds
from espalier_operator.policies.settings import configured

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


def simulated(*arguments: object) -> Result:
    """Run `espalier simulate`."""
    return CliRunner().invoke(simulate, [str(each) for each in arguments], catch_exceptions=False)


def figures(*arguments: object) -> dict[str, Any]:
    """Return what `espalier simulate --json` prints."""
    done = simulated(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refusal(*arguments: object) -> str:
    """Return what `espalier simulate` prints of what it cannot use."""
    done = simulated(*arguments)
    assert done.exit_code == 2, done.output
    return done.output


def on_types(trace: Path, policy: str) -> SimulationOutcome:
    """Return what comes of a trace of Gavel on its types of GPU, by rounds."""
    jobs = read_gavel(trace, Throughputs(trace.parent))
    TypedRounds(jobs, nodes_by_type("8:16:24"), configured(policy)).run()
    return outcome_of(jobs, 48)
