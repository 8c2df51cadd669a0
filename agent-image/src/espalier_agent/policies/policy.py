"""A policy: a trained network, the vocabulary it was trained with, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from espalier_agent.policies.network import PolicyNetwork
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_core.base import Record
from espalier_core.growth.architecture import Architecture
from espalier_core.types.advice import PolicyVersion

DEFAULT_EMBEDDING_SEED: Final = 0
"""Of the layers' embeddings. Policies that share it agree about layers that none of them has met."""


class LearntTable(Record):
    """A table that a policy was learnt from."""

    name: str
    sha256: str
    """Of the table's canonical JSON."""


class LearntHistory(Record):
    """The decisions of a service, and what came of them, that a policy was learnt from."""

    files: tuple[str, ...]
    """Names of the databases. They grow while they are read, so the digest is not theirs."""
    sha256: str
    """Of what was learnt from: ids, actions, their probabilities and accuracies."""
    decisions: int
    episodes: int
    """Jobs, with one decision or more each."""
    held_out_share: float
    """Of all episodes; these were not learnt from."""
    held_out_seed: int
    held_out_episodes: int
    trials: int = 0
    """Decisions that a trial took; they are learnt from by what their arms have shown."""


class Lineage(Record):
    """How a policy came to be: enough to make it again."""

    learner: str
    config: dict[str, bool | int | float | str]
    """The learner's configuration."""
    seed: int
    episodes: int
    tables: tuple[LearntTable, ...]
    """What it, or a policy that it continues from, has learnt from: none of them can judge it."""
    parent: PolicyVersion | None = None
    """The policy that learning started from; absent when it started from a fresh network."""
    history: LearntHistory | None = None
    """What it, or its parent policy, learned from in addition to tables; absent if both learned from tables alone."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What answers. The network is in evaluation mode and takes no gradients; nothing here changes after creation."""

    name: str
    version: str
    """A digest of network, vocabulary and configuration: equal policies have equal versions."""
    network: PolicyNetwork
    vocabulary: Vocabulary
    lineage: Lineage
    strangers: Policy | None = field(default=None, compare=False)
    """Answers for models with layers that this policy has never met; None: it answers for them, too."""

    def answering(self, architecture: Architecture) -> Policy:
        """Return the policy that answers for a model."""
        if self.strangers is None or self.vocabulary.knows(architecture):
            return self
        return self.strangers

    @property
    def identity(self) -> PolicyVersion:
        """Name and version, as in answers."""
        return PolicyVersion(name=self.name, version=self.version)
