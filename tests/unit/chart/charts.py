"""Helm for tests: where it is, the project's chart rendered, and what can be asked of what comes out."""

from __future__ import annotations

import copy
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "espalier"
VALUES = Path(__file__).parent / "values"
SYSTEM = "espalier-system"
VERSION: str = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
KUBE_VERSION = "1.34"
IMAGES = "ghcr.io/espalier-dev/espalier"
"""Where the release workflow pushes them."""
CASES: dict[str, tuple[str, ...]] = {
    "default": (),
    **{file.stem: (file.stem,) for file in sorted(VALUES.glob("*.yaml"))},
    "full and namespaced": ("full", "namespaced"),
}
"""Files of `values/` that are rendered together, by the name of the case."""
_BUILD_SECONDS = 1800
Raw = dict[str, Any]
Right = tuple[str, str, str]
"""Group, resource and verb."""


class NoHelmError(RuntimeError):
    """There is no helm. The message says where it was looked for."""


class HelmError(RuntimeError):
    """Helm refused. The message is its own."""


def find_helm() -> Path:
    """Return helm. `NoHelmError` where there is none; in CI it is got, elsewhere nothing is built behind one's back."""
    command = [str(ROOT / "hack" / "helm"), *([] if os.environ.get("CI") else ["--there"])]
    result = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_SECONDS)
    if result.returncode != 0:
        raise NoHelmError(result.stderr)
    return Path(result.stdout.strip())


def helm_or_skip(home: Path, kubeconfig: Path | None = None) -> Helm:
    """Return helm for a fixture: in CI the test fails where there is none, elsewhere it is skipped."""
    try:
        return Helm(home, kubeconfig)
    except NoHelmError as error:
        if os.environ.get("CI"):
            pytest.fail(f"no helm to test with:\n{error}", pytrace=False)
        pytest.skip(f"no helm to test with:\n{error}")


class Helm:
    """Runs helm with settings and caches in `home`; `kubeconfig` as of a cluster."""

    def __init__(self, home: Path, kubeconfig: Path | None = None) -> None:
        """`NoHelmError` where there is no helm."""
        self._command = find_helm()
        self._rendered: dict[object, list[Raw]] = {}
        self.aside = ""
        """What it wrote to stderr last."""
        folders = {f"HELM_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            **folders,
            **({} if kubeconfig is None else {"KUBECONFIG": str(kubeconfig)}),
        }

    def __call__(self, *arguments: str, check: bool = True) -> str:
        """Run one command and return its stdout; `HelmError` where it fails (with `check` off: its stderr)."""
        result = subprocess.run(
            [self._command, *arguments], capture_output=True, text=True, timeout=120, env=self._environment
        )
        self.aside = result.stderr
        if result.returncode == 0:
            return result.stdout
        if check:
            raise HelmError(f"helm {' '.join(arguments)}: {result.stderr.strip()}")
        return result.stderr

    def render(
        self, *files: str, sets: Mapping[str, str] | None = None, release: str = "espalier", namespace: str = SYSTEM
    ) -> list[Raw]:
        """Return the chart's objects for these files of `values/` and further values; each is rendered once."""
        options = self._options(files, sets, namespace)
        key = (release, *options)
        if key not in self._rendered:
            self._rendered[key] = list(parse(self("template", release, str(CHART), *options)))
        return copy.deepcopy(self._rendered[key])

    def refuses(self, *files: str, sets: Mapping[str, str] | None = None) -> str:
        """Return what it says of values that it must not take."""
        try:
            self.render(*files, sets=sets)
        except HelmError as error:
            return str(error)
        raise AssertionError(f"helm takes {files} {sets}")

    @staticmethod
    def _options(files: Iterable[str], sets: Mapping[str, str] | None, namespace: str) -> list[str]:
        options = [f"--namespace={namespace}", f"--kube-version={KUBE_VERSION}"]
        options += [f"--values={VALUES / file}.yaml" for file in files]
        for name, value in (sets or {}).items():
            options += ["--set-json", f"{name}={value}"]
        return options


def parse(text: str) -> Iterator[Raw]:
    """Yield the objects of rendered YAML; a key that appears twice is an error."""
    for found in yaml.load_all(text, Loader=_Loader):  # in C: of the custom resource ten times as fast
        if found is not None:
            yield found


class _Loader(yaml.CSafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        if len(keys) > len(set(keys)):
            raise yaml.constructor.ConstructorError("while reading a mapping", node.start_mark, f"a key twice: {keys}")
        return super().construct_mapping(node, deep)


def of(objects: Iterable[Raw], kind: str, name: str | None = None) -> list[Raw]:
    """Return those of a kind, or with a name too."""
    return [each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"])]


def one(objects: Iterable[Raw], kind: str, name: str | None = None) -> Raw:
    """Return the only one."""
    (found,) = of(objects, kind, name)
    return found


def pod_templates(objects: Iterable[Raw]) -> Iterator[tuple[str, Raw]]:
    """Yield the pods that the objects make, by name: metadata and spec."""
    for each in objects:
        if each["kind"] == "Deployment":
            yield each["metadata"]["name"], each["spec"]["template"]
        elif each["kind"] == "Pod":
            yield each["metadata"]["name"], {"metadata": each["metadata"], "spec": each["spec"]}


def pod_of(objects: Iterable[Raw], name: str) -> Raw:
    """Return the specification of the pods of a Deployment."""
    found: Raw = one(objects, "Deployment", name)["spec"]["template"]["spec"]
    return found


def rights(rules: Iterable[Raw]) -> list[Right]:
    """Return what rules allow, one by one; what two of them allow appears twice."""
    return [
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


def bound_rights(objects: Iterable[Raw]) -> dict[str | None, list[Right]]:
    """Return by namespace (None: everywhere) what the objects allow to the accounts that they bind."""
    every = list(objects)
    found: dict[str | None, list[Right]] = {}
    for binding in (*of(every, "ClusterRoleBinding"), *of(every, "RoleBinding")):
        namespace = binding["metadata"].get("namespace")
        role = next(
            each
            for each in of(every, binding["roleRef"]["kind"], binding["roleRef"]["name"])
            if each["metadata"].get("namespace") == namespace
        )
        found.setdefault(namespace, []).extend(rights(role["rules"]))
    return found
