"""Texts as data: splits, windows, tokenizers, and what is said of those that cannot be used."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier_core.types.job import DatasetSpec
from espalier_core.types.task import Task
from espalier_trainer.data import load_data
from espalier_trainer.data.source import TokenSource
from espalier_trainer.data.text import Characters, by_file, by_position, tokenizer_of
from espalier_trainer.errors import DatasetError

TEXT = "A line of text, with ten words in it or so.\n"


def text(path, **options):
    return load_data(DatasetSpec(name="text", path=str(path), options=options), Task.LANGUAGE_MODEL)


def test_the_standard_library_is_split_by_file():
    data = load_data(DatasetSpec(name="python-library", options={"context": 32, "windows": 50}), Task.LANGUAGE_MODEL)
    assert (len(data.train), data.task) == (50, Task.LANGUAGE_MODEL)
    sizes = [len(split.tokens) for split in (data.train, data.validation, data.test)]
    assert sizes[0] > 8 * sizes[1]
    assert min(sizes) > 100_000
    inputs, targets = data.train.batch(torch.arange(4), np.random.default_rng(0))
    assert inputs.shape == targets.shape == (4, 32)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert int(inputs.max()) < data.classes


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text("ab\n", min_size=1, max_size=30), min_size=3, max_size=20))
def test_each_file_is_in_one_split_and_no_split_is_empty(files):
    marked = [f"<{place}>{content}" for place, content in enumerate(files)]
    splits = by_file(marked)
    assert all(splits)
    assert all(sum(each in split.split("\n") or each in split for split in splits) >= 1 for each in marked)
    assert sorted(len(split) for split in splits)  # none is lost:
    assert sum(map(len, splits)) == sum(map(len, marked)) + len(marked) - 3


def test_files_without_a_text_leave_no_split_empty(tmp_path):
    for name, content in (("a", ""), ("b", TEXT * 100), ("c", "\n"), ("d", "")):
        (tmp_path / f"{name}.txt").write_text(content)
    data = text(tmp_path, context=8)
    assert [len(each.tokens) for each in (data.train, data.validation, data.test)] == [3963, 220, 221]


def test_one_file_is_split_by_position(tmp_path):
    (tmp_path / "one.txt").write_text(TEXT * 100)
    data = text(tmp_path / "one.txt", context=8)
    train, validation, test = by_position(TEXT * 100)
    assert train + validation + test == TEXT * 100
    assert [len(split.tokens) for split in (data.train, data.validation, data.test)] == [3960, 220, 220]
    assert len(data.validation) == 27


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 100))
def test_windows_lie_in_the_text_and_move_together(context, windows, seed):
    source = TokenSource(torch.arange(50, dtype=torch.int32), context, windows)
    still, _ = source.batch(torch.arange(windows), None)
    moved, following = source.batch(torch.arange(windows), np.random.default_rng(seed))
    assert torch.equal(following, moved + 1)
    distance = (moved[:, 0] - still[:, 0]) % (50 - context)
    assert len(distance.unique()) == 1
    parts = [
        source.batch(torch.arange(windows)[rows], np.random.default_rng(seed))[0] for rows in (slice(3), slice(3, None))
    ]
    assert torch.equal(torch.cat(parts), moved)  # however many workers divide a batch


@given(st.text(max_size=60), st.text(max_size=60), st.integers(2, 20))
def test_characters_are_known_or_unknown(learnt, read, vocabulary):
    tokenizer = Characters.of(learnt or "a", vocabulary)
    tokens = tokenizer.encode(read)
    assert tokenizer.size <= vocabulary
    assert len(tokens) == len(read)
    for token, character in zip(tokens, read, strict=True):
        assert token == 0 or tokenizer.points[token - 1] == ord(character)


def test_bytes_and_byte_pairs_count_characters(tmp_path):
    (tmp_path / "a.txt").write_text("naïve café\n" * 300)
    in_bytes = text(tmp_path / "a.txt", context=8, tokenizer="bytes")
    assert in_bytes.classes == 256
    assert in_bytes.train.characters_per_token == pytest.approx(11 / 13, rel=0.01)
    pytest.importorskip("tokenizers")
    pairs = text(tmp_path / "a.txt", context=8, tokenizer="bpe", vocabulary=300)
    assert pairs.classes <= 300
    assert pairs.train.characters_per_token > 1.5
    again = tokenizer_of("bpe", 300, by_position("naïve café\n" * 300)[0])
    assert np.array_equal(
        again.encode("naïve"), tokenizer_of("bpe", 300, by_position("naïve café\n" * 300)[0]).encode("naïve")
    )


def _words(path, words, unknown=None):
    """Save a tokenizer of whole words, made for batches of sentences: lines are cut and filled up."""
    library = pytest.importorskip("tokenizers")
    tokenizer = library.Tokenizer(library.models.WordLevel(words, unk_token=unknown))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(pad_id=0)
    tokenizer.save(str(path))


def test_a_tokenizer_made_for_sentences_cuts_no_line_and_fills_up_none(tmp_path):
    _words(tmp_path / "tokenizer.json", {"pad": 0, "one": 4, "two": 9})
    (tmp_path / "a.txt").write_text("one two one two two\none\n" * 100)
    data = text(tmp_path, context=4, tokenizer=str(tmp_path / "tokenizer.json"))
    assert data.train.tokens[:12].tolist() == [4, 9, 4, 9, 9, 4] * 2
    assert data.classes == 10, "one more than the largest number, where numbers have gaps"


def test_a_tokenizer_that_does_not_know_the_text_is_named(tmp_path):
    _words(tmp_path / "tokenizer.json", {"one": 0})
    (tmp_path / "a.txt").write_text("one two\n" * 100)
    with pytest.raises(DatasetError, match=r"^training\.dataset\.options\.tokenizer: cannot read the text \(.*UNK"):
        text(tmp_path, context=4, tokenizer=str(tmp_path / "tokenizer.json"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 0}, "training.dataset.options.context: is 0; must be at least 1"),
        (
            {"contexts": 8},
            "training.dataset.options.contexts: is not an option of a text; allowed: context, tokenizer,",
        ),
        ({"context": 999999}, "training.dataset.options.context: is 999999, and a split of the text has"),
        ({"tokenizer": "words"}, "training.dataset.options.tokenizer: is 'words'; allowed: characters, bytes, bpe, or"),
        ({"tokenizer": "nowhere.json"}, "training.dataset.options.tokenizer: nowhere.json is not a file; name a"),
        ({"tokenizer": "bpe", "vocabulary": 99}, "training.dataset.options.vocabulary: is 99; bpe begins with the 256"),
    ],
)
def test_options_that_cannot_be_used_are_named(tmp_path, options, message):
    (tmp_path / "a.txt").write_text(TEXT * 50)
    with pytest.raises(DatasetError) as error:
        text(tmp_path, **options)
    assert str(error.value).startswith(message)


def test_files_that_cannot_be_used_are_named(tmp_path):
    with pytest.raises(DatasetError, match=r"holds no file \*\.txt; name another folder"):
        text(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DatasetError, match=r"a\.txt is not UTF-8 text"):
        text(tmp_path)
    with pytest.raises(DatasetError, match=r"b\.txt cannot be read: No such file"):
        text(tmp_path / "b.txt")


def test_a_data_set_of_another_task_is_refused():
    with pytest.raises(DatasetError, match=r"^training.task: is Regression, and the data set digits is for Classifi"):
        load_data(DatasetSpec(name="digits"), Task.REGRESSION)
