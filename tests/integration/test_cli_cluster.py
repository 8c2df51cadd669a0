"""`espalier list`, `explain`, `top`, `snapshot` and `plan` against a real API server with a real operator."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from apiserver import JOBS, ApiServer
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result
from fake_kubelet import FakeKubelet
from operators import InProcess, Jobs, make_extra_class
from ruamel.yaml import YAML
from trainers import Trainers

from espalier_cli.main import cli
from espalier_operator.model import JobFacts, Snapshot
from espalier_operator.planner import plan
from espalier_operator.policies.fair import FairPolicy

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class World:
    """A cluster in which an operator looks after jobs: `lucky` trains with a lent GPU, `waits` and `giant` wait."""

    def __init__(self, cluster: ApiServer, kubelet: FakeKubelet, operator: InProcess) -> None:
        self.cluster, self.kubelet, self.operator = cluster, kubelet, operator
        self.namespace = cluster.namespace()
        self.jobs = Jobs(cluster, self.namespace)

    def run(self, *words: str, kubeconfig: Path | None = None) -> Result:
        return espalier(kubeconfig or self.cluster.kubeconfig, *words)

    def settle(self) -> None:
        """Return when all that is to happen has."""
        self.kubelet.wait_for(
            "lucky has a lent GPU, waits and giant know why they wait",
            lambda: (
                self.jobs.condition("lucky", "ExtraGPUsGranted") == ("True", "ExtraGPUsGranted")
                and self.jobs.condition("lucky", "Running") == ("True", "Running")
                and self.jobs.condition("waits", "Admitted") == ("False", "NoFreeGPU")
                and self.jobs.condition("giant", "Admitted") == ("False", "TooLarge")
            ),
        )
        self.kubelet.wait_running(self.namespace, "lucky-extra-0-2")


def espalier(kubeconfig: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "--kubeconfig", str(kubeconfig)])


def limited(cluster: ApiServer, namespace: str, directory: Path, *rules: tuple[str, str, str]) -> Path:
    """Return a kubeconfig for a ServiceAccount that may do `rules` (group, resources, verbs) in `namespace` only."""
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    granted = [
        {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}
        for group, resources, verbs in rules
    ]
    cluster.request("POST", f"{rbac}/roles", {"metadata": {"name": "person"}, "rules": granted})
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "person"}
    binding = {"metadata": {"name": "person"}, "subjects": [subject], "roleRef": role}
    cluster.request("POST", f"{rbac}/rolebindings", binding)
    path = directory / "person.kubeconfig"
    path.write_text(cluster.kubeconfig_text(cluster.token(namespace, "default"), namespace))
    return path


@pytest.fixture
def world(cluster: ApiServer, kubelet: FakeKubelet) -> Iterator[World]:
    """Give it, settled."""
    make_extra_class(cluster)
    kubelet.add_node("here", 2, gpu_type="x")
    kubelet.add_node("closed", 4, gpu_type="x")
    kubelet.cordon("closed")
    with Trainers(cluster), InProcess(cluster) as operator:
        world = World(cluster, kubelet, operator)
        world.jobs.make("lucky", maxReplicas=2, preemption={"cooldownSeconds": 0}, queue="research")
        kubelet.wait_running(world.namespace, "lucky-extra-0-2")
        world.jobs.make("waits", minReplicas=2, maxReplicas=2)
        world.jobs.make("giant", gpus=3)
        world.settle()
        yield world


# ---- what they say


def test_list_says_where_each_job_stands_and_why(world: World) -> None:
    world.jobs.make("asleep", suspend=True)
    asleep = ("False", "Suspended")
    world.kubelet.wait_for("asleep is seen", lambda: world.jobs.condition("asleep", "Admitted") == asleep)
    shown = world.run("list", "-n", world.namespace)
    assert shown.exit_code == 0, shown.stderr
    heading, *rows = [line.split() for line in shown.stdout.splitlines()]
    assert heading == ["NAME", "PHASE", "GPUS", "EXTRA", "DEPTH", "ADAPTATIONS", "BUDGET-LEFT", "AGE", "REASON"]
    found = {row[0]: row for row in rows}
    assert list(found) == ["asleep", "giant", "lucky", "waits"]
    assert (found["asleep"][1], found["asleep"][-1]) == ("Suspended", "Suspended")
    assert (found["giant"][1], found["giant"][-1]) == ("Pending", "TooLarge")
    told = {entry["name"]: entry for entry in json.loads(world.run("list", "-A", "-o", "json").stdout)}
    assert told["lucky"]["gpus"] == world.jobs.status("lucky")["allocation"]["gpus"]
    assert told["waits"]["admitted"] is False
    assert YAML(typ="safe").load(world.run("list", "-A", "-o", "yaml").stdout)[0]["namespace"] == world.namespace
    wide = world.run("list", "-A", "-o", "wide").stdout
    assert wide.splitlines()[0].startswith("NAMESPACE")
    assert " research " in wide


def test_the_snapshot_is_what_the_operator_plans_by(world: World, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"

    def same() -> bool:
        world.operator.wake()
        made = world.run("snapshot", "--output", str(path))
        assert made.exit_code == 0, made.stderr
        return _timeless(Snapshot.from_json(path.read_text())) == _timeless(world.operator.snapshot)

    world.kubelet.wait_for("the file holds what the operator saw", same)
    seen = Snapshot.from_json(path.read_text())
    assert Snapshot.from_json(seen.to_json()) == seen
    assert {facts.key.partition("/")[2] for facts in seen.jobs} == {"lucky", "waits", "giant"}
    made = plan(seen, FairPolicy(), seen.taken_at)
    for name in ("waits", "giant"):  # the operator came to the same
        refused = made.refusals[f"{world.namespace}/{name}"].reason
        assert world.jobs.condition(name, "Admitted") == ("False", refused)


def test_a_job_is_suspended_and_resumed(cluster: ApiServer) -> None:
    namespace = cluster.namespace()
    jobs = Jobs(cluster, namespace)
    jobs.make("pauses")
    for command, wanted in (("suspend", True), ("resume", False)):
        done = espalier(cluster.kubeconfig, command, f"{namespace}/pauses")
        assert (done.exit_code, done.stdout) == (0, ""), done.stderr
        assert jobs.get("pauses")["spec"].get("suspend", False) is wanted
        missing = espalier(cluster.kubeconfig, command, "-n", namespace, "pause")
        assert missing.exit_code == 2
        assert "hint: did you mean pauses?" in missing.stderr
    assert "has no pods now" in espalier(cluster.kubeconfig, "logs", f"{namespace}/pauses").stderr


def test_jobs_are_submitted_completed_by_name_and_deleted(cluster: ApiServer, tmp_path: Path) -> None:
    namespace = cluster.namespace()
    file = tmp_path / "jobs.yaml"
    file.write_text((PROJECT / "examples" / "digits.yaml").read_text())
    made = espalier(cluster.kubeconfig, "submit", str(file), "-n", namespace)
    assert (made.exit_code, made.stdout) == (0, f"{namespace}/digits\n"), made.stderr
    assert "delete it first" in espalier(cluster.kubeconfig, "submit", str(file), "-n", namespace).stderr
    given = ["explain", "--kubeconfig", str(cluster.kubeconfig), "-n", namespace]
    found = ShellComplete(cli, {}, "espalier", "").get_completions(given, "dig")
    assert [item.value for item in found] == ["digits"]
    assert ShellComplete(cli, {}, "espalier", "").get_completions(["explain", "--kubeconfig", str(file)], "dig") == []
    done = espalier(cluster.kubeconfig, "delete", "digits", "-n", namespace)
    assert (done.exit_code, done.stderr) == (0, f"{namespace}/digits is deleted\n")
    assert espalier(cluster.kubeconfig, "delete", "digits", "-n", namespace).exit_code == 2
    file.write_text("kind: AdaptiveTrainingJob\n")
    invalid = espalier(cluster.kubeconfig, "submit", str(file), "-n", namespace)
    assert invalid.exit_code == 2
    assert "apiVersion" in invalid.stderr


@pytest.mark.parametrize("form", ["table", "json"])
def test_list_goes_on_with_what_changes(cluster: ApiServer, form: str) -> None:
    namespace = cluster.namespace()
    jobs = Jobs(cluster, namespace)
    jobs.make("first")
    words = [sys.executable, "-m", "espalier_cli", "list", "-n", namespace, "--watch", "-o", form]
    process = subprocess.Popen(
        [*words, "--kubeconfig", str(cluster.kubeconfig)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None

    def shown() -> tuple[str, str]:
        assert process.stdout is not None
        line = process.stdout.readline()
        cells = line.split()
        return (cells[1], cells[2]) if form == "table" else (json.loads(line)["name"], json.loads(line)["phase"])

    if form == "table":
        assert shown() == ("NAME", "PHASE")
    assert shown() == ("first", "Pending")
    jobs.make("second")
    assert shown() == ("second", "Pending")
    jobs.delete("first")
    assert shown() == ("first", "Deleted")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "interrupted\n")


# ---- who may not see everything, and what goes wrong


def test_explain_for_who_may_see_one_namespace_only(world: World, tmp_path: Path) -> None:
    rules = {"espalier.dev": "adaptivetrainingjobs", "": "configmaps pods events"}
    granted = [(group, resources, "get list watch") for group, resources in rules.items()]
    person = limited(world.cluster, world.namespace, tmp_path, *granted)
    shown = espalier(person, "explain", "lucky")
    assert shown.exit_code == 0, shown.stderr
    assert "acknowledged by its leader." in shown.stdout
    assert "The cluster's GPUs could not be read: you need the right to list " in shown.stdout
    assert espalier(person, "list").exit_code == 0


def test_a_missing_right_is_named(cluster: ApiServer, tmp_path: Path) -> None:
    namespace = cluster.namespace()
    person = limited(cluster, namespace, tmp_path, ("espalier.dev", "adaptivetrainingjobs", "get list"))
    everywhere = espalier(person, "list", "-A")
    assert everywhere.exit_code == 1
    error, hint = everywhere.stderr.splitlines()
    assert "is forbidden" in error
    assert hint == (
        "hint: you need the right to list adaptivetrainingjobs.espalier.dev in all namespaces; "
        "-n NAMESPACE reads one namespace only"
    )
    top = espalier(person, "top")
    assert top.exit_code == 1
    assert "hint: you need the right to list " in top.stderr


def test_a_cluster_without_espalier(cluster: ApiServer) -> None:
    cluster.request("DELETE", f"{CRDS}/adaptivetrainingjobs.espalier.dev")
    try:
        deadline = time.monotonic() + 30
        while cluster.api.get(f"{JOBS}/adaptivetrainingjobs").status_code != 404:
            assert time.monotonic() < deadline, "the kind is served though it was deleted"
            time.sleep(0.05)
        for words in (["list"], ["explain", "a"], ["watch", "a"], ["top"], ["snapshot"]):
            shown = espalier(cluster.kubeconfig, *words)
            assert shown.exit_code == 1, words
            error, hint = shown.stderr.splitlines()
            assert error.endswith("Espalier is not installed in it")
            assert hint.startswith("hint: kubectl apply -f crds/adaptivetrainingjobs.espalier.dev.yaml")
    finally:
        cluster.install(PROJECT / "crds")


def test_a_job_that_is_not_there_and_the_nearest_that_is(cluster: ApiServer) -> None:
    here, there = Jobs(cluster, cluster.namespace()), Jobs(cluster, cluster.namespace())
    here.make("digits")
    there.make("elsewhere")
    for command in ("explain", "watch"):
        near = espalier(cluster.kubeconfig, command, "digit", "-n", here.namespace)
        assert near.exit_code == 2
        assert near.stderr.splitlines() == [
            f"error: there is no job 'digit' in namespace {here.namespace}",
            "hint: did you mean digits?",
        ]
        other = espalier(cluster.kubeconfig, command, "elsewhere", "-n", here.namespace)
        assert (
            other.stderr.splitlines()[1] == f"hint: there is one in namespace {there.namespace}: -n {there.namespace}"
        )
        none = espalier(cluster.kubeconfig, command, "zebra", "-n", here.namespace)
        assert none.stderr.splitlines()[1] == "hint: there are: digits"


def test_a_job_nested_thousands_deep_keeps_nothing_from_being_read(cluster: ApiServer) -> None:
    namespace = cluster.namespace()
    jobs = Jobs(cluster, namespace)
    jobs.make("plain")
    model = {"entrypoint": "my.models:build", "options": {"a": "HERE"}}
    head = {"apiVersion": "espalier.dev/v1alpha1", "kind": "AdaptiveTrainingJob", "metadata": {"name": "deep"}}
    document = {**head, "spec": {**jobs.get("plain")["spec"], "training": {"model": model}}}
    text = json.dumps(document).replace('"HERE"', '{"a": ' * 5000 + "1" + "}" * 5000)
    made = cluster.api.post(jobs.path, content=text, headers={"Content-Type": "application/json"})
    assert made.status_code == 201, made.text
    where = ["-n", namespace]
    commands = [["list", *where], ["top"], ["snapshot", *where], ["explain", "plain", *where]]
    # A process of its own: how deep Python may nest is a setting of the process.
    code = f"""
