"""`text`: your own text, a file or a folder; `python-library`: the sources of Python's standard library.

The standard library exists wherever Espalier runs and may be used freely (PSF licence). Its files differ a little
between versions of Python, so figures are comparable within one version.

Texts become tokens: characters and bytes are built in, byte-pair encoding is Hugging Face's `tokenizers`.
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from espalier_core.base import Strict
from espalier_core.types.job import DatasetSpec
from espalier_core.types.task import Task
from espalier_core.validation.problems import message_of
from espalier_trainer.data.images import HELD_OUT_SEED
from espalier_trainer.data.source import Data, TokenSource
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
    """Return the tokenizer of this name, learnt from `text` if it learns; raise `DatasetError` for another name."""
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
        """Number of characters plus 1."""
        return len(self.points) + 1

    def encode(self, text: str) -> Tokens:
        """Return the index of each character, from 1; 0 for an unknown one."""
        points = _points(text)
        places = np.minimum(np.searchsorted(self.points, points), len(self.points) - 1)
        return np.where(self.points[places] == points, places + 1, 0)


@dataclass(frozen=True, slots=True)
class _Library:
    """A tokenizer of the library `tokenizers`."""

    found: Any

    @property
    def size(self) -> int:
        # Not the number of tokens: the ids in a file may have gaps.
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
    # Files saved for batches of sentences enable both, which would cut or pad the lines of a text.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return _Library(tokenizer)


_PATH: Final = "training.dataset.path"
_OPTIONS: Final = "training.dataset.options"
HELD_OUT: Final = 0.05
"""Share of the characters in the validation split, and in the test split."""


class TextOptions(Strict):
    """`training.dataset.options` of a text."""

    context: int = Field(default=64, ge=1, le=1_000_000)
    """Number of tokens in a window."""
    tokenizer: str = Field(default="characters", min_length=1)
    """`characters`, `bytes`, `bpe` (learnt from the training split), or the path of a `tokenizer.json`."""
    vocabulary: int = Field(default=256, ge=2, le=1_000_000)
    """Maximum number of tokens of `characters` and `bpe`; characters beyond it are one token, "unknown"."""
    windows: int | None = Field(default=None, ge=1)
    """Number of windows in an epoch. If absent, as many as the training split holds without overlap."""
    evaluation_windows: int = Field(default=1024, ge=1)
    """Number of windows for evaluation, at most as many as a split holds without overlap."""
    pattern: str = Field(default="*.txt", min_length=1)
    """Pattern of the files that are read in a folder and its subfolders."""


def load(spec: DatasetSpec) -> Data:
    """Return the text of `path`: several files are split by file, a single one at 90 % and 95 % of its length."""
    options = _options(spec)
    if spec.path is None:
        raise DatasetError(f"{_PATH}: is missing; name a file of text (UTF-8) or a folder of such files")
    path = Path(spec.path)
    files = sorted(file for file in path.rglob(options.pattern) if file.is_file()) if path.is_dir() else [path]
    if not files:
        raise DatasetError(
            f"{_PATH}: {path} holds no file {options.pattern}; name another folder, or set {_OPTIONS}.pattern"
        )
    return _data("text", [_read(file) for file in files], options)


def python_library(spec: DatasetSpec) -> Data:
    """Return the modules of the standard library (not its packages), split by file: 4.7 million characters."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    if not files:
        raise DatasetError(
            "training.dataset.name: this Python has no sources of its library; use `text` with a path of your own"
        )
    return _data("python-library", [_read(file) for file in files], _options(spec))


def _options(spec: DatasetSpec) -> TextOptions:
    try:
        # Through JSON: strict then means the same as in a job file.
        return TextOptions.model_validate_json(json.dumps(spec.options), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors()[0]
        place = ".".join(map(str, details["loc"]))
        if details["type"] == "extra_forbidden":
            known = ", ".join(field.alias or name for name, field in TextOptions.model_fields.items())
            raise DatasetError(f"{_OPTIONS}.{place}: is not an option of a text; allowed: {known}") from error
        raise DatasetError(f"{_OPTIONS}.{place}: {message_of(details, details['loc'], TextOptions)}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DatasetError(f"{_PATH}: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{_PATH}: {path} is not UTF-8 text; convert it, or leave it out by a pattern") from error


def _data(name: str, texts: Sequence[str], options: TextOptions) -> Data:
    split = by_file(texts)
    if len(texts) <= 2 or not all(part.strip() for part in split):  # a part may have only files without text
        split = by_position("\n".join(texts))
    train, validation, test = split
    if not (train and validation and test):
        raise DatasetError(f"{_PATH}: the text has {sum(map(len, texts))} characters, too few to be split; use more")
    tokenizer = tokenizer_of(options.tokenizer, options.vocabulary, train)
    return Data(
        name,
        _source(tokenizer, train, options, options.windows),
        _source(tokenizer, validation, options, None, options.evaluation_windows),
        _source(tokenizer, test, options, None, options.evaluation_windows),
        classes=tokenizer.size,
        task=Task.LANGUAGE_MODEL,
    )


def _source(
    tokenizer: Tokenizer, text: str, options: TextOptions, windows: int | None, most: int | None = None
) -> TokenSource:
    tokens = torch.from_numpy(tokenizer.encode(text).astype(np.int32))
    fitting = max(1, (len(tokens) - 1) // options.context)
    count = windows or (fitting if most is None else min(most, fitting))
    return TokenSource(tokens, options.context, count, len(text) / max(1, len(tokens)))


def by_position(text: str) -> tuple[str, str, str]:
    """Return (training, validation, test): the first 90 % of a text, then 5 % each."""
    first, second = (int(len(text) * (1 - share * HELD_OUT)) for share in (2, 1))
    return text[:first], text[first:second], text[second:]


def by_file(texts: Sequence[str]) -> tuple[str, str, str]:
    """Return (training, validation, test), each of whole files.

    In an order that depends only on their number, files go to the test split until it has 5 % of the characters, then
    to the validation split, then to the training split.
    """
    parts: tuple[list[str], list[str], list[str]] = ([], [], [])
    least = HELD_OUT * sum(map(len, texts))
    order = np.random.RandomState(HELD_OUT_SEED).permutation(len(texts))
    for place, index in enumerate(order):
        rest = len(texts) - place
        test, validation = (sum(map(len, part)) for part in (parts[2], parts[1]))
        if test < least and rest > 2 - bool(parts[1]):
            parts[2].append(texts[index])
        elif validation < least and rest > 1:
            parts[1].append(texts[index])
        else:
            parts[0].append(texts[index])
    train, validation_text, test_text = ("\n".join(part) for part in parts)
    return train, validation_text, test_text
