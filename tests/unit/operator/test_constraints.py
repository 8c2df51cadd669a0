"""Which nodes admit a pod: kube-scheduler's rules, case by case."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_operator.cluster.node_index import NodeClasses, ReferencedLabels
from espalier_operator.model import Node
from espalier_operator.model.constraints import ANYWHERE, Constraints, Taint, Toleration
from espalier_operator.model.constraints import NodeSelectorRequirement as Requirement
from espalier_operator.model.constraints import NodeSelectorTerm as Term

LABELS = {"zone": "a", "cores": "8", "size": "large"}


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        (Requirement("zone", "In", ("a", "b")), True),
        (Requirement("zone", "In", ("b",)), False),
        (Requirement("rack", "In", ("",)), False),
        (Requirement("zone", "NotIn", ("b",)), True),
        (Requirement("zone", "NotIn", ("a",)), False),
        (Requirement("rack", "NotIn", ("a",)), True),  # a node without the label is not in
        (Requirement("zone", "Exists"), True),
        (Requirement("rack", "Exists"), False),
        (Requirement("zone", "DoesNotExist"), False),
        (Requirement("rack", "DoesNotExist"), True),
        (Requirement("cores", "Gt", ("7",)), True),
        (Requirement("cores", "Gt", ("8",)), False),
        (Requirement("cores", "Lt", ("9",)), True),
        (Requirement("size", "Gt", ("1",)), False),
        (Requirement("cores", "Gt", ("many",)), False),
        (Requirement("cores", "Lt", ("1_0",)), False),  # a number to Python, none to kube-scheduler
        (Requirement("cores", "Lt", (str(2**63),)), False),
        (Requirement("cores", "Gt", ("1", "2")), False),
        (Requirement("rack", "Lt", ("1",)), False),
        (Requirement("zone", "Near", ("a",)), False),
    ],
)
def test_expressions(expression: Requirement, matches: bool) -> None:
    assert expression.takes(LABELS.get(expression.key)) is matches


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        (Toleration("team", "Equal", "vision"), True),
        (Toleration("team", "", "vision"), True),
        (Toleration("team", "Equal", "speech"), False),
        (Toleration("team", "Exists"), True),
        (Toleration("other", "Exists"), False),
        (Toleration("", "Exists"), True),
        (Toleration("", "Equal", "vision"), False),
        (Toleration("team", "Exists", "", "NoSchedule"), True),
        (Toleration("team", "Exists", "", "NoExecute"), False),
        (Toleration("team", "Near", "vision"), False),
    ],
)
def test_tolerations(toleration: Toleration, tolerates: bool) -> None:
    assert toleration.tolerates(Taint("team", "vision", "NoSchedule")) is tolerates


@pytest.mark.parametrize(
    ("constraints", "admits"),
    [
        (ANYWHERE, True),
        (Constraints(node_selector=(("zone", "a"), ("size", "large"))), True),
        (Constraints(node_selector=(("zone", "a"), ("size", "small"))), False),
        (Constraints(affinity=()), False),
        (Constraints(affinity=(Term(),)), False),  # an empty term matches no node
        (Constraints(affinity=(Term(), Term((Requirement("zone", "Exists"),)))), True),  # one of the terms
        # All of a term.
        (Constraints(affinity=(Term((Requirement("zone", "Exists"), Requirement("rack", "Exists"))),)), False),
        (Constraints(affinity=(Term(fields=(Requirement("metadata.name", "In", ("n1",)),)),)), True),
        (Constraints(affinity=(Term(fields=(Requirement("metadata.name", "NotIn", ("n1",)),)),)), False),
        (Constraints(affinity=(Term(fields=(Requirement("spec.x", "NotIn", ("n1",)),)),)), False),
        (Constraints(node_selector=(("zone", "b"),), affinity=(Term((Requirement("zone", "Exists"),)),)), False),
    ],
)
def test_selectors_and_affinity(constraints: Constraints, admits: bool) -> None:
    assert constraints.admit("n1", LABELS, ()) is admits


def test_each_repelling_taint_must_be_tolerated() -> None:
    taints = (Taint("team", "vision"), Taint("spot", "", "NoExecute"), Taint("soft", "", "PreferNoSchedule"))
    vision, spot = Toleration("team", "Exists"), Toleration("spot", "Exists")
    assert not ANYWHERE.admit("n1", {}, taints)
    assert not Constraints(tolerations=(vision,)).admit("n1", {}, taints)
    assert Constraints(tolerations=(vision, spot)).admit("n1", {}, taints)


VALUES = st.sampled_from(("a", "b", "7"))
EXPRESSIONS = st.builds(
    Requirement,
    st.sampled_from(("zone", "rack", "metadata.name")),
    st.sampled_from(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")),
    st.lists(VALUES, max_size=2).map(tuple),
)
TERMS = st.builds(Term, st.lists(EXPRESSIONS, max_size=2).map(tuple), st.lists(EXPRESSIONS, max_size=1).map(tuple))


@given(
    st.builds(
        Constraints,
        node_selector=st.lists(st.tuples(st.sampled_from(("zone", "rack")), VALUES), max_size=1).map(tuple),
        affinity=st.none() | st.lists(TERMS, max_size=2).map(tuple),
    ),
    st.dictionaries(st.sampled_from(("zone", "rack", "size", "host")), VALUES),
    st.dictionaries(st.sampled_from(("size", "host")), VALUES),
    VALUES,
)
def test_only_the_named_labels_and_nodes_decide(
    constraints: Constraints, labels: dict[str, str], more: dict[str, str], name: str
) -> None:
    """The planner groups nodes by the labels and names that constraints mention: what else differs must not matter."""
    named = ReferencedLabels.by([constraints])
    mentioned = named.values
    other = {**{key: value for key, value in labels.items() if key in mentioned}, **more}
    for key in other:
        values = mentioned.get(key, set())
        if values is not None and other[key] not in values:
            other[key] = "other"
    another = name if name in named.names else "n1"
    assert constraints.admit(name, labels, ()) == constraints.admit(another, other, ())


NODES = st.builds(
    Node,
    name=VALUES,
    gpu_type=st.sampled_from(("x", "y")),
    allocatable=st.just(1),
    labels=st.dictionaries(st.sampled_from(("zone", "rack")), st.sampled_from(("a", "b", "c", "7", "12"))),
    taints=st.lists(st.sampled_from((Taint("t"), Taint("t", "v"), Taint("u", "", "NoExecute"))), max_size=2).map(tuple),
)
CONSTRAINTS = st.builds(
    Constraints,
    node_selector=st.lists(st.tuples(st.sampled_from(("zone", "rack")), VALUES), max_size=1).map(tuple),
    affinity=st.none() | st.lists(TERMS, max_size=2).map(tuple),
    volumes=st.lists(st.lists(TERMS, max_size=1).map(tuple), max_size=1).map(tuple),
    tolerations=st.lists(
        st.sampled_from((Toleration("t", "Exists"), Toleration("t", value="v"), Toleration("", "Exists"))), max_size=1
    ).map(tuple),
    requests=st.sampled_from(((), (("cpu", 1),))),
)


@given(st.lists(NODES, max_size=6), st.lists(CONSTRAINTS, min_size=1, max_size=4))
def test_groups_of_nodes_are_admitted_as_each_of_their_nodes(nodes: list[Node], asked: list[Constraints]) -> None:
    """Sets of groups by value and a look at each node give the same sites."""
    node_classes = NodeClasses(ReferencedLabels.by(asked))
    groups = [node_classes.group_of(node) for node in nodes]
    for constraints in asked:
        for gpu_type in ("x", "y"):
            node_pool = node_classes.node_pool(gpu_type, constraints)
            assert node_pool is node_classes.node_pool(gpu_type, constraints)
            found = [group in node_pool.members for group in groups]
            assert found == [node.gpu_type == gpu_type and node.admits(constraints) for node in nodes]


def test_a_thousand_constraints_make_few_groups() -> None:
    """Labels that all nodes have, such as their host names, make groups only of the values that somebody names."""
    nodes = [
        Node(name=f"n{number}", gpu_type="x", allocatable=1, labels={"host": f"n{number}", "zone": "a"})
        for number in range(100)
    ]
    apart = Constraints(affinity=(Term((Requirement("host", "NotIn", ("n7",)), Requirement("zone", "Exists"))),))
    asked = [apart, *(Constraints(node_selector=((f"key-{n}", "v"),)) for n in range(1000))]
    node_classes = NodeClasses(ReferencedLabels.by(asked))
    assert len({node_classes.group_of(node) for node in nodes}) == 2
