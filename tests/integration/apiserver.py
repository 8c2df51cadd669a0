"""A real etcd and kube-apiserver on loopback, for tests: `ApiServer`.

There is no controller manager, no scheduler and no kubelet: nothing collects garbage, makes `default`
ServiceAccounts, empties a deleted namespace or runs a pod. `ApiServer.namespace` and `fake_kubelet.FakeKubelet` do
what tests need of that.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import secrets
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from ruamel.yaml import YAML

from ports import free_port

JOBS = "/apis/espalier.dev/v1alpha1"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_START_SECONDS = 90.0
_ANSWER_SECONDS = 90.0
_END_SECONDS = 2.0
_LIBC: Any = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1

CLEARED = (
    *(f"{JOBS}/adaptivetrainingjobs", f"{JOBS}/queues"),
    *("/api/v1/pods", "/api/v1/nodes", "/api/v1/services", "/api/v1/configmaps"),
    *("/apis/rbac.authorization.k8s.io/v1/roles", "/apis/rbac.authorization.k8s.io/v1/rolebindings"),
    *("/apis/coordination.k8s.io/v1/leases", "/api/v1/serviceaccounts", "/api/v1/events", "/api/v1/resourcequotas"),
)
"""What `ApiServer.clear` deletes, outside of the server's own namespaces."""
_OWN_NAMESPACES = ("kube-system", "kube-public", "kube-node-lease", "default")


class ServerError(RuntimeError):
    """The API server or etcd did not start, or refused what it was asked for."""


