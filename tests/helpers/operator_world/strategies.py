"""Hypothesis strategies for what a planner meets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from espalier_operator.cluster.node_index import ZONE_LABEL
from espalier_operator.model import JobTerms
from espalier_operator.model.constraints import (
    ANYWHERE,
    Constraints,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Taint,
    Toleration,
)

GPU_TYPES = ("", "h100")
"""Nodes that name no type have the type ''."""
RACK_LABEL = "rack"
ZONES = (
    {},
    {"zone": "a", ZONE_LABEL: "a"},
    {"zone": "b", ZONE_LABEL: "b"},
    {"zone": "b", ZONE_LABEL: "b", RACK_LABEL: "1"},
)
"""Labels of nodes."""
TAINTS = ((), (Taint("team", "vision"),))
"""Taints of nodes."""
VISION = (Toleration("team", "Equal", "vision"),)
CONSTRAINTS = (
    ANYWHERE,
    Constraints(node_selector=(("zone", "a"),)),
    Constraints(affinity=(NodeSelectorTerm((NodeSelectorRequirement("zone", "NotIn", ("a",)),)),)),
    Constraints(tolerations=VISION),
    Constraints(node_selector=(("zone", "a"),), tolerations=VISION),
    Constraints(
        affinity=(NodeSelectorTerm(fields=(NodeSelectorRequirement("metadata.name", "In", ("node1",)),)),),
        tolerations=VISION,
    ),
    Constraints(node_selector=(("zone", "nowhere"),)),
    Constraints(requests=(("cpu", 1000),)),
    Constraints(requests=(("cpu", 2500), ("pods", 1))),
)
"""What pods ask of nodes."""
RESOURCES: tuple[Mapping[str, int], ...] = ({}, {}, {"cpu": 4000}, {"cpu": 6000, "pods": 3})
"""What nodes have besides GPUs."""
SECONDS = st.sampled_from((1.0, 5.0, 10.0, 40.0))


@st.composite
def terms(
    draw: st.DrawFn, sizes: tuple[int, ...] = (1, 2, 4), constraints: Sequence[Constraints] = (ANYWHERE,)
) -> JobTerms:
    """Draw what a job asks for; workers have one of `sizes` GPUs. Most ask for what lets others interfere."""
    smallest = draw(st.sampled_from((1, 1, 1, 2, 3)))
    return JobTerms(
        min_replicas=smallest,
        max_replicas=smallest + draw(st.sampled_from((3, 4, 2, 1, 0))),
        gpus_per_worker=draw(st.sampled_from(sizes)),
        priority=draw(st.integers(min_value=0, max_value=2)),
        gpu_type=draw(st.sampled_from((None, None, None, None, *GPU_TYPES))),
        constraints=draw(st.sampled_from(constraints)),
        time_budget_seconds=draw(st.sampled_from((1000.0, 300.0, 40.0))),
        grace_seconds=10.0,
        gpu_seconds_budget=draw(st.sampled_from((None, None, 2000.0, 100.0))),
        notice_seconds=draw(SECONDS),
        cooldown_seconds=draw(SECONDS),
        min_runtime_seconds=draw(SECONDS),
        adapts=draw(st.sampled_from((True, True, True, True, True, False))),
        trains_together=draw(st.booleans()),
        suspend=draw(st.sampled_from((False,) * 9 + (True,))),
        backoff_limit=draw(st.integers(min_value=0, max_value=3)),
        pre_running_deadline_seconds=draw(st.sampled_from((None, None, 40.0))),
    )
