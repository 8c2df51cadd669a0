"""What a member is brought is bit by bit what the source has, and only what it lacks is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.elastic import delivery
from espalier_trainer.elastic.delivery import Entry, Head, deliver
from espalier_trainer.elastic.group import Group
from espalier_trainer.net2net import randomness
from groups import together

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
Tensors = dict[str, Tensor]


@st.composite
def tensors(draw: Any) -> Tensors:
    """Draw named tensors of all types and shapes, empty ones and numbers too, some equal."""
    found = {}
    for name in draw(st.lists(st.sampled_from("abcdé"), unique=True)):
        shape, dtype = draw(SHAPES), draw(st.sampled_from(TYPES))
        content = torch.Generator().manual_seed(draw(st.integers(0, 3)))
        found[name] = (torch.randn(shape, generator=content) * 9).to(dtype)
    return found


def brought(checkpoint: Checkpoint, *held: Checkpoint | None) -> list[Checkpoint]:
    """Return what members that hold this get of the checkpoint."""
    (found,) = all_brought([(checkpoint, held, True)])
    return found


def all_brought(cases: Sequence[tuple[Checkpoint, Sequence[Checkpoint | None], bool]]) -> list[list[Checkpoint]]:
    """Return what members get in each case: a checkpoint, what they hold, and whether that is compared."""

    def act(group: Group) -> list[Checkpoint | None]:
        takers = range(1, group.world)
        return [
            deliver(
                group,
                0,
                takers,
                None if group.rank else checkpoint,
                held[group.rank - 1] if group.rank else None,
                hashed=hashed,
            )
            for checkpoint, held, hashed in cases
        ]

    source, *others = together(1 + len(cases[0][1]), act)
    assert source == [None] * len(cases)
    return [list(each) for each in zip(*others, strict=True)]


def assert_equal(came: Tensors, sent: Tensors) -> None:
    assert list(came) == list(sent)
    for name, tensor in sent.items():
        assert (came[name].dtype, came[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(came[name], tensor)


@settings(max_examples=4)
@given(
    cases=st.lists(st.tuples(tensors(), tensors(), tensors(), st.booleans()), min_size=8, max_size=8),
    small=st.sampled_from([1, 1 << 16]),
)
def test_every_tensor_comes_as_it_is(make_checkpoint, cases, small):
    """To a newcomer and to a member that holds another state; few groups are formed for many cases."""
    acts = [
        (
            replace(make_checkpoint(5), model=model, training=training),
            (None, replace(make_checkpoint(4), model=had, training=had)),
            hashed,
        )
        for model, training, had, hashed in cases
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delivery, "SMALL_BYTES", small)
        patch.setattr(delivery, "PIECE_BYTES", 64)
        done = all_brought(acts)
    for (whole, (_, before), _), found in zip(acts, done, strict=True):
        for got in found:
            assert got.state == whole.state
            assert_equal(got.model, whole.model)
            assert_equal(got.training, whole.training)
            places = [each.data_ptr() for each in (*got.model.values(), *got.training.values()) if each.numel()]
            mine = {each.data_ptr() for each in before.model.values()}  # given to it twice
            fresh = [each for each in places if each not in mine]
            assert len(fresh) == len(set(fresh)), "no two tensors share memory"


def test_what_a_member_holds_is_not_sent(make_checkpoint, monkeypatch):
    """A model grew: a layer is new, one has another name, one is equal to another; the first moments go on."""
    kept, renamed, moment = torch.randn(500), torch.randn(500), torch.randn(500)
    before = replace(
        make_checkpoint(1),
        model={"1.weight": kept.clone(), "2.weight": renamed.clone()},
        training={"1|exp_avg": moment.clone()},
    )
    new = torch.randn(500)
    after = replace(
        make_checkpoint(2),
        model={"1.weight": kept, "2.weight": new, "3.weight": renamed, "4.weight": kept.clone()},
        training={"1|exp_avg": moment},
    )
    sent: list[int] = []
    begin = Group.sending_to

    def counted(group: Group, tensor: Tensor, member: int, tag: int = 0) -> Any:
        if tag == 0:  # states; small sums have another tag
            sent.append(tensor.nbytes)
        return begin(group, tensor, member, tag)

    monkeypatch.setattr(Group, "sending_to", counted)
    (got,) = brought(after, before)
    assert sent == [new.nbytes]
    assert_equal(got.model, after.model)
    assert got.training["1|exp_avg"].data_ptr() == before.training["1|exp_avg"].data_ptr()
    assert got.model["1.weight"].data_ptr() == before.model["1.weight"].data_ptr()
    # It is still the live weight of that name, into which another will be written.
    assert got.model["3.weight"].data_ptr() != before.model["2.weight"].data_ptr()
    assert got.model["4.weight"].data_ptr() != before.model["1.weight"].data_ptr()


@pytest.mark.parametrize("grown", [False, True])
def test_a_newcomer_receives_into_what_it_has_built_if_that_is_the_same_model(make_checkpoint, grown):
    weight, moment, tied = torch.randn(500), torch.randn(500), torch.randn(500)
    model = {"a": weight, "tied.1": tied, "tied.2": tied} | ({"new": torch.ones(3)} if grown else {})
    whole = replace(make_checkpoint(), model=model, training={"a|exp_avg": moment})
    shared = torch.zeros(500)
    spare = {(False, "a"): torch.zeros(500), (False, "tied.1"): shared, (False, "tied.2"): shared}
    spare |= {(True, "a|exp_avg"): torch.zeros(500)}

    def act(group: Group) -> Checkpoint | None:
        mine = spare if group.rank else None
        return deliver(group, 0, [1], None if group.rank else whole, hashed=False, spare=mine)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delivery, "SMALL_BYTES", 100)
        _, got = together(2, act)
    assert_equal(got.model, model)
    assert_equal(got.training, whole.training)
    reused = [got.model["a"].data_ptr() == spare[False, "a"].data_ptr()]
    reused += [got.training["a|exp_avg"].data_ptr() == spare[True, "a|exp_avg"].data_ptr()]
    assert reused == [not grown] * 2
    assert shared.eq(0).all(), "weights that are tied come each by itself"


def test_a_number_that_is_kept_holds_nothing_else(make_checkpoint):
    training = {"step": torch.tensor(3.0), "other": torch.zeros(1000)}
    (got,) = brought(replace(make_checkpoint(), training=training), None)
    assert got.training["step"].untyped_storage().nbytes() == got.training["step"].nbytes


def test_views_and_strides_come_in_order(make_checkpoint):
    turned = torch.arange(6.0).view(2, 3).t()
    (got,) = brought(replace(make_checkpoint(), model={"w": turned}), None)
    assert torch.equal(got.model["w"], turned)


def test_chance_goes_on_from_what_was_brought(make_checkpoint):
    values, chance = randomness.capture(torch.device("cpu"))
    expected = torch.rand(3)
    (came,) = brought(replace(make_checkpoint(), training={"before": torch.zeros(5), **chance}), None)
    randomness.restore(values, came.training, torch.device("cpu"))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("dtype", ["__name__", "manual_seed", "nothing"])
def test_a_type_that_is_none_is_refused(make_checkpoint, dtype):
    entry = Entry(name="w", training=False, dtype=dtype, shape=(2,))
    with pytest.raises(ValueError, match="is not a type of tensors"):
        _ = Head(state=make_checkpoint().state, entries=(entry,)).entries[0].bytes
