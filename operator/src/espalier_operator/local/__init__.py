"""The local backend: the scheduler's loop over processes of this machine, its GPUs simulated or real.

One leader process runs for each admitted job, and one for each of its further workers where the job's workers train
together (`training.elasticBatch`). Where they do not, these are accounted for and signalled, and no process is started.
"""

from espalier_operator.local.run import JobView, LocalOutcome, LocalRun, RunView, end_orphans, run_local
from espalier_operator.local.settings import GpuChange, LocalRunError, LocalSettings, run_lock

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
