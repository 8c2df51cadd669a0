"""Where the API server is and how this process proves who it is: a pod's account, or a kubeconfig."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Final

import yaml
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import ConfigException, load_incluster_config
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

_UNUSABLE: Final = (ConfigException, yaml.YAMLError, OSError, TypeError, AttributeError, KeyError, ValueError)
"""What the client raises at a damaged kubeconfig; `ValueError`: it is not UTF-8, or a certificate is not base64."""
_TOKEN_SECONDS: Final = 60.0
"""How long a token that was read of a file is used before the file is read again, as the client does in a pod."""


class NoAccessError(Exception):
    """There is no API server that this process could ask: what is missing, and what helps."""

    def __init__(self, message: str, hint: str = "") -> None:
        """Keep both."""
        super().__init__(message)
        self.hint = hint


def api_of_process(user_agent: str) -> ApiClient:
    """Return the API server of the cluster that this pod runs in, or that `KUBECONFIG` names outside of one.

    Nothing is asked of it yet. Raises `NoAccessError`.
    """
    configuration = Configuration()
    configuration.retries = False  # whoever asks decides how often and when
    configuration.keep_alive = True
    try:
        if os.environ.get("KUBERNETES_SERVICE_HOST"):
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            configuration.proxy = None  # a proxy of the environment is for the world outside
        elif kubeconfig := os.environ.get("KUBECONFIG"):
            _use(_merged(kubeconfig), None, configuration)
        else:
            raise NoAccessError("neither KUBERNETES_SERVICE_HOST nor KUBECONFIG is set")
    except _UNUSABLE as error:
        raise NoAccessError(" ".join(str(error).split())) from error
    api = ApiClient(configuration)
    api.user_agent = user_agent
    return api


def api_of_context(kubeconfig: Path | None, context: str | None) -> tuple[ApiClient, str]:
    """Return the API server of a `context` (default: the current one) and the namespace that the context names.

    `kubeconfig` is found as kubectl finds it where it is None. Nothing is asked of it yet. Raises `NoAccessError`.
    """
    files = str(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    configuration = Configuration()
    configuration.retries = False
    try:
        merged = _merged(files)
        known = [node["name"] for node in merged.config["contexts"]]
        if context is not None and context not in known:
            raise NoAccessError(f"{files}: there is no context {context!r}", f"there are: {', '.join(sorted(known))}")
        chosen = _use(merged, context, configuration)
        api = ApiClient(configuration)
    except _UNUSABLE as error:
        reason = " ".join(str(error).split())
        raise NoAccessError(
            f"{files}: is not a usable kubeconfig: {reason}", "`kubectl config view` shows it"
        ) from error
    return api, chosen.get("namespace") or "default"


def _merged(files: str) -> KubeConfigMerger:
    """Read the kubeconfigs that `files` names as one. `NoAccessError` where none is there."""
    if not any(Path(file).expanduser().is_file() for file in files.split(os.pathsep)):
        hint = "--kubeconfig FILE or KUBECONFIG names one; whoever runs the cluster hands it out"
        raise NoAccessError(f"no kubeconfig: {files} does not exist", hint)
    return KubeConfigMerger(files)  # type: ignore[no-untyped-call]


def _use(merged: KubeConfigMerger, context: str | None, configuration: Configuration) -> dict[str, Any]:
    """Fill `configuration` as a context (default: the current one) says, and return the context."""
    loader = KubeConfigLoader(  # type: ignore[no-untyped-call]
        merged.config, active_context=context, config_base_path=None, config_persister=merged.save_changes
    )
    _load(loader, configuration)
    chosen: dict[str, Any] = loader.current_context["context"]
    user = merged.config["users"].get_with_name(chosen.get("user"), safe=True)
    if user is not None and "tokenFile" in user["user"]:
        _read_again(loader, configuration)
    return chosen


def _load(loader: KubeConfigLoader, configuration: Configuration) -> None:
    """Fill `configuration`. Files of tokens may end in a newline, which headers may not have."""
    loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
    for name, value in configuration.api_key.items():
        configuration.api_key[name] = value.strip()


def _read_again(loader: KubeConfigLoader, configuration: Configuration) -> None:
    """Have the file of a token read again before a request: it is replaced before the token expires, and the client
    reads it once. While it cannot be read, the token that was read before is used.
    """
    due = time.monotonic() + _TOKEN_SECONDS

    def refresh(configuration: Configuration) -> None:
        nonlocal due
        if time.monotonic() >= due:
            with contextlib.suppress(*_UNUSABLE):
                _load(loader, configuration)
            configuration.refresh_api_key_hook = refresh  # type: ignore[assignment]  # the loader has set its own
            due = time.monotonic() + _TOKEN_SECONDS

    configuration.refresh_api_key_hook = refresh  # type: ignore[assignment]
