"""Language models by hand, held back from learning: `espalier agent judge --models` and `collect --corpus` read them.

They are written after models that people use, on texts that no learnt family has: German numerals in sums, a list of
declarations in YAML, and the pages of this repository. Some are far too small for their budget, some right, some large.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from espalier_lab.growth.corpus.language import BATCH_SIZE, turned
from espalier_lab.growth.corpus.texts import TokenWindows, cut
from espalier_trainer.data.text import Characters, Tokens

CONTEXT = 48
CHARACTERS = 400_000
WORDS = 800
_ROOT = Path(__file__).parents[2]
_UNITS = [
    "null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf",
    "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn",
]  # fmt: skip
_TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]


def german(number: int) -> str:
    """Return a numeral below a million in words."""
    if number >= 1000:
        rest = german(number % 1000) if number % 1000 else ""
        return f"{_joined(number // 1000)}tausend{rest}"
    if number >= 100:
        rest = german(number % 100) if number % 100 else ""
        return f"{_joined(number // 100)}hundert{rest}"
    if number < 20:
        return _UNITS[number]
    unit = f"{_joined(number % 10)}und" if number % 10 else ""
    return unit + _TENS[number // 10 - 2]


def _joined(number: int) -> str:
    return german(number).removesuffix("s") if number % 100 == 1 else german(number)


def _sums() -> str:
    chance, lines, length = random.Random(50), list[str](), 0
    while length < CHARACTERS:
        one, other = chance.randrange(10 ** chance.randrange(1, 5)), chance.randrange(100)
        lines.append(f"{german(one)} und {german(other)} ist {german(one + other)}.")
        length += len(lines[-1]) + 1
    return "\n".join(lines)


def _declarations() -> str:
    folder = Path(torch.__file__).parents[1] / "torchgen" / "packaged" / "ATen" / "native"
    return (folder / "native_functions.yaml").read_text(encoding="utf-8")


def _pages() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in sorted((_ROOT / "docs").rglob("*.md")))


class Words:
    """The most frequent words and signs of a text; token 0 is any other."""

    def __init__(self, text: str) -> None:
        found = Counter(self.parts(text)).most_common(WORDS - 1)
        self.places = {word: place for place, (word, _) in enumerate(found, 1)}
        self.size = WORDS

    @staticmethod
    def parts(text: str) -> list[str]:
        """Return the words, spaces and signs of a text."""
        return re.findall(r"\w+|\s+|[^\w\s]", text)

    def encode(self, text: str) -> Tokens:
        """Return the number of each."""
        return np.array([self.places.get(word, 0) for word in self.parts(text)], dtype=np.int64)


TEXTS = {"sums": _sums, "declarations": _declarations, "pages": _pages}


@cache
def windows(text: str, words: bool) -> TokenWindows:
    """Return a text as windows of characters or words."""
    return cut(TEXTS[text]()[:CHARACTERS], Words if words else lambda part: Characters.of(part, 96), CONTEXT)


class RootMean(nn.Module):
    """RMSNorm as Llama's code has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class LlamaLayer(nn.Module):
    """Grouped heads with rotary positions, then SwiGLU."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.input_norm, self.post_norm = RootMean(width), RootMean(width)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, groups * self.size, bias=False)
        self.v_proj = nn.Linear(width, groups * self.size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.gate_proj = nn.Linear(width, 2 * width, bias=False)
        self.up_proj = nn.Linear(width, 2 * width, bias=False)
        self.down_proj = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        h = self.input_norm(x)
        q = turned(self.q_proj(h).view(n, t, self.heads, self.size).transpose(1, 2))
        k = turned(self.k_proj(h).view(n, t, self.groups, self.size).transpose(1, 2))
        v = self.v_proj(h).view(n, t, self.groups, self.size).transpose(1, 2)
        k, v = (one.repeat_interleave(self.heads // self.groups, dim=1) for one in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(mixed.transpose(1, 2).reshape(n, t, width))
        h = self.post_norm(x)
        return x + self.down_proj(functional.silu(self.gate_proj(h)) * self.up_proj(h))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Causal attention with one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int, *, rotary: bool) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = self.c_attn(x).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if self.rotary:
            q, k = turned(q), turned(k)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).reshape(n, t, width))  # type: ignore[no-any-return]


class NeoXLayer(nn.Module):
    """Attention and MLP side by side (GPT-J, GPT-NeoX)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 4, rotary=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(self.ln1(x)) + self.mlp(self.ln2(x))  # type: ignore[no-any-return]


class GPTBlock(nn.Module):
    """A block of GPT-2, with biases and dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, 4, rotary=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width), nn.Dropout(0.05)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class MinGRU(nn.Module):
    """A gated linear recurrence over all places at once, in logarithms (Feng et al. 2024), then an MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.gate, self.value, self.out = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        gate, value = self.gate(h), self.value(h)
        positive = torch.where(value >= 0, (functional.relu(value) + 0.5).log(), -functional.softplus(-value))
        kept = -functional.softplus(gate).cumsum(1)
        states = (kept + (positive - functional.softplus(-gate) - kept).logcumsumexp(1)).exp()
        x = x + self.out(states)
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]


