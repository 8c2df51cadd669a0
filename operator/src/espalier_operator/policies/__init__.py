"""Scheduling policies: the share of each job. The mechanism (`plan`) keeps policies from breaking invariants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from espalier_core.registry import Registry
from espalier_operator.model import DEFAULT_POLICY
from espalier_operator.policies.view import Policy

__all__ = ["POLICIES", "Policy"]

POLICIES: Final[Registry[Callable[..., Policy]]] = Registry(
    "scheduling policy",
    "espalier.scheduling_policies",
    {
        DEFAULT_POLICY: "espalier_operator.policies.fair:FairPolicy",
        "fifo": "espalier_operator.policies.fifo:FifoPolicy",
        "las": "espalier_operator.policies.tiresias:LasPolicy",
        "tiresias": "espalier_operator.policies.tiresias:tiresias",
        "gittins": "espalier_operator.policies.tiresias:GittinsPolicy",
        "gavel": "espalier_operator.policies.gavel:GavelPolicy",
        "gandiva": "espalier_operator.policies.gandiva:GandivaPolicy",
        "goodput": "espalier_operator.policies.goodput:GoodputPolicy",
        "growth": "espalier_operator.policies.value:growth",
        "learned": "espalier_operator.policies.learned:LearnedPolicy",
        "optimus": "espalier_operator.policies.marginal:OptimusPolicy",
        "soonest": "espalier_operator.policies.marginal:SoonestPolicy",
        "value": "espalier_operator.policies.value:ValuePolicy",
    },
)
