"""Each rule holds where it should, and changes nothing but how a model computes."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import MethodType

import pytest
import torch
from drawn_models import IMAGE_PARTS, ROW_PARTS, image_model, row_model
from hypothesis import given, settings
from hypothesis import strategies as st
from rewriting_cases import CASES, Case, Written
from torch import Tensor, nn
from torch.nn import functional

from espalier_lab.rewriting.engine import capture, verify
from espalier_lab.rewriting.engine.emitting import emitted
from espalier_lab.rewriting.engine.graph import OpGraph
from espalier_lab.rewriting.engine.matching import Matches
from espalier_lab.rewriting.engine.rules import RULES


def _loss(outputs: Tensor) -> Tensor:
    """Return a loss to which every output matters, and differently."""
    return (outputs * torch.linspace(1, 2, outputs.numel(), dtype=outputs.dtype).view_as(outputs)).sin().sum()


def _check(module: nn.Module, graph: OpGraph, inputs: Tensor) -> None:
    execution = emitted(graph, module)
    assert {id(one) for one in execution.parameters()} <= {id(one) for one in module.parameters()}
    for training in (True, False):
        errors = verify(module, execution, inputs, _loss, training=training)
        assert errors.right, (training, errors)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rule_computes_the_same(case: Case) -> None:
    torch.manual_seed(0)
    module, inputs = case.build(), torch.randn(case.shape)
    graph = capture(module, inputs)
    matches = [match for match in Matches(graph).all() if match.rule.name == case.rule]
    assert matches
    for match in matches:
        _check(module, match.applied(graph), inputs)


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == {rule.name for rule in RULES}


def _doubled() -> nn.Module:
    return Written(
        lambda m, x: functional.layer_norm(x, (8,)) * m.weight + (x @ m.turned.t() + m.bias),
        turned=torch.randn(8, 8),
        bias=torch.randn(8, dtype=torch.float64),
        weight=torch.randn(8, dtype=torch.float64),
    )


def _changed_layer() -> nn.Module:
    model = Written(lambda m, x: m.layer(x) + m.other(x), layer=nn.Linear(8, 8), other=nn.Linear(8, 8))
    layer = model.get_submodule("layer")
    layer.forward = MethodType(lambda self, x: 3 * functional.linear(x, self.weight), layer)  # type: ignore[method-assign]
    return model


ODD: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "a sum that repeats the one channel of a convolution": (
        lambda: Written(
            lambda m, x: m.one(x) + m.more(x),
            one=nn.Conv2d(4, 1, 3, padding=1),
            more=nn.Conv2d(4, 5, 3, padding=1, bias=False),
        ),
        (3, 4, 6, 6),
    ),
    "convolutions of images without a batch": (
        lambda: Written(lambda m, x: torch.cat([m.one(x), m.two(x)]), one=nn.Conv2d(4, 2, 1), two=nn.Conv2d(4, 3, 1)),
        (4, 6, 6),
    ),
    "linear maps to one number": (
        lambda: Written(
            lambda m, x: functional.linear(x, m.one) + functional.linear(x, m.two),
            one=torch.randn(8),
            two=torch.randn(8),
        ),
        (5, 8),
    ),
    "parts that are viewed across rows": (
        lambda: Written(lambda m, x: m.a(x).view(5, -1) + m.b(x).view(5, -1), a=nn.Linear(8, 6), b=nn.Linear(8, 6)),
        (5, 4, 8),
    ),
    "parts that are viewed within rows": (
        lambda: Written(
            lambda m, x: m.a(x).view(5, 4, 2, 3) + m.b(x).view(5, 4, 2, 3), a=nn.Linear(8, 6), b=nn.Linear(8, 6)
        ),
        (5, 4, 8),
    ),
    "parts that are changed in place": (
        lambda: Written(
            lambda m, x: m.left(m.a(x)) + m.right(m.b(x)),
            a=nn.Linear(8, 6),
            b=nn.Linear(8, 6),
            left=nn.LeakyReLU(inplace=True),
            right=nn.LeakyReLU(inplace=True),
        ),
        (5, 8),
    ),
    "one number as the bias of two": (
        lambda: Written(
            lambda m, x: functional.linear(x, m.a, m.one) + functional.linear(x, m.b, m.one),
            a=torch.randn(6, 8),
            b=torch.randn(6, 8),
            one=torch.randn(1),
        ),
        (5, 8),
    ),
    "a mask that repeats the scores": (
        lambda: Written(
            lambda m, x: (m.q(x) @ m.q(x).transpose(-2, -1)).masked_fill(m.mask, -torch.inf).softmax(-1) @ x,
            q=nn.Linear(8, 8),
            mask=torch.arange(10).view(2, 1, 1, 5) == 3,
        ),
        (4, 5, 8),
    ),
    "a softmax that casts": (
        lambda: Written(lambda m, x: torch.softmax(m.a(x), -1, torch.float64), a=nn.Linear(8, 8)),
        (5, 8),
    ),
    "parameters of another type": (_doubled, (5, 8)),
    "a layer with another forward": (_changed_layer, (5, 8)),
}


@pytest.mark.parametrize("name", ODD)
def test_what_rules_do_with_odd_models_computes_the_same(name: str) -> None:
    torch.manual_seed(0)
    build, shape = ODD[name]
    module, inputs = build(), torch.randn(shape)
    graph = capture(module, inputs)
    for each in (graph, *(match.applied(graph) for match in Matches(graph).all())):
        # Not in double precision alone, in which all types are one.
        torch.testing.assert_close(emitted(each, module)(inputs), module(inputs))
        _check(module, each, inputs)


@pytest.mark.parametrize(
    ("turn", "read"),
    [
        (lambda x: torch.transpose(x, 1, 2), True),
        (lambda x: torch.ops.aten.transpose.int(x, 1, 2), True),
        (lambda x: x.transpose(1, 2), True),
        (lambda x: x.mT, True),
        (lambda x: x.sum(0).T, True),
        (lambda x: x.sum((0, 1)).t(), False),
    ],
)
def test_transposes_are_read_in_each_way_to_write_them(turn: Callable[[Tensor], Tensor], read: bool) -> None:
    model = Written(lambda m, x: turn(m.a(x)), a=nn.Linear(8, 6))
    graph = capture(model, torch.randn(3, 5, 8))
    assert ("transpose" in {node.operator for node in graph.nodes.values()}) == read
    _check(model, graph, torch.randn(3, 5, 8))


def test_parts_that_may_be_viewed_are_merged() -> None:
    for name, merged in {"across rows": False, "within rows": True}.items():
        build, shape = ODD[f"parts that are viewed {name}"]
        rules = {match.rule.name for match in Matches(capture(build(), torch.randn(shape))).all()}
        assert ("MergedLinears" in rules) == merged


def _walk(module: nn.Module, inputs: Tensor, seed: int) -> None:
    graph = capture(module, inputs)
    start, matches, draw = graph, Matches(graph), random.Random(seed)
    before = graph.effects()
    for _ in range(12):
        if not (found := matches.all()):
            break
        graph = draw.choice(found).applied(graph)
        matches = matches.after(graph)
    everywhere = Matches(graph).all()
    assert [(match.rule.name, match.location) for match in matches.all()] == [
        (match.rule.name, match.location) for match in everywhere
    ]
    assert graph.effects() == before
    assert graph is start or graph.key() != start.key()
    _check(module, graph, inputs)


@settings(max_examples=12, deadline=None)
@given(parts=st.lists(st.sampled_from(sorted(IMAGE_PARTS)), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_random_walks_on_models_of_images_compute_the_same(parts: list[str], seed: int) -> None:
    torch.manual_seed(seed)
    _walk(*image_model(parts), seed)


@settings(max_examples=12, deadline=None)
@given(parts=st.lists(st.sampled_from(sorted(ROW_PARTS)), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_random_walks_on_models_of_rows_compute_the_same(parts: list[str], seed: int) -> None:
    torch.manual_seed(seed)
    _walk(*row_model(parts), seed)
