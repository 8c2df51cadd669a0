"""Data included with the agent: starting models by name, outcome tables, corpora of growth, the shipped policy."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import as_file, files
from typing import Final

from espalier_core.growth.architecture import Architecture
from espalier_core.types.outcomes import SUFFIX, GrowthCorpus, OutcomeTable, read_corpus, read_tables

NAMED_MODELS: Final = ("cnn1", "cnn2")
"""Starting models of Lamelas, Figure 6: the published tables name them instead of describing them."""

POLICY_FOLDER: Final = "policies/default"
"""Folder of the shipped policy, in this package."""
PARTS: Final = ("policies/unseen", "policies/language")
"""Folders of the policies for models with layers that the shipped policy has never met, and for language models."""


@cache
def named_architecture(name: str) -> Architecture:
    """Return the starting model with this name; raise `KeyError` if there is none."""
    if name not in NAMED_MODELS:
        raise KeyError(name)
    text = files(__name__).joinpath("architectures", f"{name}.json").read_text(encoding="utf-8")
    return Architecture.model_validate(json.loads(text))


def table_sets() -> tuple[str, ...]:
    """Return the names of the included sets of outcome tables, one folder each."""
    return tuple(sorted(entry.name for entry in files(__name__).joinpath("outcomes").iterdir() if entry.is_dir()))


@cache
def carried_tables(name: str) -> tuple[OutcomeTable, ...]:
    """Return a set of tables, ordered by file name; raise `KeyError` if no set has this name."""
    if name not in table_sets():
        raise KeyError(name)
    with as_file(files(__name__).joinpath("outcomes", name)) as folder:
        return read_tables(folder)


def lamelas_tables() -> tuple[OutcomeTable, ...]:
    """Return the six tables published with the paper: cnn1 and cnn2, early, late and middle."""
    return carried_tables("lamelas")


def corpus_names() -> tuple[str, ...]:
    """Return the names of the included corpora of growth."""
    found = files(__name__).joinpath("corpora").iterdir()
    return tuple(sorted(one.name.removesuffix(SUFFIX) for one in found if one.name.endswith(SUFFIX)))


@cache
def carried_corpus(name: str) -> GrowthCorpus:
    """Return an included corpus; raise `KeyError` if none has this name."""
    if name not in corpus_names():
        raise KeyError(name)
    with as_file(files(__name__).joinpath("corpora", name + SUFFIX)) as path:
        return read_corpus(path)
