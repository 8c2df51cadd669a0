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
    Blame,
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
)
from espalier_operator.policies.learned import (
    FALLBACK,
    NOT_ASKED,
    PolicyFileError,
)
from espalier_operator.policies.settings import (
    configured,
    configured_here,
    takes_seed,
)
from espalier_operator.policies.view import (
    Decision,
    Share,
)
from espalier_operator.resuming import (
    plan_safely,
)

__all__ = [
    "DEFAULT_POLICY",
    "FALLBACK",
    "NOT_ASKED",
    "POLICIES",
    "Action",
    "Admit",
    "Blame",
    "Decision",
    "Fail",
    "Finish",
    "GrantExtra",
    "JobFacts",
    "Node",
    "NoticeReclaim",
    "Order",
    "Plan",
    "Policy",
    "PolicyFileError",
    "Refusal",
    "ReleaseExtra",
    "Replace",
    "Requeue",
    "Role",
    "Share",
    "Snapshot",
    "SnapshotError",
    "Stop",
    "Worker",
    "WorkerState",
    "configured",
    "configured_here",
    "plan",
    "plan_safely",
    "takes_seed",
]
