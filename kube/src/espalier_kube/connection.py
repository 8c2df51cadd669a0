"""Where the API server is and how this process proves who it is: a pod's account, or a kubeconfig."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import yaml
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config, new_client_from_config
from kubernetes.config.kube_config import KubeConfigMerger

_UNUSABLE: Final = (ConfigException, yaml.YAMLError, OSError, TypeError, AttributeError, KeyError, ValueError)
"""What the client raises at a damaged kubeconfig; `ValueError`: it is not UTF-8, or a certificate is not base64."""


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
            load_kube_config(kubeconfig, client_configuration=configuration)  # type: ignore[no-untyped-call]
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
    if not any(Path(file).expanduser().is_file() for file in files.split(os.pathsep)):
        hint = "--kubeconfig FILE or KUBECONFIG names one; whoever runs the cluster hands it out"
        raise NoAccessError(f"no kubeconfig: {files} does not exist", hint)
    configuration = Configuration()
    configuration.retries = False
    try:
        config = KubeConfigMerger(files).config  # type: ignore[no-untyped-call]
        known = {entry["name"]: entry["context"] for entry in (node.value for node in config["contexts"])}
        if context is not None and context not in known:
            known_names = ", ".join(sorted(known))
            raise NoAccessError(f"{files}: there is no context {context!r}", f"there are: {known_names}")
        make: Callable[..., ApiClient] = new_client_from_config
        api = make(files, context, client_configuration=configuration)
        chosen = known[config["current-context"] if context is None else context]
    except _UNUSABLE as error:
        reason = " ".join(str(error).split())
        raise NoAccessError(
            f"{files}: is not a usable kubeconfig: {reason}", "`kubectl config view` shows it"
        ) from error
    return api, chosen.get("namespace") or "default"
