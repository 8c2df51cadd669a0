"""The local backend: the scheduler's loop over processes of this machine, its GPUs simulated or real.

One leader process runs for each admitted job. Further base workers and extra workers are accounted for and
signalled, but no process is started for them: the trainer's workers do not train together yet.
"""

from espalier_operator.local.run import LocalRun, end_orphans, run_local
from espalier_operator.local.settings import GpuChange, LocalRunError, LocalSettings
from espalier_operator.local.state import run_lock
from espalier_operator.local.views import JobView, LocalOutcome, RunView

__all__ = [
    "GpuChange",
    "JobView",
    "LocalOutcome",
    "LocalRun",
    "LocalRunError",
    "LocalSettings",
    "RunView",
    "end_orphans",
    "run_local",
    "run_lock",
]
