"""Layers become vectors: distinct ones apart, similar ones near, never seen ones all the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from espalier_agent.data import named_architecture
from espalier_agent.policies.vocabulary import Vocabulary, canonical_key, layer_embedding
from espalier_core.growth.architecture import AttributeValue, Layer


def conv(name: str = "conv", **attributes: AttributeValue) -> Layer:
    given = {"in_channels": 32, "out_channels": 64, "kernel_size": (3, 3), "bias": True, **attributes}
    return Layer(name=name, operator="Conv2d", attributes=given)


def test_key_depends_on_operator_and_attributes_and_not_on_their_order_or_the_name() -> None:
    there = Layer(name="a", operator="Linear", attributes={"in_features": 3, "out_features": 4})
    and_back = Layer(name="b", operator="Linear", attributes={"out_features": 4, "in_features": 3}, inputs=("x",))
    assert canonical_key(there) == canonical_key(and_back)
    assert canonical_key(conv(bias=True)) != canonical_key(conv(bias=1))
    assert canonical_key(conv()) != canonical_key(conv(groups=1))


def test_algorithm_2_gives_ids_in_the_order_of_first_appearance() -> None:
    cnn1 = named_architecture("cnn1")
    vocabulary = Vocabulary.build([cnn1, cnn1], seed=0)
    distinct = list(dict.fromkeys(canonical_key(layer) for layer in cnn1.layers))
    assert list(vocabulary.keys) == distinct
    # Figure 6's CNN#1: both batch normalisations and all three activations are one layer each.
    assert len(vocabulary) == len(cnn1.layers) - 3


def test_all_instances_of_a_layer_share_their_embedding() -> None:
    cnn1 = named_architecture("cnn1")
    vocabulary = Vocabulary.build([cnn1], seed=0)
    embedded = vocabulary.embed(cnn1)
    assert embedded.shape == (len(cnn1.layers), 16)
    activations = [index for index, layer in enumerate(cnn1.layers) if layer.operator == "ReLU"]
    assert len(activations) == 3
    for index in activations[1:]:
        assert torch.equal(embedded[activations[0]], embedded[index])


def test_embeddings_depend_on_the_seed_and_nothing_else() -> None:
    # The numbers are part of what a policy learnt with: they must not change between releases.
    expected = [0.1408, -0.4137, 1.2041, -0.5498]
    relu = Layer(name="r", operator="ReLU")
    np.testing.assert_allclose(layer_embedding(relu, 0)[:4], expected, atol=1e-4)
    assert not np.allclose(layer_embedding(relu, 1), layer_embedding(relu, 0))


def test_layers_of_known_models_are_far_enough_apart() -> None:
    layers = {canonical_key(layer): layer for name in ("cnn1", "cnn2") for layer in named_architecture(name).layers}
    vectors = np.stack([layer_embedding(layer, 0) for layer in layers.values()])
    distances = np.linalg.norm(vectors[:, None] - vectors[None], axis=2) + np.eye(len(vectors)) * 99
    assert distances.min() > 0.5


def test_an_unknown_layer_lies_nearest_to_its_own_kind() -> None:
    def distance(one: Layer, other: Layer) -> float:
        return float(np.linalg.norm(layer_embedding(one, 0) - layer_embedding(other, 0)))

    linear = Layer(name="l", operator="Linear", attributes={"in_features": 32, "out_features": 64, "bias": True})
    unknown = conv(out_channels=96)
    assert distance(unknown, conv()) < distance(unknown, conv(out_channels=2048)) < distance(unknown, linear)


@pytest.mark.parametrize(
    "value",
    [None, True, "", "é" * 1000, "\ud800", 0, -7, 10**400, -(10**400), 1e308, 5e-324, (), tuple(range(-500, 500))],
    ids=lambda value: f"{type(value).__name__}-{str(value)[:12]}",
)
def test_any_attribute_gives_a_finite_vector(value: AttributeValue) -> None:
    vector = layer_embedding(Layer(name="x", operator="Whatever", attributes={"odd": value}), 0)
    assert vector.shape == (16,)
    assert np.isfinite(vector).all()
    assert np.abs(vector).max() < 1e4


def test_known_and_unknown_are_distinguished() -> None:
    cnn1, cnn2 = named_architecture("cnn1"), named_architecture("cnn2")
    vocabulary = Vocabulary.build([cnn1], seed=0)
    assert vocabulary.unknown(cnn1) == 0
    # Its convolutions, the normalisation of 64 channels, and an identity where CNN#1 pools.
    assert vocabulary.unknown(cnn2) == 4


def test_extending_keeps_ids_and_vectors() -> None:
    small = Vocabulary.build([named_architecture("cnn1")], seed=0)
    large = small.extended([named_architecture("cnn2")])
    assert large.keys[: len(small)] == small.keys
    assert torch.equal(large.embeddings[: len(small)], small.embeddings)


def test_a_vocabulary_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="names a layer twice"):
        Vocabulary(("a", "a"), torch.zeros(2, 16), 0)
    with pytest.raises(ValueError, match=r"shape \(1, 16\), where 2 layers need \(2, 16\)"):
        Vocabulary(("a", "b"), torch.zeros(1, 16), 0)
