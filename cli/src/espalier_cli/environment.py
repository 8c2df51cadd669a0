"""`espalier doctor` and `espalier completion`: the installation on this machine."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from typing import Any, Final

import click
from click.shell_completion import ShellComplete, get_completion_class

_PACKAGES: Final = (
    *("espalier-core", "espalier-operator", "espalier-cli", "espalier-agent", "espalier-trainer", "espalier-lab"),
    *("torch", "torchvision", "numpy", "kubernetes"),
)
_MISSING: Final = "not installed"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> None:
    """Print versions, devices and the cluster that the commands use, for a bug report; what is wrong goes to stderr."""
    found = report()
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        for name, value in found.items():
            click.echo(f"{name:<18}  {', '.join(value) or 'none' if isinstance(value, list) else value}")
    versions = {found[name] for name in _PACKAGES[:6]} - {_MISSING}
    if len(versions) > 1:
        click.echo("error: the distributions of Espalier have several versions; install them in one", err=True)
        sys.exit(1)


def report() -> dict[str, Any]:
    """Return the versions, devices and cluster in plain JSON types. No request is sent to a cluster."""
    return {
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "cpus": os.cpu_count() or 1,
        **{name: _version(name) for name in _PACKAGES},
        "devices": _devices(),
        "kubeconfig": _cluster(),
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return _MISSING


def _devices() -> list[str]:
    try:
        import torch
    except ImportError:
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _cluster() -> str:
    from espalier_core.k8s.client import NoAccessError, api_of_context

    try:
        api, namespace = api_of_context(None, None)
    except NoAccessError as error:
        return f"none: {error}"
    return f"{api.configuration.host}, namespace {namespace}"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script by which SHELL completes commands and options: `eval "$(espalier completion bash)"`."""
    from espalier_cli.main import cli

    found = get_completion_class(shell)
    assert found is not None  # noqa: S101 - click has all three
    click.echo(found(cli, {}, "espalier", "_ESPALIER_COMPLETE").source())


def complete_for_kubectl() -> None:
    """Print the completions of the last word of this process's arguments, for kubectl."""
    from espalier_cli.main import cli

    *before, last = sys.argv[1:] or [""]
    found = ShellComplete(cli, {}, "kubectl espalier", "").get_completions(before, last)
    for item in found:
        if item.type == "plain":
            print(item.value, item.help or "", sep="\t")
    print(":0" if any(item.type != "plain" for item in found) else ":4")  # with or without file names, in cobra's code
