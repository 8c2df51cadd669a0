"""A checkpoint as flat tensors: bit by bit what it was, and no view of what continues training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from espalier_trainer import randomness
from espalier_trainer.packing import Packed, packed, unpacked

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@st.composite
def tensors(draw):
    """Draw named tensors of all types and shapes, empty ones and numbers too."""
    found = {}
    for number in range(draw(st.integers(0, 5))):
        shape, dtype = draw(SHAPES), draw(st.sampled_from(TYPES))
        content = torch.Generator().manual_seed(draw(st.integers(0, 99)))
        found[f"é.{number}"] = (torch.randn(shape, generator=content) * 9).to(dtype)
    return found


@given(model=tensors(), training=tensors())
def test_every_tensor_comes_as_it_was(make_checkpoint, model, training):
    whole = make_checkpoint(5)
    content = packed(replace(whole, model=model, training=training))
    received = Packed.allocate(content.head)
    received.model.copy_(content.model)
    received.training.copy_(content.training)
    got = unpacked(received)
    assert got.state == whole.state
    for sent, came in ((model, got.model), (training, got.training)):
        assert sent.keys() == came.keys()
        for name, tensor in sent.items():
            assert (came[name].dtype, came[name].shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(came[name], tensor)


def test_what_is_packed_is_nobody_elses(make_checkpoint):
    checkpoint = make_checkpoint(3)
    got = unpacked(packed(checkpoint))
    checkpoint.model["w"].zero_()
    assert got.model["w"].sum() == 15
    got.model["w"].fill_(1.0)
    assert got.model["tied"].sum() == 15, "tensors that shared memory are written out each"


def test_views_and_strides_are_written_in_order(make_checkpoint):
    turned = torch.arange(6.0).view(2, 3).t()
    got = unpacked(packed(replace(make_checkpoint(), model={"w": turned})))
    assert torch.equal(got.model["w"], turned)


def test_chance_goes_on_from_what_was_packed(make_checkpoint):
    values, tensors = randomness.capture(torch.device("cpu"))
    expected = torch.rand(3)
    came = unpacked(packed(replace(make_checkpoint(), training={"before": torch.zeros(5), **tensors})))
    randomness.restore(values, came.training, torch.device("cpu"))
    assert torch.equal(torch.rand(3), expected)


def test_a_number_that_is_kept_holds_nothing_else(make_checkpoint):
    training = {"step": torch.tensor(3.0), "moments": torch.zeros(1000)}
    got = unpacked(packed(replace(make_checkpoint(), training=training)))
    assert got.training["step"].untyped_storage().nbytes() == got.training["step"].nbytes


@pytest.mark.parametrize("lost", ["model", "training"])
def test_what_is_too_short_is_refused(make_checkpoint, lost):
    content = packed(make_checkpoint())
    with pytest.raises(ValueError, match="bytes of tensors"):
        unpacked(replace(content, **{lost: getattr(content, lost)[:-1]}))


@pytest.mark.parametrize(
    ("old", "new"), [('"float32"', '"__name__"'), ('"float32"', '"manual_seed"'), ('"step"', '"stop"'), ("{", "")]
)
def test_a_head_that_says_nothing_of_use_is_refused(make_checkpoint, old, new):
    text = packed(make_checkpoint()).head.numpy().tobytes().decode().replace(old, new, 1)
    with pytest.raises(ValueError, match="."):
        Packed.allocate(torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8))
