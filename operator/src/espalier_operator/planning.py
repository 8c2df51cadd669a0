"""Planning, as other parts use it: a snapshot and a policy in, a plan of actions out."""

from espalier_operator.actions import (
    Action,
    Admit,
    Fail,
    Finish,
    GrantExtra,
    NoticeReclaim,
    Plan,
    Refusal,
    ReleaseExtra,
    Replace,
    Requeue,
    Stop,
)
from espalier_operator.facts import (
    DEFAULT_POLICY,
    JobFacts,
    Node,
    Role,
    Snapshot,
    SnapshotError,
    Worker,
    WorkerState,
)
from espalier_operator.order import (
    Order,
)
from espalier_operator.plan import (
    plan,
)
from espalier_operator.policies import (
    POLICIES,
    Policy,
    elasticity_of,
)
from espalier_operator.policies.settings import (
    configured,
    takes_seed,
)
from espalier_operator.policy_view import (
    decided,
)

__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "Action",
    "Admit",
    "Fail",
    "Finish",
    "GrantExtra",
    "JobFacts",
    "Node",
    "NoticeReclaim",
    "Order",
    "Plan",
    "Policy",
    "Refusal",
    "ReleaseExtra",
    "Replace",
    "Requeue",
    "Role",
    "Snapshot",
    "SnapshotError",
    "Stop",
    "Worker",
    "WorkerState",
    "configured",
    "decided",
    "elasticity_of",
    "plan",
    "takes_seed",
]
