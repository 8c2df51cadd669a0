"""The language model: characters of Python's standard library, a GPT of one run of blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from espalier_api.validation import load_job
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
            Arm.ANEW: ("embedding.", "places", "norm.", "head."),
            Arm.EMBEDDINGS: ("embedding.", "places"),
        },
        first_rate=0.004,
        epoch={"windows": EPOCH_WINDOWS},
    )