import sys
from espalier_cli.main import main
for words in {commands}:
    sys.argv[1:] = [*words, "--kubeconfig", {str(cluster.kubeconfig)!r}]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, (words, ended.code)
"""
    try:
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    finally:
        cluster.api.delete(f"{jobs.path}/deep")
    assert ended.returncode == 0, ended.stderr[-2000:]


def test_a_certificate_of_somebody_else(cluster: ApiServer, tmp_path: Path) -> None:
    whole = json.loads(cluster.kubeconfig.read_text())
    del whole["clusters"][0]["cluster"]["certificate-authority"]
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(whole))
    shown = espalier(path, "list")
    assert shown.exit_code == 1
    assert "no secure connection" in shown.stderr.splitlines()[0]


def _timeless(snapshot: Snapshot) -> tuple[object, ...]:
    """Return the snapshot without what a moment more changes, without the order of lists, exact to the millisecond."""

    def still(facts: JobFacts) -> JobFacts:
        times = {name: getattr(facts, name) for name in ("admitted_at", "granted_at", "changed_at")}
        rounded = {name: None if time is None else round(time, 3) for name, time in times.items()}
        return replace(facts, used_seconds=0.0, gpu_seconds_used=0.0, counted_until=None, **rounded)

    return (
        set(snapshot.nodes),
        set(snapshot.workers),
        [promise.job for promise in snapshot.promises],
        sorted((still(facts) for facts in snapshot.jobs), key=lambda facts: facts.key),
        snapshot.rules,
    )
