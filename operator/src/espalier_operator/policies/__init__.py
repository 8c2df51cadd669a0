"""Policies: who should have what. The mechanism (`plan`) sees to it that no policy can break an invariant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from espalier_api.registry import Registry
from espalier_operator.facts import DEFAULT_POLICY
from espalier_operator.policies.view import Decision, Elasticity, View


class Policy(Protocol):
    """Who should have which GPUs. Pure: no clock, no I/O; what it must remember it returns with its decision."""

    @property
    def name(self) -> str:
        """What settings and metrics call it."""

    @property
    def queue_order(self) -> str:
        """The order of admission, to follow "these jobs wait before it, ": `by priority, recent use and age`."""

    def decide(self, view: View) -> Decision:
        """Return what each job should have."""


POLICIES: Final[Registry[Callable[..., Policy]]] = Registry(
    "scheduling policy",
    "espalier.scheduling_policies",
    {
        DEFAULT_POLICY: "espalier_operator.policies.fair:FairPolicy",
        "fifo": "espalier_operator.policies.fifo:FifoPolicy",
        "las": "espalier_operator.policies.las:LasPolicy",
        "tiresias": "espalier_operator.policies.las:tiresias",
        "gittins": "espalier_operator.policies.gittins:GittinsPolicy",
        "gavel": "espalier_operator.policies.gavel:GavelPolicy",
        "gandiva": "espalier_operator.policies.gandiva:GandivaPolicy",
        "goodput": "espalier_operator.policies.goodput:GoodputPolicy",
        "optimus": "espalier_operator.policies.optimus:OptimusPolicy",
    },
)


def elasticity_of(policy: Policy) -> Elasticity:
    """Return what a policy changes of a job, besides when it runs: its `elasticity`, `FIXED` where it has none."""
    elasticity: Elasticity = getattr(policy, "elasticity", Elasticity.FIXED)
    return elasticity
