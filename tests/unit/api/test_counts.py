"""Numbers of things in words, and what there is more than once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.base import number_of, repeated


@pytest.mark.parametrize(("number", "words"), [(0, "0 GPUs"), (1, "1 GPU"), (2, "2 GPUs")])
def test_one_is_one_and_all_others_are_several(number: int, words: str) -> None:
    assert number_of(number, "GPU") == words


@given(st.lists(st.sampled_from("abc")))
def test_what_is_repeated_is_counted(items: list[str]) -> None:
    found = repeated(items)
    assert found == {item: items.count(item) for item in items if items.count(item) > 1}
    assert list(found) == sorted(found, key=items.index)
