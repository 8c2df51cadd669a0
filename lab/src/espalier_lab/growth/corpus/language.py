"""Families of small language models, drawn from a seed.

A family draws a kind of block (attention with its norm, its positions and its MLP; a causal convolution; a recurrent
layer), a width, a number of blocks, a text with its tokens, and a budget: for some far too small to gain anything by
growing, for some right, for some too large.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from espalier_core.types.job import OptimizerSpec
from espalier_core.types.task import Task
from espalier_lab.growth.corpus.designs import ACTIVATIONS
from espalier_lab.growth.corpus.texts import TokenWindows, windows_of
from espalier_lab.growth.judge.case import JudgeCase

BATCH_SIZE: Final = 8
_CHARACTERS_KNOWN: Final = 96
_PAIRS_KNOWN: Final = 512
LONG_STEPS: Final = (1500, 9000)
"""Least and most steps of a long budget; of recurrent models, whose steps are slow, a third of these."""
_BASE: Final = 10_000.0
"""Of the wave lengths of rotary positions (RoFormer)."""


@dataclass(frozen=True, slots=True)
class LanguageDesign:
    """Everything that makes a language model, apart from its text and its weights."""

    body: str
    """`attention`, `convolution` or `recurrent`."""
    width: int
    blocks: int
    heads: int
    groups: int
    """Heads of keys and values; fewer than `heads`: grouped-query attention."""
    rotary: bool
    """Positions turn queries and keys; otherwise a learned vector is added to each place."""
    rms: bool
    """RMSNorm in place of LayerNorm."""
    post: bool
    """Norms follow the sums (the first Transformer), and do not precede the branches."""
    gated: bool
    """The MLP is gated (SwiGLU)."""
    activation: str
    hidden: int
    """Channels within the MLP."""
    context: int
    tokenizer: str
    steps: int
    learning_rate: float

    @property
    def name(self) -> str:
        """Its parts in words."""
        parts = [self.body, f"{self.blocks}x{self.width}"]
        if self.body == "attention":
            parts += ["post" if self.post else "pre", "rotary" if self.rotary else "learned"]
        parts += ["rms" if self.rms else "ln", "gated" if self.gated else self.activation, self.tokenizer]
        return "-".join(parts)


def drawn(body: str, chance: random.Random, *, long: tuple[int, int] | None = None) -> LanguageDesign:
    """Draw a design with this body; with `long` a small one, which has at least and at most so many steps."""
    width = chance.choice((16, 24, 32, 32, 48, 64) if long else (32, 32, 48, 64, 64, 96, 128, 192, 256))
    heads = chance.choice([count for count in (2, 4, 8) if width // count >= 8])
    few, many = (1, 1, 2), (1, 1, 1, 2, 2, 3, 4, 6)
    blocks = chance.choice(many if width <= 96 and not long else few)
    gated = chance.random() < 0.35
    if long:
        least, most = long
        steps = round(math.exp(chance.uniform(math.log(least), math.log(most / (3 if body == "recurrent" else 1)))))
    else:
        # What is wide or deep is slow: budgets are of about the same time.
        slow = 1.0 + blocks * (width / 64) ** 1.5
        steps = max(250, min(6000, round(math.exp(chance.uniform(math.log(800), math.log(12_000))) / slow**0.8)))
    return LanguageDesign(
        body=body,
        width=width,
        blocks=blocks,
        heads=heads,
        groups=heads // chance.choice((1, 1, 2)),
        rotary=chance.random() < 0.4,
        rms=chance.random() < 0.4,
        post=chance.random() < 0.2,
        gated=gated,
        activation=chance.choice(("relu", "gelu", "silu")),
        hidden=round(width * chance.choice((2, 4)) * (2 / 3 if gated else 1)),
        context=chance.choice((32, 64, 64)),
        tokenizer=chance.choice(("characters", "characters", "bytes", "bpe")),
        steps=steps,
        learning_rate=round(0.005 * (32 / width) ** 0.6 * chance.choice((0.7, 1.0, 1.4)), 5),
    )


class RotaryAttention(nn.Module):
    """Causal self-attention whose heads may share keys and values, with rotary positions where they are asked for."""

    def __init__(self, design: LanguageDesign) -> None:
        super().__init__()
        self.heads, self.groups, self.rotary = design.heads, design.groups, design.rotary
        self.size = design.width // design.heads
        self.query = nn.Linear(design.width, design.width, bias=False)
        self.key = nn.Linear(design.width, design.groups * self.size, bias=False)
        self.value = nn.Linear(design.width, design.groups * self.size, bias=False)
        self.project = nn.Linear(design.width, design.width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Return what each place [N, T, width] takes from those up to it."""
        examples, length, width = states.shape
        query = self.query(states).view(examples, length, self.heads, self.size).transpose(1, 2)
        key = self.key(states).view(examples, length, self.groups, self.size).transpose(1, 2)
        value = self.value(states).view(examples, length, self.groups, self.size).transpose(1, 2)
        if self.rotary:
            query, key = turned(query), turned(key)
        if self.groups < self.heads:
            key = key.repeat_interleave(self.heads // self.groups, dim=1)
            value = value.repeat_interleave(self.heads // self.groups, dim=1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: Tensor = self.project(mixed.transpose(1, 2).reshape(examples, length, width))
        return projected


def turned(heads: Tensor) -> Tensor:
    """Return queries or keys [N, H, T, size] with each pair of channels turned by its place (RoFormer, eq. 34)."""
    length, size = heads.shape[-2:]
    half = size // 2
    speeds = _BASE ** (-torch.arange(half, dtype=heads.dtype, device=heads.device) / half)
    angles = torch.arange(length, dtype=heads.dtype, device=heads.device)[:, None] * speeds
    cos, sin = angles.cos(), angles.sin()
    one, other = heads[..., :half], heads[..., half : 2 * half]
    return torch.cat([one * cos - other * sin, one * sin + other * cos], dim=-1)


class CausalConvolution(nn.Module):
    """A convolution over the last few places, then a projection."""

    def __init__(self, design: LanguageDesign) -> None:
        super().__init__()
        self.look = nn.Conv1d(design.width, design.width, 4, groups=design.heads)
        self.project = nn.Linear(design.width, design.width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Return [N, T, width]."""
        padded = functional.pad(states.transpose(1, 2), (3, 0))
        projected: Tensor = self.project(functional.silu(self.look(padded)).transpose(1, 2))
        return projected


class Recurrence(nn.Module):
    """A GRU, then a projection."""

    def __init__(self, design: LanguageDesign) -> None:
        super().__init__()
        self.reader = nn.GRU(design.width, design.width, batch_first=True)
        self.project = nn.Linear(design.width, design.width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Return [N, T, width]."""
        projected: Tensor = self.project(self.reader(states)[0])
        return projected


_MIXERS: Final[dict[str, Callable[[LanguageDesign], nn.Module]]] = {
    "attention": RotaryAttention,
    "convolution": CausalConvolution,
    "recurrent": Recurrence,
}


class PlainMLP(nn.Module):
    """Two linear layers."""

    def __init__(self, design: LanguageDesign) -> None:
        super().__init__()
        self.act = ACTIVATIONS[design.activation]()
        self.expand = nn.Linear(design.width, design.hidden, bias=False)
        self.project = nn.Linear(design.hidden, design.width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Return [N, T, width]."""
        projected: Tensor = self.project(self.act(self.expand(states)))
        return projected


class GatedMLP(nn.Module):
    """Two linear layers, the first one times a gate (SwiGLU)."""

    def __init__(self, design: LanguageDesign) -> None:
        super().__init__()
        self.gate = nn.Linear(design.width, design.hidden, bias=False)
        self.expand = nn.Linear(design.width, design.hidden, bias=False)
        self.project = nn.Linear(design.hidden, design.width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Return [N, T, width]."""
        projected: Tensor = self.project(functional.silu(self.gate(states)) * self.expand(states))
        return projected


class LanguageBlock(nn.Module):
    """One residual block: places see each other, then each place by itself; norms before the branches, or after."""

    def __init__(self, design: LanguageDesign) -> None:
        super().__init__()
        norm = nn.RMSNorm if design.rms else nn.LayerNorm
        self.post = design.post
        self.mix_norm, self.mlp_norm = norm(design.width), norm(design.width)
        self.mix = _MIXERS[design.body](design)
        self.mlp = GatedMLP(design) if design.gated else PlainMLP(design)

    def forward(self, states: Tensor) -> Tensor:
        """Return the next states [N, T, width]."""
        if self.post:
            states = self.mix_norm(states + self.mix(states))
            return self.mlp_norm(states + self.mlp(states))  # type: ignore[no-any-return]
        states = states + self.mix(self.mix_norm(states))
        return states + self.mlp(self.mlp_norm(states))  # type: ignore[no-any-return]


class LanguageModel(nn.Module):
    """Tokens [N, T] to logits of the tokens that follow, [N, T, vocabulary]."""

    def __init__(self, design: LanguageDesign, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, design.width)
        learned = design.body == "attention" and not design.rotary
        self.places = nn.Parameter(torch.empty(design.context, design.width)) if learned else None
        self.blocks = nn.ModuleList([LanguageBlock(design) for _ in range(design.blocks)])
        self.norm = (nn.RMSNorm if design.rms else nn.LayerNorm)(design.width)
        self.head = nn.Linear(design.width, vocabulary, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim > 1:  # GPT-2; what closes a branch is smaller, so that their sum keeps its size
                closes = name.endswith("project.weight")
                nn.init.normal_(weight, std=0.02 / (2 * design.blocks) ** 0.5 if closes else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [N, T, vocabulary]."""
        states = self.embedding(tokens)
        if self.places is not None:
            states = states + self.places[: tokens.shape[1]]
        for block in self.blocks:
            states = block(states)
        logits: Tensor = self.head(self.norm(states))
        return logits


def language_model(design: LanguageDesign, text: str, text_seed: int, seed: int) -> nn.Module:
    """Return the starting model of a design for a text."""
    windows = _windows(design, text, text_seed)
    torch.manual_seed(seed)
    return LanguageModel(design, windows.vocabulary)


def _windows(design: LanguageDesign, text: str, seed: int) -> TokenWindows:
    vocabulary = _PAIRS_KNOWN if design.tokenizer == "bpe" else _CHARACTERS_KNOWN
    return windows_of(text, design.tokenizer, vocabulary, design.context, seed)


@dataclass(frozen=True, slots=True)
class LanguageFamilies:
    """A set of families of language models that is drawn from one seed."""

    name: str
    seed: int
    counts: tuple[tuple[str, int], ...]
    """Families by body."""
    texts: tuple[str, ...]
    long: float = 0.0
    """Share of the families of each body that are small, with many steps."""
    steps: tuple[int, int] = LONG_STEPS
    """Least and most of these."""

    def __call__(self) -> tuple[JudgeCase, ...]:
        """Return the cases, one of each family."""
        return tuple(self._case(place, design) for place, design in enumerate(self._designs()))

    def case(self, place: int) -> JudgeCase:
        """Return one of the cases; only its text is encoded."""
        return self._case(place, self._designs()[place])

    def _designs(self) -> list[LanguageDesign]:
        """Draw the designs; the bodies take turns."""
        drawn_ones = []
        for body, count in self.counts:
            chance = random.Random(f"{self.seed}/{body}")
            drawn_ones += [
                ((place + 0.5) / count, drawn(body, chance, long=self.steps if place < self.long * count else None))
                for place in range(count)
            ]
        return [design for _, design in sorted(drawn_ones, key=lambda one: one[0])]

    def _case(self, place: int, design: LanguageDesign) -> JudgeCase:
        text = self.texts[place % len(self.texts)]  # take turns, too
        windows = _windows(design, text, self.seed)
        family = f"{self.name}-{place:02}-{design.name}"
        return JudgeCase(
            name=f"{family}-{text}",
            family=family,
            module=partial(language_model, design, text, self.seed),
            train=windows.train,
            validation=windows.validation,
            test=windows.test,
            steps=design.steps,
            batch_size=BATCH_SIZE,
            optimizer=OptimizerSpec(name="AdamW", learning_rate=design.learning_rate),
            task=Task.LANGUAGE_MODEL,
            characters_per_token=windows.characters_per_token,
        )


LANGUAGE: Final = LanguageFamilies(
    "language", 50, (("attention", 34), ("convolution", 6), ("recurrent", 4)), ("code", "prose", "headers", "grammar")
)
"""Of all sizes, most with budgets that are too short to grow in."""
LANGUAGE_LONG: Final = LanguageFamilies(
    "language-long",
    51,
    (("attention", 20), ("convolution", 3), ("recurrent", 1)),
    ("code", "prose", "headers", "grammar"),
    long=1.0,
)
"""Small, with budgets in which it pays to grow, or nearly."""
LANGUAGE_LONGEST: Final = LanguageFamilies(
    "language-longest",
    52,
    (("attention", 7), ("convolution", 1)),
    ("code", "prose", "headers", "grammar"),
    long=1.0,
    steps=(9000, 24_000),
)
"""Small, with budgets in which it pays to grow more than once."""
LANGUAGE_UNSEEN: Final = LanguageFamilies(
    "language-unseen",
    5081,
    (("attention", 8), ("convolution", 1), ("recurrent", 1)),
    ("names", "prose", "code"),
    long=0.6,
)
"""The drawn part of the language models that judge it: another seed, and a text that it has not met."""
LANGUAGE_SETS: Final = (LANGUAGE, LANGUAGE_LONG, LANGUAGE_LONGEST, LANGUAGE_UNSEEN)
