"""What one job should have, as a policy wishes it."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

ONE: Final = Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a job should have."""

    job: str
    workers: int
    """The total number of its workers. With fewer than its base workers the job waits."""
    spare: int = 0
    """The number of workers beyond that, while no share needs their GPUs."""
    weight: Fraction = ONE
    """Spare GPUs are shared in proportion to it: the smallest number of GPUs over the weight is raised first."""
    gpu_type: str | None = None
    """The type of its GPUs, until the decision's `until`; None: any."""
    nodes: tuple[str, ...] = ()
    """Preferred node of each of its workers, base workers first; empty: any. The planner follows it for workers that
    are still to be created, if all of it can be met; running workers do not move."""
    beside: str | None = None
    """An earlier share's job, whose GPUs it uses too; None: it has its own."""
