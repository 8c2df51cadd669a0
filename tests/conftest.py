"""What every run of tests begins with: the same signals, and in CI the same examples.

Hypothesis explores anew in every run on a person's machine, and plays the same examples in every run of CI.
"""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# A shell lets what it starts in the background ignore Ctrl-C, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A change lands or not for what it does, not for what a run happened to draw.
# How long drawing takes says more about what else the machine does.
settings.register_profile("ci", derandomize=True, suppress_health_check=[HealthCheck.too_slow])
if os.environ.get("CI"):
    settings.load_profile("ci")
