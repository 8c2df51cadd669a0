"""How many kinds of waiting pods of others are planned for."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from espalier_operator.model import Worker, WorkerRole, WorkerState
from espalier_operator.model.constraints import Constraints, NodeSelectorRequirement, NodeSelectorTerm
from espalier_operator.planner.placement import served

PODS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 8)), max_size=40)


def pod(number: int, namespace: str, gpus: int) -> Worker:
    return Worker(
        name=f"{namespace}/{number}", job=None, role=WorkerRole.FOREIGN, node=None, gpus=gpus, state=WorkerState.PENDING
    )


def pinned(number: int, namespace: str) -> Worker:
    """A pod that asks for one node, by its name."""
    field = NodeSelectorRequirement("metadata.name", "In", (f"n{number}",))
    return replace(pod(number, namespace, 1), constraints=Constraints(affinity=(NodeSelectorTerm(fields=(field,)),)))


def test_a_flood_of_one_tenant_leaves_room_for_the_others() -> None:
    flood, other = [pinned(number, "flood") for number in range(1000)], [pod(0, "team", 2), pod(1, "team", 4)]
    found = served([*flood, *other], most=10)
    assert found == [*flood[:8], *other]


@given(PODS, st.integers(1, 12))
def test_all_pods_of_at_most_so_many_kinds_are_served(given_pods: list[tuple[str, int]], most: int) -> None:
    pods = [pod(number, namespace, gpus) for number, (namespace, gpus) in enumerate(given_pods)]
    found = served(pods, most)
    kinds, all_kinds = ({(each.name[0], each.gpus) for each in group} for group in (found, pods))
    assert len(kinds) == min(most, len(all_kinds))
    assert found == [each for each in pods if (each.name[0], each.gpus) in kinds]
    counts = [sum(namespace == name for namespace, _ in kinds) for name in {name for name, _ in all_kinds}]
    left_out = {namespace for namespace, _ in all_kinds - kinds}
    fewest = min((sum(namespace == name for namespace, _ in kinds) for name in left_out), default=0)
    assert not left_out or max(counts) <= fewest + 1, "nobody has more because others come later"
