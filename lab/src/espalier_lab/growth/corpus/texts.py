"""Texts for language models that are there without a download, cut into windows of tokens.

Each is on every machine that has Python and torch. Their contents differ a little between versions of these, so a
corpus is repeated exactly only with the same versions.
"""

from __future__ import annotations

import pydoc_data.topics
import random
import sysconfig
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import torch

from espalier_lab.growth.judge.case import JudgeSplit
from espalier_trainer.data.text import Tokenizer, by_position, tokenizer_of

_CHARACTERS: Final = 600_000
"""At most, of a text."""
_EVALUATED: Final = 12_000
"""Tokens of the validation split and of the test split, at most."""
_PIECE: Final = 20
"""Lines."""
_NAMED: Final = 0x1_0000
_UNNAMED: Final = ("CJK", "HANGUL SYLLABLE")
"""Beginnings of names that are numbers."""


def _code(_: random.Random) -> str:
    """Return modules of Python's standard library."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def _prose(_: random.Random) -> str:
    """Return the English of Python's language reference."""
    return "\n".join(pydoc_data.topics.topics.values())


def _headers(chance: random.Random) -> str:
    """Return C++: pieces of headers of torch, in any order, as the headers differ much."""
    folder = Path(torch.__file__).parent / "include" / "ATen" / "core"
    lines = [
        line
        for file in sorted(folder.rglob("*.h"))
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
    ]
    pieces = ["\n".join(lines[place : place + _PIECE]) for place in range(0, len(lines), _PIECE)]
    chance.shuffle(pieces)
    return "\n".join(pieces)


def _names(chance: random.Random) -> str:
    """Return the names of characters in Unicode, in any order."""
    found = [unicodedata.name(chr(point), "") for point in range(_NAMED)]
    names = [name for name in found if name and not name.startswith(_UNNAMED)]
    chance.shuffle(names)
    return "\n".join(names)


_NOUNS: Final = ("cat", "dog", "bird", "fox", "child", "king", "ship", "river", "stone", "star")
_VERBS: Final = ("see", "follow", "want", "find", "carry", "paint", "hear", "watch")
_ADJECTIVES: Final = ("old", "green", "small", "quiet", "bright", "heavy")


def _grammar(chance: random.Random) -> str:
    """Return sentences of a grammar: agreement across nested clauses, brackets that match, sums that are right."""
    sentences: list[str] = []
    characters = 0
    while characters < _CHARACTERS:
        makes = chance.choice((_sentence, _sentence, _brackets, _sum))
        sentences.append(makes(chance))
        characters += len(sentences[-1]) + 1
    return "\n".join(sentences)


def _noun_phrase(chance: random.Random, depth: int) -> tuple[str, bool]:
    """Return a noun phrase, and whether it is plural."""
    plural = chance.random() < 0.5
    words = ["these" if plural else "this"]
    words += [chance.choice(_ADJECTIVES)] * (chance.random() < 0.4)
    words.append(chance.choice(_NOUNS) + "s" * plural)
    if depth < 3 and chance.random() < 0.35:
        inner, inner_plural = _noun_phrase(chance, depth + 1)
        words += ["that", inner, chance.choice(_VERBS) + "s" * (not inner_plural)]
    return " ".join(words), plural


def _sentence(chance: random.Random) -> str:
    subject, plural = _noun_phrase(chance, 0)
    verb, (target, _) = chance.choice(_VERBS) + "s" * (not plural), _noun_phrase(chance, 1)
    return f"{subject} {verb} {target}."


def _brackets(chance: random.Random) -> str:
    kinds, opened, text = ("()", "[]", "{}"), list[str](), ""
    for _ in range(chance.randrange(4, 24)):
        if opened and chance.random() < 0.45:
            text += opened.pop()
        else:
            kind = chance.choice(kinds)
            opened.append(kind[1])
            text += kind[0]
    return text + "".join(reversed(opened))


def _sum(chance: random.Random) -> str:
    one, other = chance.randrange(100), chance.randrange(100)
    return f"{one} + {other} = {one + other};"


TEXTS: Final[dict[str, Callable[[random.Random], str]]] = {
    "code": _code,
    "prose": _prose,
    "headers": _headers,
    "grammar": _grammar,
    "names": _names,
}


@dataclass(frozen=True, slots=True)
class TokenWindows:
    """A text as windows of tokens; the targets of a window [N, context] are its tokens one place later."""

    train: JudgeSplit
    validation: JudgeSplit
    test: JudgeSplit
    vocabulary: int
    characters_per_token: float


@cache
def windows_of(text: str, tokenizer: str, vocabulary: int, context: int, seed: int) -> TokenWindows:
    """Return a text of `TEXTS` as windows, the same for the same seed.

    `tokenizer` is one of `characters`, `bytes` and `bpe`. Raises `KeyError` for an unknown text.
    """
    whole = TEXTS[text](random.Random(f"{seed}/{text}"))[:_CHARACTERS]
    return cut(whole, lambda part: tokenizer_of(tokenizer, vocabulary, part), context)


def cut(text: str, tokenizer: Callable[[str], Tokenizer], context: int) -> TokenWindows:
    """Return a text as windows; `tokenizer` returns the one for the text's training part."""
    parts = by_position(text)
    encoder = tokenizer(parts[0])
    most = (None, _EVALUATED, _EVALUATED)
    encoded = [encoder.encode(part) for part in parts]
    train, validation, test = (_split(tokens[:count], context) for tokens, count in zip(encoded, most, strict=True))
    return TokenWindows(train, validation, test, encoder.size, len(text) / sum(map(len, encoded)))


def _split(tokens: np.ndarray[tuple[int], np.dtype[np.int64]], context: int) -> JudgeSplit:
    count = (len(tokens) - 1) // context
    whole = torch.from_numpy(tokens[: count * context + 1].copy())
    return JudgeSplit(whole[:-1].view(count, context), whole[1:].view(count, context))
