"""The language models: characters of Python's standard library or of a text, a GPT of one run of blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from espalier_core.validation.reading import load_job, with_spec
from flagship.arms import Arm, StepCost
from flagship.subject import Subject

EPOCH_WINDOWS: Final = 128
"""16 steps."""


def gpt() -> Subject:
    """Return what `gpt.py` trains."""
    return Subject(
        name="gpt",
        job=load_job(Path(__file__).parent / "gpt.yaml"),
        runs=("blocks.0",),
        cost=StepCost(0.001, 0.004),
        measure="bits per character",
        short="bits",
        kept={
            Arm.INITIALISED: ("embedding.", "places", "norm.", "head."),
            Arm.EMBEDDINGS: ("embedding.", "places"),
        },
        first_rate=0.004,
        epoch={"windows": EPOCH_WINDOWS},
    )


def gpt_large(path: str, device: str) -> Subject:
    """Return what `gpt_large.py` trains on the text at `path`; what its steps cost is to be measured."""
    job = load_job(Path(__file__).parent / "gpt_large.yaml")
    return replace(
        gpt(),
        name="gpt_large",
        job=with_spec(job, training={"dataset": {"name": "text", "path": path, "options": {"pattern": "*.py"}}}),
        cost=StepCost(1.0, 0.0),
        first_rate=0.001,
        epoch={},
        device=device,
    )
