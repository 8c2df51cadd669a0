"""`gpt` at a size that fills a GPU: nets of 13 to 51 million parameters.

The protocol and the arms of `gpt`; controls with --controls. The text is the files *.py of the folder --data. What a
step costs with 1 and 4 blocks is measured first, in seconds of this device, and kept with the runs: after that, time is
virtual. Takes about 10 minutes of a GPU.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench import flagship
from bench.cases.gpt import gpt
from bench.command import BenchError, Option
from bench.flagship.costs import with_cost
from bench.flagship.study import carried_out, options, runs_file
from bench.flagship.subject import Arm, StepCost, Subject
from bench.printing import Parts
from espalier_core.validation.reading import load_job, with_spec

KEEPS: Final = True
OPTIONS: Final = {
    **options(budgets=[20.0], moments=[0.2], seeds=3),
    "data": Option(None, "folder of the text", type=str),
    "device": Option("cuda"),
    "controls": Option(False, "also the controls"),
}
QUICK: Final = {**{"budgets": [2.0], "seeds": 1, "rates": [0.001] * 3}, "arms": [Arm.ONE, Arm.FOUR, Arm.UNFOLDED]}


def gpt_large(path: str, device: str) -> Subject:
    """Return what is trained on the text at `path`; what its steps cost is to be measured."""
    job = load_job(Path(flagship.__file__).with_name("gpt_large.yaml"))
    return replace(
        gpt(),
        name="gpt_large",
        job=with_spec(job, training={"dataset": {"name": "text", "path": path, "options": {"pattern": "*.py"}}}),
        cost=StepCost(1.0, 0.0),
        first_rate=0.001,
        epoch={},
        device=device,
    )


def run(options: argparse.Namespace) -> Parts:
    """Measure what steps cost, make the runs, and give the tables."""
    if options.data is None:
        raise BenchError("--data: is missing; name a folder of the text")
    subject = with_cost(gpt_large(options.data, options.device), runs_file(options))
    if not options.controls:
        subject = replace(subject, kept={})
    yield f"a step costs {subject.cost.base:.4f} s and {subject.cost.block:.4f} s a block on {options.device}"
    yield from carried_out(subject, options)
