"""Fixed vectors for descriptions of layers: the vocabulary of Lamelas 5.1 and the embeddings of 5.2.

The paper gives each distinct layer, identified by its printed string, the next id and looks the id up in a random,
untrained embedding table. Two things differ here:

1. Layers are identified by `canonical_key`, operator and sorted attributes, so that a change in how a library
   prints a layer changes nothing.
2. The vector of a layer is a fixed random function of its operator and attributes (`layer_embedding`) instead of a
   draw by id. It is still unique for each distinct layer and never trained, but a layer that was never seen gets a
   vector as well, and one that lies near those of similar layers.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from espalier_core.growth.architecture import Architecture, AttributeValue, Layer

EMBEDDING_SIZE: Final = 16
"""Dimensions of an embedding (Lamelas 5.2, following Cai et al.)."""

NUMBER_WEIGHT: Final = 0.3
"""Length of the step for doubling a numeric attribute, relative to the distance scale of operators."""
CATEGORY_WEIGHT: Final = 0.5
"""Weight of a non-numeric attribute (text, truth value, none)."""
IDENTITY_WEIGHT: Final = 0.1
"""Weight of the part that depends on the whole key: it separates layers that the rest would merge."""
LARGEST_LOG2: Final = 32
"""Numbers beyond 2**32 are embedded as 2**32: no attribute, however absurd, can drown the others."""

Vector = npt.NDArray[np.float32]

_compact = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def canonical_key(layer: Layer) -> str:
    """Return operator and attributes as one text, equal exactly for layers with the same computation.

    It omits name, inputs and place in the network, as all instances of a layer share an embedding.
    """
    return layer.operator + _compact(layer.attributes)


@lru_cache(maxsize=8192)
def _direction(seed: int, text: str) -> Vector:
    """Return 16 standard normal numbers that depend only on `seed` and `text`.

    They come from SHA-512, not from a generator of torch or numpy, whose streams may change between releases.
    """
    # surrogatepass: JSON can contain text that is not valid Unicode.
    digest = hashlib.sha512(f"{seed}:{text}".encode(errors="surrogatepass")).digest()
    normal = NormalDist()
    words = np.frombuffer(digest, dtype="<u4")
    return np.array([normal.inv_cdf((int(word) + 0.5) / 2**32) for word in words], dtype=np.float32)


def _log_magnitude(value: float) -> float:
    """Return sign(v)·log2(1 + |v|), bounded: channels and kernels matter by their ratio."""
    bounded = min(abs(value), 2**LARGEST_LOG2)
    magnitude = math.log2(1.0 + bounded)
    return magnitude if value >= 0 else -magnitude


def _attribute_part(seed: int, name: str, value: AttributeValue) -> Vector:
    if isinstance(value, tuple):
        part = np.zeros(EMBEDDING_SIZE, dtype=np.float32)
        for index, item in enumerate(value):
            part += _attribute_part(seed, f"{name}[{index}]", item)
        return part
    if isinstance(value, bool | str) or value is None:
        return np.float32(CATEGORY_WEIGHT) * _direction(seed, f"{name}={json.dumps(value)}")
    return np.float32(NUMBER_WEIGHT * _log_magnitude(value)) * _direction(seed, name)


def layer_embedding(layer: Layer, seed: int) -> Vector:
    """Return the fixed embedding of a layer, shape (16,): operator + attributes + a little of its identity.

    Numeric attributes enter by their logarithm along a direction that belongs to the attribute's name, so `Conv2d(32,
    64)` is nearer to `Conv2d(32, 128)` than to `Linear(32, 64)`. Any operator and attribute is accepted.
    """
    vector = operator_embedding(layer, seed).copy()
    for name, value in layer.attributes.items():
        vector += _attribute_part(seed, name, value)
    vector += np.float32(IDENTITY_WEIGHT) * _direction(seed, f"identity {canonical_key(layer)}")
    return vector


def operator_embedding(layer: Layer, seed: int) -> Vector:
    """Return the operator's part of a layer's embedding, shape (16,)."""
    return _direction(seed, f"operator {layer.operator}")


def attribute_embedding(layer: Layer, seed: int) -> Vector:
    """Return the attributes' part of a layer's embedding, shape (16,), without its identity."""
    vector = np.zeros(EMBEDDING_SIZE, dtype=np.float32)
    for name in sorted(layer.attributes):
        vector += _attribute_part(seed, name, layer.attributes[name])
    return vector


class Vocabulary:
    """The layers that a policy has met (Algorithm 2 of Lamelas), with their embeddings; immutable.

    A layer's id is its position in `keys`. Layers outside it are embedded all the same.
    """

    def __init__(self, keys: Sequence[str], embeddings: torch.Tensor, seed: int) -> None:
        """Take the keys by id, their embeddings (V, 16) and the seed for layers outside.

        Raise `ValueError` if keys repeat or the shape does not fit.
        """
        if len(set(keys)) != len(keys):
            raise ValueError("the vocabulary names a layer twice")
        if embeddings.shape != (len(keys), EMBEDDING_SIZE):
            raise ValueError(
                f"embeddings have shape {tuple(embeddings.shape)}, "
                f"where {len(keys)} layers need {(len(keys), EMBEDDING_SIZE)}"
            )
        self.keys = tuple(keys)
        self.seed = seed
        self.embeddings = embeddings
        self._rows: dict[str, Vector] = dict(zip(self.keys, embeddings.numpy(), strict=True))

    @classmethod
    def build(cls, architectures: Iterable[Architecture], seed: int) -> Vocabulary:
        """Run Algorithm 2: each layer of each model without an id gets the next one."""
        return cls((), torch.empty(0, EMBEDDING_SIZE), seed).extended(architectures)

    def extended(self, architectures: Iterable[Architecture]) -> Vocabulary:
        """Return a vocabulary that also contains these models' layers; existing ids and embeddings are kept."""
        rows = dict(self._rows)
        for architecture in architectures:
            for layer in architecture.layers:
                key = canonical_key(layer)
                if key not in rows:
                    rows[key] = layer_embedding(layer, self.seed)
        stacked = np.stack(list(rows.values())) if rows else np.empty((0, EMBEDDING_SIZE), dtype=np.float32)
        return Vocabulary(tuple(rows), torch.from_numpy(stacked), self.seed)

    def __len__(self) -> int:
        return len(self.keys)

    def knows(self, architecture: Architecture) -> bool:
        """Return whether all layers of the model are in the vocabulary."""
        return all(canonical_key(layer) in self._rows for layer in architecture.layers)

    def unknown(self, architecture: Architecture) -> int:
        """Return the number of layers of the model that are not in the vocabulary."""
        return sum(canonical_key(layer) not in self._rows for layer in architecture.layers)

    def embed(self, architecture: Architecture) -> torch.Tensor:
        """Return the embeddings of a model's layers in execution order, shape (layers, 16)."""
        found = []
        for layer in architecture.layers:
            row = self._rows.get(canonical_key(layer))
            found.append(layer_embedding(layer, self.seed) if row is None else row)
        return torch.from_numpy(np.stack(found))