class Causal(nn.Conv1d):
    """A convolution over the past."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(functional.pad(x, ((self.kernel_size[0] - 1) * self.dilation[0], 0)))


class HyenaLayer(nn.Module):
    """Two gates around a long depthwise convolution (Hyena), then an MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.left, self.right, self.value = (nn.Linear(width, width) for _ in range(3))
        self.long = Causal(width, width, 24, groups=width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        past = self.long((self.right(h) * self.value(h)).transpose(1, 2)).transpose(1, 2)
        x = x + self.out(self.left(h) * past)
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]


class Stacked(nn.Module):
    """An embedding, layers, a norm and a head: its own, or the embedding again."""

    def __init__(self, vocabulary: int, width: int, layers: list[nn.Module], *, placed: bool, tied: bool) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(CONTEXT, width) if placed else None
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens)
        if self.wpe is not None:
            x = x + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))  # type: ignore[no-any-return]


class TorchEncoder(nn.Module):
    """PyTorch's own encoder layers under a causal mask."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary, width), nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", torch.full((CONTEXT, CONTEXT), -torch.inf).triu(1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.encoder(x, mask=self.mask, is_causal=True))  # type: ignore[no-any-return]


class WordLSTM(nn.Module):
    """An LSTM over words, with dropout and a tied embedding (Press and Wolf 2017)."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.encoder, self.drop = nn.Embedding(vocabulary, width), nn.Dropout(0.1)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.inner = nn.Linear(width, width)
        self.decoder = nn.Linear(width, vocabulary)
        nn.init.normal_(self.encoder.weight, std=0.1)
        self.decoder.weight = self.encoder.weight

    def forward(self, tokens: Tensor) -> Tensor:
        read, _ = self.rnn(self.drop(self.encoder(tokens)))
        return self.decoder(self.drop(torch.tanh(self.inner(read))))  # type: ignore[no-any-return]


class Dilated(nn.Module):
    """Causal convolutions with growing gaps, each with a way past it (WaveNet, TCN)."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.convolutions = nn.ModuleList([Causal(width, width, 3, dilation=gap) for gap in (1, 2, 4, 8)])
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, vocabulary))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).transpose(1, 2)
        for convolution in self.convolutions:
            x = x + torch.relu(convolution(x))
        return self.head(x.transpose(1, 2))  # type: ignore[no-any-return]


class Feedforward(nn.Module):
    """The last six characters, side by side, into one hidden layer (Bengio et al. 2003)."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed, self.join = nn.Embedding(vocabulary, 16), Causal(16, 48, 6)
        self.out = nn.Linear(48, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.join(self.embed(tokens).transpose(1, 2))).transpose(1, 2))  # type: ignore[no-any-return]


def _stack(layer: Callable[[], nn.Module], count: int, width: int, vocabulary: int, **how: bool) -> nn.Module:
    return Stacked(vocabulary, width, [layer() for _ in range(count)], **({"placed": False, "tied": False} | how))


@dataclass(frozen=True)
class Family:
    """A model with its text and its budget."""

    make: Callable[[int], nn.Module]
    """Takes the number of tokens."""
    text: str
    steps: int
    learning_rate: float
    words: bool = False


FAMILIES = {
    "llama-small": Family(partial(_stack, lambda: LlamaLayer(32, 4, 2), 1, 32), "sums", 3000, 0.005),
    "llama-wide": Family(partial(_stack, lambda: LlamaLayer(128, 4, 2), 1, 128), "pages", 500, 0.002),
    "neox": Family(partial(_stack, lambda: NeoXLayer(48), 2, 48), "declarations", 1000, 0.003),
    "gpt-tied": Family(partial(_stack, lambda: GPTBlock(32), 1, 32, placed=True, tied=True), "pages", 3000, 0.005),
    "mingru": Family(partial(_stack, lambda: MinGRU(32), 1, 32), "sums", 1200, 0.005),
    "hyena": Family(partial(_stack, lambda: HyenaLayer(32), 2, 32), "declarations", 1500, 0.004),
    "torch-encoder": Family(lambda tokens: TorchEncoder(tokens, 48), "pages", 1000, 0.003),
    "word-lstm": Family(lambda tokens: WordLSTM(tokens, 48), "pages", 700, 0.005, words=True),
    "dilated": Family(lambda tokens: Dilated(tokens, 24), "sums", 1500, 0.005),
    "feedforward": Family(Feedforward, "declarations", 4000, 0.005),
}


def cases() -> Iterator[dict[str, Any]]:
    """Yield the cases, one of each family."""
    for name, family in FAMILIES.items():
        data = windows(family.text, family.words)
        yield {
            "name": f"{name}-{family.text}",
            "family": f"by-hand-{name}",
            "module": partial(_seeded, family.make, data.vocabulary),
            "task": "LanguageModel",
            "charactersPerToken": data.characters_per_token,
            **{split: (getattr(data, split).inputs, getattr(data, split).targets)
               for split in ("train", "validation", "test")},
            "steps": family.steps,
            "batchSize": BATCH_SIZE,
            "optimizer": {"name": "AdamW", "learningRate": family.learning_rate},
        }  # fmt: skip


def _seeded(make: Callable[[int], nn.Module], vocabulary: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return make(vocabulary)
