"""Hypothesis explores anew in every run on a person's machine, and plays the same examples in every run of CI."""

from __future__ import annotations

import os

from hypothesis import settings

# A change lands or not for what it does, not for what a run happened to draw.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
