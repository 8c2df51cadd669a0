"""The chart as a release on a real API server, for tests: `Release`, and `Operators`, which start what it deploys.

No controllers run, so no pods start: those that the Deployments would make are sent as dry runs to a namespace with
restricted pod security.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apiserver import JOBS, ApiServer
from charts import CHART, VALUES, Helm, Raw, of, parse, pod_templates
from fake_kubelet import PATIENCE
from operator_process import OperatorProcess
from operators import World

from espalier_generate.crd import definitions
from ports import free_port

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEFINITION = f"{DEFINITIONS}/adaptivetrainingjobs.espalier.dev"
MONITORS = ("serviceMonitor", "podMonitor", "prometheusRule")
"""Values that need definitions which are not in a bare API server."""
_NUMBERS = itertools.count(1)


@contextmanager
def installable(server: ApiServer, helm: Helm, *, monitored: bool = False) -> Iterator[Release]:
    """Give a release to install; uninstalled afterwards, our definition and with it all jobs deleted."""
    release = Release(server, helm, f"system-{next(_NUMBERS)}", monitored=monitored)
    yield release
    release.uninstall()
    server.uninstall(*definitions())
    server.clear("/api/v1/nodes", "/api/v1/pods")


class Release:
    """The release `espalier` in a namespace that enforces restricted pod security."""

    def __init__(self, server: ApiServer, helm: Helm, namespace: str, *, monitored: bool = False) -> None:
        """Make the namespace. `monitored`: whether the server knows the Prometheus operator's kinds."""
        self._monitored = monitored
        self.server, self.helm, self.namespace = server, helm, namespace
        server.namespace(namespace)
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        server.request("PATCH", f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})

    def run(self, command: str, *files: str, chart: Path = CHART, flags: Sequence[str] = (), **values: Any) -> str:
        """Install or upgrade; the server may not warn of anything. `a__b` is the value `a.b`."""
        options = [*flags, *(f"--values={VALUES / file}.yaml" for file in files)]
        for name, value in values.items():
            options += ["--set-json", f"{name.replace('__', '.')}={json.dumps(value)}"]
        for name in () if self._monitored else MONITORS:
            options += ["--set", f"{name}.enabled=false"]
        said = self.helm(command, "espalier", str(chart), f"--namespace={self.namespace}", *options)
        assert "Warning" not in self.helm.aside, self.helm.aside
        if self.server.api.get(DEFINITION).is_success:
            self.wait_until_served()
        return said

    def wait_until_served(self) -> None:
        """Wait until there can be jobs; for a moment after the definition was made, requests for them are put off."""
        deadline = time.monotonic() + PATIENCE
        while (answer := self.server.api.get(f"{JOBS}/adaptivetrainingjobs")).status_code != 200:
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.05)

    def objects(self) -> list[Raw]:
        """Return what is installed, as it was rendered."""
        return list(parse(self.helm("get", "manifest", "espalier", f"--namespace={self.namespace}")))

    def there(self, objects: Iterable[Raw]) -> set[str]:
        """Return the names of those that the API server has."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        out = self.server.kubectl("get", "--filename=-", "--ignore-not-found", "--output=json", stdin=text)
        found = json.loads(out) if out.strip() else {"kind": "List", "items": []}
        return {key(each) for each in (found["items"] if found["kind"] == "List" else [found])}

    def uninstall(self) -> str:
        """Uninstall, where it is installed."""
        return self.helm("uninstall", "espalier", f"--namespace={self.namespace}", "--ignore-not-found")


class Operators:
    """Starts the installed operator's process under its own account, as its Deployment would."""

    def __init__(self, release: Release, folder: Path) -> None:
        """Take the arguments from the release, again for each process; logs lie in `folder`."""
        self._release, self._folder = release, folder
        self._numbers = itertools.count(1)
        self.posts = f"http://127.0.0.1:{free_port()}"
        """Where programs post their progress."""

    @property
    def account(self) -> str:
        """The name of the ServiceAccount."""
        return str(self._pod["serviceAccountName"])

    def process(self) -> OperatorProcess:
        """Return another one, not started."""
        server, number = self._release.server, next(self._numbers)
        config = self._folder / f"account-{number}"
        config.write_text(server.kubeconfig_text(server.token(self._release.namespace, self.account)))
        options = [*self._pod["containers"][0]["args"], f"--kubeconfig={config}"]
        # On a busy machine one that must renew its lease every few seconds ends.
        options += ["--lease-seconds=600", "--resync-seconds=5", f"--progress-url={self.posts}"]
        return OperatorProcess(server, self._folder, f"operator-{number}", *options, namespace=self._release.namespace)

    def end_lease(self) -> None:
        """Let the lease of a process that was killed be over, as it would be in the end."""
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{self._release.namespace}/leases"
        self._release.server.request("DELETE", leases)

    @property
    def _pod(self) -> Raw:
        (operator,) = of(self._release.objects(), "Deployment", "espalier-operator")
        spec: Raw = operator["spec"]["template"]["spec"]
        return spec


def until_it_lives(world: World, operator: OperatorProcess) -> None:
    """Wait until a process that was started acts."""
    world.until("it lives", lambda: (answer := operator.ask("/healthz")) and answer.status_code == 200, PATIENCE)


def key(each: Raw) -> str:
    """Return what an object is called among the others."""
    return f"{each['kind']}/{each['metadata']['name']}"


def make_job(server: ApiServer, namespace: str, name: str = "digits") -> Raw:
    """Make a job, as somebody does who has it already."""
    head = {"apiVersion": "espalier.dev/v1alpha1", "kind": "AdaptiveTrainingJob", "metadata": {"name": name}}
    path = f"{JOBS}/namespaces/{namespace}/adaptivetrainingjobs"
    made: Raw = server.request("POST", path, {**head, "spec": {"timeBudgetSeconds": 100}})
    return made


def try_pods(release: Release, objects: Iterable[Raw]) -> list[str]:
    """Send the pods that `objects` would make as dry runs; return their names."""
    tried = []
    for name, template in pod_templates(objects):
        body = {"metadata": {**template["metadata"], "name": f"{name}-try"}, "spec": template["spec"]}
        body["metadata"].pop("namespace", None)
        release.server.request("POST", f"/api/v1/namespaces/{release.namespace}/pods", body, dryRun="All")
        tried.append(name)
    return tried
