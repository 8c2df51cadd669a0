"""Parsing of policies with settings: `las:thresholds=3600/7200,promote=8`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from espalier_operator.policies import POLICIES, Policy
from espalier_operator.policies.learned import LearnedPolicy


def configured(text: str) -> Policy:
    """Return the policy of `NAME` or `NAME:key=value,...`; several values of one key are separated by `/`.

    Raises `RegistryError` for an unknown name, and `ValueError` for an unknown or invalid setting.
    """
    name, _, rest = text.partition(":")
    policy: Policy = made(POLICIES.load(name), rest, text, f"policy {name}")
    return policy


def configured_here(text: str) -> Policy:
    """Return the policy of `configured` for use without a policy server. Raises `ValueError` for one that needs it."""
    policy = configured(text)
    if isinstance(policy, LearnedPolicy) and policy.evaluates is None:
        raise ValueError(f"{text}: file: is missing; there is no policy server here: write {policy.name}:file=FILE")
    return policy


def made(make: Callable[..., Any], settings: str, text: str, what: str) -> Any:
    """Return the result of `make` with the settings `key=value,...`.

    `text` is the whole text and `what` names the result, for errors. Raises `ValueError`, like `configured`.
    """
    known = {key: hint for key, hint in _settings(make).items() if key != "name"}
    given: dict[str, Any] = {}
    for part in filter(None, settings.split(",")):
        key, equals, value = part.partition("=")
        if not equals or key not in known:
            takes = ", ".join(known) or "no settings"
            raise ValueError(f"{text}: {key}: unknown setting of {what}; it takes {takes}")
        raw: Any = value.split("/") if str(known[key]).startswith("tuple") else value
        try:
            given[key] = TypeAdapter(known[key]).validate_python(raw)
        except ValidationError as error:
            raise ValueError(f"{text}: {key}: {value!r}: {error.errors()[0]['msg']}") from error
    try:
        return make(**given)
    except ValueError as error:
        raise ValueError(f"{text}: {error}") from error


def takes_seed(text: str, *, typed: bool, continuous: bool) -> bool:
    """Return whether a policy draws at random by a seed that `text` does not set.

    `typed`: its views name types of GPU; `continuous`: as in a view. A policy with a `seed` draws, unless its method
    `draws` returns False. Raises like `configured`.
    """
    policy = configured(text)
    if not hasattr(policy, "seed") or "seed=" in text.partition(":")[2]:
        return False
    draws: Callable[..., bool] | None = getattr(policy, "draws", None)
    return draws is None or draws(typed=typed, continuous=continuous)


def _settings(make: Any) -> dict[str, Any]:
    """Return the parameters of a policy's class or function, with their types."""
    hints = get_type_hints(make.__init__ if inspect.isclass(make) else make)
    return {name: hints.get(name, str) for name in inspect.signature(make).parameters}
