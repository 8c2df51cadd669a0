"""Symbolic growth of a description."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from espalier_core.growth.architecture import Architecture, GrowthError, GrowthPoint, Layer
from espalier_core.growth.deepen import deepened


def linear(name: str, reads: str, parameters: int = 20) -> Layer:
    return Layer(
        name=name,
        operator="Linear",
        attributes={"in_features": 4, "out_features": 4},
        inputs=(reads,),
        parameters=parameters,
    )


def relu(name: str, reads: str) -> Layer:
    return Layer(name=name, operator="ReLU", inputs=(reads,))


@pytest.fixture
def branching() -> Architecture:
    """Input -> a -> relu -+-> add -> output, where the relu's output is read twice."""
    return Architecture(
        layers=(
            Layer(name="input", operator="Input"),
            linear("a", "input"),
            relu("a_relu", "a"),
            linear("b", "a_relu"),
            Layer(name="add", operator="Add", inputs=("b", "a_relu")),
        ),
        outputs=("add",),
        growth_points=(
            GrowthPoint(
                id="a",
                kind="Linear",
                after="a_relu",
                block="a_relu.grown",
                insertion=(linear("linear", ""), relu("relu", "linear")),
            ),
            GrowthPoint(
                id="end",
                kind="Linear",
                after="add",
                block="add.grown",
                insertion=(
                    linear("linear", ""),
                    relu("relu", "linear"),
                    Layer(name="sum", operator="Add", inputs=("", "relu")),
                ),
            ),
        ),
    )


def test_all_readers_of_the_place_read_the_new_layer(branching: Architecture) -> None:
    grown = deepened(branching, "a")
    assert [layer.name for layer in grown.layers] == [
        "input",
        "a",
        "a_relu",
        "a_relu.grown.0.linear",
        "a_relu.grown.0.relu",
        "b",
        "add",
    ]
    by_name = {layer.name: layer for layer in grown.layers}
    assert by_name["a_relu.grown.0.linear"].inputs == ("a_relu",)
    assert by_name["b"].inputs == ("a_relu.grown.0.relu",)
    assert by_name["add"].inputs == ("b", "a_relu.grown.0.relu")
    assert grown.growth_point("a").after == "a_relu.grown.0.relu"
    assert grown.growth_history == {"a": 1}
    assert (grown.depth, branching.depth) == (3, 2)
    assert grown.parameters - branching.parameters == 20


def test_growing_again_follows_the_layer_added_before(branching: Architecture) -> None:
    twice = deepened(deepened(branching, "a"), "a")
    by_name = {layer.name: layer for layer in twice.layers}
    assert by_name["a_relu.grown.1.linear"].inputs == ("a_relu.grown.0.relu",)
    assert by_name["b"].inputs == ("a_relu.grown.1.relu",)


def test_a_residual_block_at_the_output_becomes_the_output(branching: Architecture) -> None:
    grown = deepened(branching, "end")
    assert grown.outputs == ("add.grown.0.sum",)
    by_name = {layer.name: layer for layer in grown.layers}
    assert by_name["add.grown.0.sum"].inputs == ("add", "add.grown.0.relu")


def test_growth_at_different_points_commutes(branching: Architecture) -> None:
    assert deepened(deepened(branching, "a"), "end") == deepened(deepened(branching, "end"), "a")


def test_the_description_given_is_not_changed(branching: Architecture) -> None:
    before = branching.fingerprint
    assert deepened(branching, "a").fingerprint != before
    assert branching.fingerprint == before


def test_an_unknown_point_is_refused_with_the_known_ones(branching: Architecture) -> None:
    with pytest.raises(GrowthError, match="'c' is not a growth point of this model; its growth points: a, end"):
        deepened(branching, "c")


def test_json_keeps_everything(branching: Architecture) -> None:
    assert Architecture.model_validate_json(branching.model_dump_json(by_alias=True)) == branching


def test_a_growth_point_may_have_any_name_that_is_text(branching: Architecture) -> None:
    def named(name: str) -> Architecture:
        first, *others = branching.to_json()["growthPoints"]  # type: ignore[misc]
        return Architecture.model_validate({**branching.to_json(), "growthPoints": [{**first, "id": name}, *others]})

    for name in ("", "é", "features.0:relu", "x" * 10_000):
        assert named(name).growth_points[0].id == name
    with pytest.raises(ValidationError, match="growthPoints.0.id"):
        named("\ud800")


@pytest.mark.parametrize(
    ("layers", "outputs", "message"),
    [
        ((relu("a", "b"),), ("a",), "layer 'a' reads 'b', which does not come before it"),
        ((Layer(name="a", operator="Input"),) * 2, ("a",), "layer 'a' appears twice"),
        ((Layer(name="a", operator="Input"),), ("z",), "output 'z' is not a layer"),
    ],
)
def test_what_is_no_graph_is_refused(layers: tuple[Layer, ...], outputs: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Architecture(layers=layers, outputs=outputs)
