"""Ways to a cluster that lead nowhere, each with one line and a hint; and what is imported on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from espalier_cli.main import cli
from espalier_core.k8s.access import connect
from espalier_core.k8s.errors import (
    Call,
    ClientError,
    ClusterError,
    ForbiddenError,
    InsecureError,
    NotFoundError,
    Status,
    UnreachableError,
    cluster_error,
    error_of,
)
from espalier_core.k8s.resources import JOBS, NODES, PODS, Resource

EXAMPLE = Path(__file__).parents[3] / "examples" / "digits.yaml"


def kubeconfig(path: Path, **contexts: str) -> Path:
    """Write a kubeconfig whose contexts have these namespaces; the first is the current one."""
    entries = [{"name": name, "context": {"cluster": "c", "user": "u", "namespace": n}} for name, n in contexts.items()]
    whole = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": next(iter(contexts)),
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": entries,
    }
    path.write_text(json.dumps(whole))
    return path


def test_the_context_says_the_namespace(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", here="a", there="b", nowhere="")
    found = {}
    for context in (None, "there", "nowhere"):
        with connect(path, context) as cluster:
            found[context] = cluster.namespace
    assert found == {None: "a", "there": "b", "nowhere": "default"}


def test_several_files_are_one_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = kubeconfig(tmp_path / "one", here="a"), kubeconfig(tmp_path / "two", there="b")
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, (first, tmp_path / "missing", second))))
    with connect(None, "there") as cluster:
        assert cluster.namespace == "b"


def test_without_a_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for words in (["list"], ["top"], ["explain", "a"], ["watch", "a"], ["snapshot"]):
        outcome = CliRunner().invoke(cli, words)
        assert outcome.exit_code == 2
        error, hint = outcome.stderr.splitlines()
        assert error == f"error: no kubeconfig: {tmp_path / '.kube' / 'config'} does not exist"
        assert hint.startswith("hint: --kubeconfig FILE or KUBECONFIG names one")


def test_an_unknown_context_and_those_that_are_known(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", here="a", there="b")
    outcome = CliRunner().invoke(cli, ["list", "--kubeconfig", str(path), "--context", "her"])
    assert outcome.exit_code == 2
    assert outcome.stderr.splitlines() == [f"error: {path}: there is no context 'her'", "hint: there are: here, there"]


@pytest.mark.parametrize("current", [None, "", "deleted"])
def test_a_context_that_is_named_needs_no_current_one(tmp_path: Path, current: str | None) -> None:
    path = kubeconfig(tmp_path / "config", here="a", there="b")
    whole = {**json.loads(path.read_text()), "current-context": current}
    path.write_text(json.dumps({key: value for key, value in whole.items() if value is not None}))
    with connect(path, "there") as cluster:
        assert cluster.namespace == "b"
    with pytest.raises(ClientError, match="there is no context 'her'") as caught:
        connect(path, "her")
    assert caught.value.hint == "there are: here, there"
    with pytest.raises(ClientError, match="not a usable kubeconfig"):
        connect(path, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: [",
        "[]",
        "just text",
        "{}",
        '{"contexts": null}',
        '{"current-context": "x", "contexts": [], "clusters": []}',
    ],
)
def test_a_file_that_is_no_kubeconfig(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ClientError, match="not a usable kubeconfig") as caught:
        connect(path, None)
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 2


def test_a_kubeconfig_of_other_bytes_or_with_a_damaged_certificate(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", here="a")
    whole = json.loads(path.read_text())
    whole["clusters"][0]["cluster"] = {"server": "https://127.0.0.1:9", "certificate-authority-data": "a"}
    for content in (b"\xef\xf0\x80", json.dumps(whole).encode()):
        path.write_bytes(content)
        outcome = CliRunner().invoke(cli, ["list", "--kubeconfig", str(path)])
        assert outcome.exit_code == 2
        error, hint = outcome.stderr.splitlines()
        assert error.startswith(f"error: {path}: is not a usable kubeconfig: ")
        assert hint == "hint: `kubectl config view` shows it"


def test_nobody_at_that_address_is_tried_a_few_times_only(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", here="a")
    outcome = CliRunner().invoke(cli, ["list", "--kubeconfig", str(path)])
    assert outcome.exit_code == 1
    assert outcome.stderr.splitlines()[0] == (
        "error: http://127.0.0.1:9 does not answer: "
        "Failed to establish a new connection: [Errno 111] Connection refused"
    )


def explained(code: int, body: bytes, resource: Resource = PODS, namespace: str | None = "a") -> ClusterError:
    return cluster_error(error_of(Status.of(code, body), Call("list", resource, namespace)))


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (400, b'{"message": "bad selector"}', ClusterError, "the API server refuses (400): bad selector"),
        (401, b"{}", ClusterError, "the API server rejects the credentials (401)"),
        (403, b'{"message": "no"}', ForbiddenError, "no"),
        (404, b'{"message": "not there"}', NotFoundError, "not there"),
        (503, b"not yet", ClusterError, "the API server cannot answer now (503): not yet"),
    ],
)
def test_answers_are_explained(status: int, body: bytes, kind: type, message: str) -> None:
    error = explained(status, body)
    assert type(error) is kind
    assert error.message == message


def test_no_answer_and_no_trust_are_explained() -> None:
    call = Call("list", PODS, None)
    assert "cluster running?" in str(cluster_error(UnreachableError("x does not answer: why", call)).hint)
    assert "certificate-authority" in str(cluster_error(InsecureError("x: no secure connection: why", call)).hint)


def test_a_cluster_without_espalier_is_named() -> None:
    error = explained(404, b"404 page not found\n", JOBS)
    assert "Espalier is not installed" in error.message
    assert str(error.hint).startswith("kubectl apply -f crds/adaptivetrainingjobs.espalier.dev.yaml")


@pytest.mark.parametrize(
    ("resource", "namespace", "right"),
    [
        (JOBS, "a", "list adaptivetrainingjobs.espalier.dev in namespace a"),
        (PODS, None, "list pods in all namespaces; -n NAMESPACE reads one namespace only"),
        (NODES, None, "list nodes in the cluster"),
    ],
)
def test_the_missing_right_is_named(resource: Resource, namespace: str | None, right: str) -> None:
    assert explained(403, b"{}", resource, namespace).hint == f"you need the right to {right}"


def test_the_first_error_of_several_calls_is_raised(tmp_path: Path) -> None:
    with connect(kubeconfig(tmp_path / "config", here="a"), None) as cluster:
        assert cluster.at_once(lambda: 1, lambda: 2) == [1, 2]
        with pytest.raises(ZeroDivisionError):
            cluster.at_once(lambda: 1, lambda: 1 // 0)


@pytest.mark.parametrize(
    "words",
    [["--help"], ["validate", str(EXAMPLE)], ["plan", "--snapshot", "-"], ["list", "--help"], ["watch", "--help"]],
    ids=" ".join,
)
def test_commands_that_need_neither_import_no_client_and_no_torch(words: list[str]) -> None:
    program = (
        "import sys; from espalier_cli.main import cli\n"
        f"try: cli({words!r})\n"
        "except SystemExit: pass\n"
        "found = {name.partition('.')[0] for name in sys.modules} & {'kubernetes', 'kopf', 'torch', 'aiohttp'}\n"
        "print(sorted(found), file=sys.stderr)"
    )
    snapshot = '{"version": 1, "kind": "Snapshot", "taken_at": 0}'
    done = subprocess.run([sys.executable, "-c", program], input=snapshot, capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize("name", ["list", "explain", "top", "watch", "snapshot", "plan"])
def test_help_names_the_exit_codes(name: str) -> None:
    outcome = CliRunner().invoke(cli, [name, "--help"])
    assert outcome.exit_code == 0
    assert "Exit codes: 0 " in outcome.stdout
