"""Metrics over TLS of operator and agent, for scrapers that a real API server knows, with certificates that change."""

from __future__ import annotations

import os
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from apiserver import ApiServer
from operator_process import OperatorProcess

from forked import Forked
from ports import free_port
from waiting import PATIENCE, until

pytestmark = pytest.mark.slow

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = [
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
]
SCRAPE = [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]


def certify(folder: Path) -> ssl.SSLContext:
    """Put a new certificate into a folder, at once; return what trusts it alone."""
    folder.mkdir(exist_ok=True)
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=metrics"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "new.key", "-out", folder / "new.crt"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    trusting = ssl.create_default_context(cafile=folder / "new.crt")
    for kind in ("key", "crt"):
        (folder / f"new.{kind}").replace(folder / f"tls.{kind}")
    return trusting


def account(server: ApiServer, namespace: str, name: str, rules: list[dict[str, list[str]]]) -> str:
    """Make an account with these rights in the whole cluster; return a token of it."""
    server.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
    role = f"{namespace}-{name}"
    server.request("POST", f"{RBAC}/clusterroles", {"metadata": {"name": role}, "rules": rules})
    binding = {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
    server.request("POST", f"{RBAC}/clusterrolebindings", binding)
    return server.token(namespace, name)


def scraped(port: int, trusting: ssl.SSLContext, token: str | None = None) -> httpx.Response | None:
    """Return the answer to a scrape over TLS; None where nothing listens yet."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        return httpx.get(f"https://127.0.0.1:{port}/metrics", verify=trusting, headers=headers, timeout=PATIENCE)
    except httpx.ConnectError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise
        return None


@pytest.fixture(params=["operator", "agent"])
def part(request: pytest.FixtureRequest, cluster: ApiServer, tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Run it under an account that may have tokens and access reviewed; give its port of TLS, and its plain one."""
    namespace, secure, plain = cluster.namespace(), free_port(), free_port()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(cluster.kubeconfig_text(account(cluster, namespace, "reviewer", REVIEWS)))
    folder = tmp_path / "tls"
    certify(folder)
    options = [f"--metrics-tls-dir={folder}", "--metrics-authentication=TokenReview"]
    with ExitStack() as stack:
        if request.param == "operator":
            options += [f"--metrics-https=127.0.0.1:{secure}", f"--kubeconfig={kubeconfig}"]
            operator = OperatorProcess(cluster, tmp_path, "operator", *options, namespace=namespace)
            stack.enter_context(operator)
            plain = int(operator.address.rpartition(":")[2])
        else:
            environment = {key: value for key, value in os.environ.items() if key != "KUBERNETES_SERVICE_HOST"}
            environment["KUBECONFIG"] = str(kubeconfig)
            options += [f"--metrics-port={secure}", f"--port={plain}"]
            agent = Forked("espalier_agent", "serve", *options, env=environment, out=tmp_path / "out", cwd=tmp_path)
            stack.callback(agent.wait, 20)
            stack.callback(agent.kill)
        yield secure, plain


def test_who_may_get_metrics_scrapes_them_and_a_renewed_certificate_is_used(
    part: tuple[int, int], cluster: ApiServer, tmp_path: Path
) -> None:
    secure, plain = part
    namespace = cluster.namespace()
    prometheus, stranger = account(cluster, namespace, "prometheus", SCRAPE), account(cluster, namespace, "other", [])
    first = ssl.create_default_context(cafile=tmp_path / "tls" / "tls.crt")
    report: Callable[[], str] = lambda: "it does not listen"  # noqa: E731
    until(lambda: scraped(secure, first) is not None, report)

    def status(token: str | None, trusting: ssl.SSLContext = first) -> int:
        answer = scraped(secure, trusting, token)
        assert answer is not None
        return answer.status_code

    assert [status(token) for token in (None, "nonsense", stranger, prometheus)] == [401, 401, 403, 200]
    answer = scraped(secure, first, prometheus)
    assert answer is not None
    assert "# HELP espalier_" in answer.text
    assert httpx.get(f"http://127.0.0.1:{plain}/metrics").status_code == 404, "not in plain HTTP"

    second = certify(tmp_path / "tls")
    assert status(prometheus, second) == 200
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        status(prometheus, first)
    (tmp_path / "tls" / "tls.crt").write_text("no certificate")
    assert status(prometheus, second) == 200, "the old one stays"