class ApiServer:
    """etcd and kube-apiserver with RBAC, on ports of their own; a context manager.

    `stop` and `start` end and start the API server on the same port and data, as a restarted control plane: tokens,
    kubeconfigs and objects stay good. So do `rest`, which ends etcd, too, and `start`. `close` ends both processes,
    each by its own id.
    """

    def __init__(self, binaries: Path, directory: Path, flags: Sequence[str] = ()) -> None:
        """Start both; `directory` (empty) takes their data, certificates, logs and the kubeconfig.

        `flags`: more options of kube-apiserver.
        """
        self.binaries, self.directory, self._flags = binaries, directory, flags
        self.port, etcd_port = free_port(), free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.admin_token = secrets.token_hex(16)
        self.kubeconfig = directory / "kubeconfig"
        self._etcd_url = f"http://127.0.0.1:{etcd_port}"
        self._names = itertools.count(1)
        self._served: dict[str, str] = {}
        self._server: subprocess.Popen[bytes] | None = None
        self._etcd: subprocess.Popen[bytes] | None = None
        self._api: httpx.Client | None = None
        (directory / "tokens.csv").write_text(f'{self.admin_token},admin,admin,"system:masters"\n')
        _make_key(directory / "service-accounts.key")
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ---- running it

    def start(self) -> None:
        """Start what does not run; return when the API server is ready. `ServerError` when it is not in time."""
        if self._etcd is None:
            self._etcd = _spawn(self._etcd_command(), self.directory / "etcd.log")
        if self._server is None:
            self._server = _spawn(self._server_command(), self.directory / "apiserver.log")
        self._wait("is ready", self._is_ready)
        self.kubeconfig.write_text(self.kubeconfig_text(self.admin_token))

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> None:
        """End the API server (SIGKILL: at once); clients see refused connections until `start`."""
        if self._server is not None:
            _end(self._server, sig)
            self._server = None

    def rest(self) -> None:
        """End both processes until `start`: an idle etcd takes CPU time as well."""
        self.stop()
        if self._etcd is not None:
            _end(self._etcd, signal.SIGTERM)
            self._etcd = None

    def close(self) -> None:
        """End both processes."""
        if self._api is not None:
            self._api.close()
        self.rest()

    def _is_ready(self) -> bool:
        for process, name in ((self._etcd, "etcd"), (self._server, "apiserver")):
            if process is None or process.poll() is not None:
                raise ServerError(f"{name} ended: {self._end_of_log(name)}")
        # It makes its certificate when it first starts.
        if not self._certificate.exists():
            return False
        try:
            # Its own word comes too early: just started, it answers requests for our kinds with 429.
            return all(self.api.get(path, timeout=2).status_code == 200 for path in ("/readyz", *self._served.values()))
        except (httpx.TransportError, ssl.SSLError):
            return False

    def _wait(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                raise ServerError(f"not true after {_START_SECONDS:g} s: {what}; {self._end_of_log('apiserver')}")
            time.sleep(0.05)

    def _end_of_log(self, name: str) -> str:
        path = self.directory / f"{name}.log"
        lines = path.read_text(errors="replace").splitlines()[-8:] if path.exists() else []
        return "\n".join([f"{path} ends with", *lines])

    def _etcd_command(self) -> list[str]:
        return [
            str(self.binaries / "etcd"),
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            "--listen-peer-urls=http://127.0.0.1:0",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def _server_command(self) -> list[str]:
        key = self.directory / "service-accounts.key"
        return [
            str(self.binaries / "kube-apiserver"),
            f"--etcd-servers={self._etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={self.directory / 'certificates'}",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            # A test may bring thousands of requests in seconds; fairness between clients is not what is tested.
            "--enable-priority-and-fairness=false",
            "--shutdown-delay-duration=0s",
            "--endpoint-reconciler-type=none",
            *self._flags,
        ]

    # ---- talking to it

    @property
    def _certificate(self) -> Path:
        return self.directory / "certificates" / "apiserver.crt"

    @property
    def api(self) -> httpx.Client:
        """A client with all rights (`system:masters`) that keeps its connections; not to be closed."""
        if self._api is None:
            self._api = self.client(self.admin_token)
        return self._api

    def client(self, token: str, seconds: float = _ANSWER_SECONDS) -> httpx.Client:
        """Return a client for whoever `token` is, to be closed; requests have `seconds`."""
        return httpx.Client(timeout=seconds, **self._client_options(token))

    def async_client(self, token: str, seconds: float = _ANSWER_SECONDS) -> httpx.AsyncClient:
        """Return the same for asyncio."""
        return httpx.AsyncClient(timeout=seconds, **self._client_options(token))

    def _client_options(self, token: str) -> dict[str, Any]:
        return {
            "base_url": self.url,
            "headers": {"Authorization": f"Bearer {token}"},
            "verify": ssl.create_default_context(cafile=str(self._certificate)),
            "trust_env": False,
        }

    def token(self, namespace: str, service_account: str, *audiences: str, pod: str | None = None) -> str:
        """Return a token of the ServiceAccount, good for an hour; with `pod` as the kubelet mounts it into that."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        spec: dict[str, Any] = {"audiences": audiences} if audiences else {}
        if pod is not None:
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.request("POST", path, body)["status"]["token"])

    def kubeconfig_text(self, token: str, namespace: str = "default") -> str:
        """Return a kubeconfig (JSON, which is YAML) for whoever `token` is."""
        cluster = {"server": self.url, "certificate-authority": str(self._certificate)}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": "test", "user": {"token": token}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}],
            }
        )

    def request(self, method: str, path: str, body: Any = None, **parameters: str) -> Any:
        """Do one request as admin, return the answer's JSON; `ServerError` with its message where it is refused."""
        patch = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
        answer = self.api.request(method, path, json=body, params=parameters, headers=patch)
        if answer.is_error:
            raise ServerError(f"{method} {path}: {answer.status_code} {_message(answer)}")
        return answer.json()

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl as admin, return its stdout (with `check` off: and stderr); `ServerError` where it fails."""
        result = subprocess.run(
            [self.binaries / "kubectl", f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            env={"HOME": str(self.directory), "PATH": os.environ["PATH"]},
        )
        if check and result.returncode != 0:
            raise ServerError(f"kubectl {' '.join(arguments)}: {result.stderr.strip()}")
        return result.stdout if check else result.stdout + result.stderr

    # ---- what is in it

    def install(self, folder: Path) -> None:
        """Install the CRDs of all YAML files in `folder`, and wait until they are served."""
        for file in sorted(folder.glob("*.yaml")):
            definition = YAML(typ="safe", pure=True).load(file)
            name = definition["metadata"]["name"]
            answer = self.api.patch(
                f"{_DEFINITIONS}/{name}",
                params={"fieldManager": "test", "force": "true"},
                content=json.dumps(definition),
                headers={"Content-Type": "application/apply-patch+yaml"},
            )
            if answer.is_error:
                raise ServerError(f"{file.name}: {_message(answer)}")
            group, version = definition["spec"]["group"], definition["spec"]["versions"][0]["name"]
            self._served[name] = f"/apis/{group}/{version}/{definition['spec']['names']['plural']}"
            self._wait(f"{name} is served", self._is_ready)

    def wait_published(self, group_version: str) -> None:
        """Wait until the server's OpenAPI document has the group, which follows its objects by a moment."""
        self._wait(f"{group_version} is published", lambda: f"apis/{group_version}" in self._openapi_paths())

    def _openapi_paths(self) -> dict[str, object]:
        paths: dict[str, object] = self.request("GET", "/openapi/v3")["paths"]
        return paths

    def uninstall(self, *names: str) -> None:
        """Delete CRDs and their objects, where they are there."""
        for name in names:
            self._delete(f"{_DEFINITIONS}/{name}")
        self.wait_uninstalled(*names)

    def wait_uninstalled(self, *names: str) -> None:
        """Return once CRDs that are being deleted are gone."""
        paths = [f"{_DEFINITIONS}/{name}" for name in names]
        touches = itertools.count()

        def gone() -> bool:
            """Touch what is still there: the server retries what failed ever later, unless the definition changes."""
            left = [path for path in paths if self.api.get(path).status_code != 404]
            if left and (touch := next(touches)) % 20 == 19:
                for path in left:
                    body = {"metadata": {"annotations": {"example.com/touch": str(touch)}}}
                    self.api.patch(path, json=body, headers={"Content-Type": "application/merge-patch+json"})
            return not left

        self._wait(f"{', '.join(names)} are gone", gone)
        for name in names:
            self._served.pop(name, None)

    def namespace(self, name: str | None = None) -> str:
        """Make a namespace (a new name where none is given) with its ServiceAccount `default`; return its name."""
        name = name or f"test-{next(self._names)}"
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        self.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
        return name

    def clear(self, *paths: str) -> None:
        """Delete all of these kinds (none given: all that tests leave, `CLEARED`), at once.

        Namespaces and their ServiceAccount `default` stay.
        """
        for path in paths or CLEARED:
            for item in self.request("GET", path)["items"]:
                name, namespace = item["metadata"]["name"], item["metadata"].get("namespace")
                if namespace in _OWN_NAMESPACES and namespace != "default":
                    continue
                if (path, name) in (("/api/v1/serviceaccounts", "default"), ("/api/v1/services", "kubernetes")):
                    continue
                group, _, plural = path.rpartition("/")
                where = f"{group}/namespaces/{namespace}/{plural}" if namespace else path
                self._delete(f"{where}/{name}", gracePeriodSeconds="0")

    def _delete(self, path: str, **parameters: str) -> None:
        answer = self.api.delete(path, params=parameters)
        if answer.is_error and answer.status_code != 404:
            raise ServerError(f"{path} cannot be deleted: {_message(answer)}")


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text


def _make_key(path: Path) -> None:
    try:
        subprocess.run(["openssl", "genrsa", "-out", path, "2048"], check=True, capture_output=True, timeout=60)
    except FileNotFoundError as error:
        raise ServerError(
            "no openssl on the PATH; it makes the key that ServiceAccount tokens are signed with"
        ) from error


def _spawn(command: Iterable[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own (a Ctrl-C reaches only the tests) that ends when this one dies."""
    parent = os.getpid()

    def die_with_parent() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

    with log.open("ab") as output:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def _end(process: subprocess.Popen[bytes], sig: signal.Signals) -> None:
    """End a process; a server that waits for its clients to close their watches is told twice, then killed."""
    for each, seconds in ((sig, _END_SECONDS), (sig, _END_SECONDS), (signal.SIGKILL, _END_SECONDS)):
        if process.poll() is not None:
            return
        process.send_signal(each)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    if process.poll() is None:
        raise ServerError(f"process {process.pid} does not end")
