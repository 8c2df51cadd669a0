"""From a text to tokens: characters and bytes are built in, byte-pair encoding is Hugging Face's `tokenizers`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from espalier_trainer.errors import DatasetError

_FIELD: Final = "training.dataset.options.tokenizer"
Tokens = NDArray[np.int64]


class Tokenizer(Protocol):
    """Encodes a text."""

    @property
    def size(self) -> int:
        """Number of different tokens."""

    def encode(self, text: str) -> Tokens:
        """Return the tokens of a text, [L] from 0 to `size` - 1."""


def tokenizer_of(name: str, vocabulary: int, text: str) -> Tokenizer:
    """Return the tokenizer of this name, learnt from `text` where it learns; `DatasetError` where there is none."""
    if name == "characters":
        return Characters.of(text, vocabulary)
    if name == "bytes":
        return Bytes()
    if name == "bpe":
        return _byte_pairs(text, vocabulary)
    if name.endswith(".json"):
        return _from_file(Path(name))
    raise DatasetError(f"{_FIELD}: is {name!r}; allowed: characters, bytes, bpe, or the path of a tokenizer.json")


class Bytes:
    """The bytes of the text in UTF-8."""

    size: Final = 256

    def encode(self, text: str) -> Tokens:
        """Return the bytes."""
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Characters:
    """The most frequent characters; token 0 is any other one."""

    points: Tokens
    """Their code points, ascending."""

    @classmethod
    def of(cls, text: str, vocabulary: int) -> Characters:
        """Return the tokenizer of at most `vocabulary` tokens, "unknown" included, that covers most of `text`."""
        points, counts = np.unique(_points(text), return_counts=True)
        # Equally frequent ones in the order of their code points: the same on every worker.
        kept = np.argsort(-counts, kind="stable")[: vocabulary - 1]
        return cls(np.sort(points[kept]))

    @property
    def size(self) -> int:
        """Number of characters, and 1."""
        return len(self.points) + 1

    def encode(self, text: str) -> Tokens:
        """Return the place of each character, from 1; 0 for an unknown one."""
        points = _points(text)
        places = np.minimum(np.searchsorted(self.points, points), len(self.points) - 1)
        return np.where(self.points[places] == points, places + 1, 0)


@dataclass(frozen=True, slots=True)
class _Library:
    """A tokenizer of the library `tokenizers`."""

    found: Any

    @property
    def size(self) -> int:
        # Not the number of tokens: the numbers of a file may have gaps.
        return 1 + max(self.found.get_vocab().values(), default=-1)

    def encode(self, text: str) -> Tokens:
        # Line by line in parallel: a whole text at once takes the library many times as long.
        try:
            encoded = self.found.encode_batch(text.splitlines(keepends=True), add_special_tokens=False)
        except Exception as error:  # the library raises nothing more precise
            raise DatasetError(
                f"{_FIELD}: cannot read the text ({error}); use a tokenizer that knows all of it"
            ) from error
        return np.concatenate([np.asarray(each.ids, dtype=np.int64) for each in encoded])


def _points(text: str) -> Tokens:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.int64)


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise DatasetError(
            f"{_FIELD}: byte-pair encoding needs the package tokenizers; install espalier-trainer[text], or use "
            "characters or bytes"
        ) from error
    return tokenizers


def _byte_pairs(text: str, vocabulary: int) -> Tokenizer:
    library = _library()
    if vocabulary <= Bytes.size:
        raise DatasetError(
            f"training.dataset.options.vocabulary: is {vocabulary}; bpe begins with the {Bytes.size} bytes, so it must "
            "be larger: 1024, say"
        )
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return _Library(tokenizer)


def _from_file(path: Path) -> Tokenizer:
    library = _library()
    if not path.is_file():
        raise DatasetError(f"{_FIELD}: {path} is not a file; name a tokenizer.json, as `tokenizers` saves it")
    try:
        tokenizer = library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise DatasetError(f"{_FIELD}: {path} is not a file of the library tokenizers: {error}") from error
    # Files saved for batches of sentences ask for both; of a text, they would cut lines and fill up the others.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return _Library(tokenizer)
