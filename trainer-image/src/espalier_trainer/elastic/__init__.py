"""Elastic data-parallel training: workers join and leave a running job at step boundaries, without a restart.

`Team` is the leader's side, `Member` the side of all other workers. A *generation* is the time with one set of members:
one process group of torch.distributed, formed in the running processes. `docs/reference/training.md` has the protocol.
"""

from espalier_trainer.elastic.group import GroupBrokenError
from espalier_trainer.elastic.team import Team

__all__ = ["GroupBrokenError", "Team"]
