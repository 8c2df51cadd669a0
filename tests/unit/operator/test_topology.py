"""Packing: few racks, then few nodes, then the fullest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

import sweeps
from espalier_operator.cluster.capacity import Capacity
from espalier_operator.cluster.node_index import ZONE_LABEL
from espalier_operator.model import Node, Rules
from espalier_operator.model.constraints import ANYWHERE, Constraints
from operator_world import facts

RACK_LABEL = "example.com/rack"


def node(name: str, gpus: int, zone: str | None = "a", rack: str | None = None, **resources: int) -> Node:
    labels = {ZONE_LABEL: zone, RACK_LABEL: rack}
    known = {key: value for key, value in labels.items() if value is not None}
    return Node(name=name, gpu_type="h100", allocatable=gpus, labels=known, resources=resources)


def gang(
    nodes: Sequence[Node], gpus: int, workers: int, constraints: Constraints = ANYWHERE, rack_label: str = RACK_LABEL
) -> list[str] | None:
    """Return the nodes of a gang, None where it gets none."""
    jobs = [facts.job("ns/a", workers, gpus_per_worker=gpus, constraints=constraints)]
    capacity = Capacity(nodes, [], set(), [constraints], jobs, rack_label)
    placed = capacity.take_gang(capacity.node_pool("h100", constraints), gpus, workers)
    found = capacity.placed_since(0)
    capacity.transaction.undo(0)
    again = capacity.take_gang(capacity.node_pool("h100", constraints), gpus, workers)
    assert (again, len(set(capacity.placed_since(0)))) == (placed, len(set(found))), "nothing is left behind"
    return found if placed else None


def test_a_gang_gets_the_fewest_nodes_and_the_last_part_the_fullest() -> None:
    """With or without labels."""
    nodes = [node("one", 1, None), node("two", 2, None), node("five", 5, None), node("eight", 8, None)]
    assert gang(nodes, 1, 4) == ["five"] * 4
    assert gang(nodes, 1, 10) == ["eight"] * 8 + ["two"] * 2
    assert gang(nodes, 2, 3) == ["eight"] * 3
    assert gang(nodes, 1, 17) is None


def test_a_gang_goes_into_one_rack_that_has_room_for_all() -> None:
    nodes = [node("a1", 8, "a", "1"), node("a2", 8, "a", "2"), *(node(f"b{n}", 4, "b", "3") for n in range(4))]
    assert Counter(gang(nodes, 1, 16)) == {f"b{n}": 4 for n in range(4)}
    assert gang(nodes, 1, 8) in (["a1"] * 8, ["a2"] * 8), "fewer nodes than in the other rack"
    assert gang(nodes, 1, 4) in (["a1"] * 4, ["a2"] * 4), "the fullest rack of those that need one node"


def test_a_gang_that_no_rack_holds_goes_into_few_racks_of_one_zone() -> None:
    many = [node(f"a{n}", 4, "a", str(n)) for n in range(4)]
    few = [node(f"b{n}", 6, "b", str(n)) for n in range(3)]
    found = Counter(gang([*many, *few], 1, 12))
    assert sorted(found.values()) == [6, 6]
    assert len(set(gang([*many, *few], 1, 30) or ())) == 6


def test_without_the_rack_label_zones_are_packed() -> None:
    nodes = [node("a1", 8, "a", "1"), node("b1", 4, "b", "1"), node("b2", 8, "b", "2")]
    assert Counter(gang(nodes, 1, 12, rack_label="")) == {"b2": 8, "b1": 4}


def test_a_rack_without_cpus_does_not_count() -> None:
    nodes = [node("a1", 4, "a", "1", cpu=3), node("b1", 4, "b", "1", cpu=9), node("b2", 3, "b", "1", cpu=9)]
    assert gang(nodes, 1, 4, Constraints(requests=(("cpu", 1),))) == ["b1"] * 4
    assert gang(nodes, 1, 3, Constraints(requests=(("cpu", 1),))) == ["a1"] * 3


def grown(nodes: Sequence[Node], *held: str, extra: int) -> list[str | None]:
    """Return the nodes of `extra` workers that a job gets whose base workers are on `held`."""
    job = facts.trains("ns/a", len(held), len(held) + extra, gpu_type="h100", cooldown_seconds=1.0)
    rules = Rules(rack_label=RACK_LABEL)
    return list(facts.decide(nodes, job, facts.base_on(job, *held), rules=rules, now=10.0).placements["ns/a"].extra)


def test_extra_workers_come_close_to_their_job() -> None:
    """To its nodes, then its racks, then its zones, then anywhere; the fullest of several."""
    nodes = [
        *(node("far", 1, "b", "9"), node("zone", 2, "a", "2"), node("zone-fuller", 1, "a", "3")),
        *(node("rack", 2, "a", "1"), node("own", 4, "a", "1")),
    ]
    assert grown(nodes, "own", "own", extra=8) == ["own"] * 2 + ["rack"] * 2 + ["zone-fuller"] + ["zone"] * 2 + ["far"]
    unlabelled = [node("other", 1, None), node("own", 4, None)]
    assert grown(unlabelled, "own", extra=4) == ["own"] * 3 + ["other"]


MACHINES = st.tuples(st.integers(0, 4), st.sampled_from((None, "a", "b")), st.sampled_from((None, "1", "2")))


@settings(max_examples=sweeps.examples(300), deadline=None)
@given(st.lists(MACHINES, min_size=1, max_size=7), st.sampled_from((1, 2)), st.integers(1, 12), st.booleans())
def test_fewest_racks_then_fewest_nodes(
    machines: list[tuple[int, str | None, str | None]], gpus: int, workers: int, has_cpus: bool
) -> None:
    """A gang gets its GPUs where they are; in one rack if it fits into one, and there on the fewest nodes."""
    cpus = {} if has_cpus else {"cpu": 2}
    constraints = Constraints(requests=(("cpu", 1),))
    nodes = [node(f"n{n}", *machine, **cpus) for n, machine in enumerate(machines)]
    room = {n.name: min(n.allocatable // gpus, n.resources.get("cpu", 9)) for n in nodes}
    rack = {n.name: (n.labels.get(ZONE_LABEL), n.labels.get(RACK_LABEL)) for n in nodes}
    found = gang(nodes, gpus, workers, constraints)
    assert (found is not None) == (sum(room.values()) >= workers)
    if found is None:
        return
    assert len(found) == workers
    assert all(count <= room[name] for name, count in Counter(found).items())
    in_rack = {each: [name for name in rack if rack[name] == each] for each in rack.values()}
    enough = [names for names in in_rack.values() if sum(map(room.get, names)) >= workers]
    used = {rack[name] for name in found}
    assert (len(used) == 1) == bool(enough)
    if enough and has_cpus:
        assert len(set(found)) == min(fewest([room[name] for name in names], workers) for names in enough)
    in_zone: dict[str | None, list[int]] = {}
    for (zone, _), names in in_rack.items():
        in_zone.setdefault(zone, []).append(sum(room[name] for name in names))
    zones = [holds for holds in in_zone.values() if sum(holds) >= workers]
    if zones:
        assert len({zone for zone, _ in used}) == 1
        assert len(used) == min(fewest(holds, workers) for holds in zones)


def fewest(holds: Sequence[int], workers: int) -> int:
    """Return how many of several places hold `workers`, by trying them all."""
    tries = range(1, len(holds) + 1)
    return next(n for n in tries if any(sum(some) >= workers for some in combinations(holds, n)))
