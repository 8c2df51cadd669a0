"""The command's options for the operator's settings, generated from the settings: they are listed once."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

import click

from espalier_core.base import field_docs
from espalier_operator.kube.settings import DEVICE_CLASS, KubeSettings
from espalier_operator.policies.settings import configured

ALL = tuple(field.name for field in fields(KubeSettings))
NONE = "none"
MAY_BE_NONE = ("tolerated_taints", "departing_nodes")
"""Options that have a default, and of which `none` alone means none."""
F = TypeVar("F", bound=Callable[..., Any])

_MAY_BE_ZERO = (
    "grace_seconds",
    "start_up_allowance_seconds",
    "persist_seconds",
    "fair_share_half_life_seconds",
    "aging_seconds",
)


def settings_options(command: F, names: Collection[str] = ALL) -> F:
    """Give `command` one option for each field of `KubeSettings` in `names`, with the field's sentence as its help."""
    sentences = {name: " ".join(text.replace("`", "").split()) for name, text in field_docs(KubeSettings).items()}
    types = get_type_hints(KubeSettings)
    for field in reversed([field for field in fields(KubeSettings) if field.name in names]):
        many = types[field.name] == tuple[str, ...]
        command = click.option(
            f"--{field.name.replace('_', '-')}",
            field.name,
            multiple=many,
            is_flag=types[field.name] is bool,
            type=types[field.name] if types[field.name] in (float, bool) else str,
            default=field.default,
            show_default=field.default not in ((), None),
            help=sentences[field.name] + (" May be given several times." if many else ""),
            callback=_check,
        )(command)
    return command


def settings_of(given: Mapping[str, Any]) -> KubeSettings:
    """Return the settings among the values of a command's options."""
    found = {name: given[name] for name in ALL if name in given}
    return KubeSettings(**found | {name: () for name in MAY_BE_NONE if found.get(name) == (NONE,)})


def _is_name(resource: str) -> bool:
    domain, _, name = resource.partition("/")
    return bool(domain and name) and "/" not in name


def _check(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Refuse what cannot be meant; an empty text where nothing is possible means nothing."""
    name = str(parameter.name)
    if isinstance(value, float):
        least = "0 or more" if name in _MAY_BE_ZERO else "more than 0"
        if not math.isfinite(value) or value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
            raise click.BadParameter(f"{value:g} seconds cannot be; give {least}", context, parameter)
    elif value == "":
        if get_type_hints(KubeSettings)[name] is str:
            raise click.BadParameter("is empty; leave the option out for its default", context, parameter)
        return None
    elif isinstance(value, list | tuple) and "" in value:
        raise click.BadParameter("one of its values is empty; leave that out", context, parameter)
    elif name == "other_gpu_resources" and (wrong := [each for each in value if not _is_name(each)]):
        raise click.BadParameter(f"{wrong[0]!r} is not DOMAIN/NAME, as in amd.com/gpu", context, parameter)
    elif name == "gpu_resource" and str(value).startswith(DEVICE_CLASS):
        raise click.BadParameter(f"{value!r} is a DeviceClass; give it to --other-gpu-resources", context, parameter)
    elif (
        name in ("agent_url", "traces_endpoint")
        and value is not None
        and not str(value).startswith(("http://", "https://"))
    ):
        raise click.BadParameter(f"{value!r} is no URL; write http://HOST:PORT", context, parameter)
    elif name in ("controller_name", "gpu_resource", "gpu_type_label") and "/" not in str(value):
        raise click.BadParameter(
            f"{value!r} has no domain; write DOMAIN/NAME, as in nvidia.com/gpu", context, parameter
        )
    elif name == "policy":
        try:
            configured(value)
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from error
    elif name == "image_pull_policy" and value not in (None, "Always", "IfNotPresent", "Never"):
        raise click.BadParameter(f"{value!r} is none; give Always, IfNotPresent or Never", context, parameter)
    elif name == "trainer_user" and value is not None and not (str(value).isdecimal() and int(value)):
        raise click.BadParameter(f"{value!r} is no user; give a number above 0, or nothing", context, parameter)
    return value
