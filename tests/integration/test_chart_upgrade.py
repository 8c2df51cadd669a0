"""From the previous version of the chart to this one and back: jobs train on meanwhile, and complete."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from audits import Audit
from charts import CHART, Raw, parse
from fake_kubelet import FakeKubelet
from operators import World
from releases import DEFINITION, PATIENCE, Operators, Release, until_it_lives
from trainers import Trainers

PREVIOUS = Path(__file__).parent / "data" / "espalier-0.1.0-alpha.tgz"
"""A chart of before the first release, as it was but for its version. From 0.2.0 on: that of the last release."""


def current() -> str:
    (chart,) = parse((CHART / "Chart.yaml").read_text())
    return str(chart["version"])


def version(release: Release) -> str:
    """Return the version of the chart that is installed, as helm and the definition have it."""
    (listed,) = json.loads(release.helm("list", "--output=json", f"--namespace={release.namespace}"))
    assert listed["status"] == "deployed"
    label = release.server.request("GET", DEFINITION)["metadata"]["labels"]["helm.sh/chart"]
    assert listed["chart"] == label
    return str(label).removeprefix("espalier-")


def what_stays(world: World, name: str) -> Raw:
    """Return what of a job may not change while it runs."""
    job = world.jobs.get(name)
    pods = {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in world.pods(name).values()}
    written = ("timeBudgetSeconds", "minReplicas", "maxReplicas", "template")  # defaults are those of each definition
    return {
        "uid": job["metadata"]["uid"],
        "spec": {name: job["spec"][name] for name in written},
        "started": job["status"]["startTime"],
        "allocation": job["status"]["allocation"],
        "pods": pods,
    }


def used(world: World, name: str) -> float:
    return float(world.jobs.status(name)["timeBudget"]["usedSeconds"])


def lives_through(world: World, operators: Operators, name: str, change: Callable[[], Any]) -> None:
    """Let a job run, change the release, and let the operator that is deployed then bring the job to its end."""
    with operators.process() as before:
        until_it_lives(world, before)
        world.jobs.make(name, maxReplicas=2, preemption={"cooldownSeconds": 0})
        world.until("both workers run", lambda: len(world.running(name)) == 2, PATIENCE)
        world.until_lent(name)
        world.until_condition(name, "Running", "True", "Running", PATIENCE)
        world.until("it trains", lambda: used(world, name) > 0, PATIENCE)
        stays, spent = what_stays(world, name), used(world, name)
        assert len(stays["pods"]) == 2
        change()
        assert what_stays(world, name) == stays
        # The Deployment recreates: the old one ends before the new one starts.
        assert before.end(signal.SIGTERM) == 0
    with operators.process() as after:
        until_it_lives(world, after)
        world.until("it looks after the job", lambda: used(world, name) > spent + 1, PATIENCE)
        assert what_stays(world, name) == stays, "it is not started again, nothing is taken from it"
        world.trainers.ends_when = lambda job, pods: 0 if job["metadata"]["name"] == name else None
        world.server.request("PATCH", f"{world.jobs.path}/{name}", {"metadata": {"labels": {"look": "now"}}})
        world.until("it completes", lambda: world.jobs.condition(name, "Complete")[0] == "True", PATIENCE)
        assert after.end(signal.SIGTERM) == 0
    assert world.jobs.get(name)["metadata"]["uid"] == stays["uid"]


def test_jobs_live_through_an_upgrade_and_a_rollback_and_complete(release: Release, tmp_path: Path) -> None:
    server = release.server
    with FakeKubelet(server) as kubelet, Trainers(server) as trainers:
        release.run("install", chart=PREVIOUS, operator__seconds__persist=1)
        assert version(release) == "0.1.0-alpha" != current()
        definition = server.request("GET", DEFINITION)["metadata"]["uid"]
        operators = Operators(release, tmp_path)
        with World(server, kubelet, trainers) as world:
            kubelet.add_node("node", 2)

            def upgrade() -> None:
                release.run("upgrade", flags=["--reset-then-reuse-values"])
                assert version(release) == current()
                kept = json.loads(release.helm("get", "values", "espalier", "-ojson", f"-n{release.namespace}"))
                assert kept["operator"] == {"seconds": {"persist": 1}}

            def rollback() -> None:
                release.helm("rollback", "espalier", "1", f"--namespace={release.namespace}")
                assert version(release) == "0.1.0-alpha"

            lives_through(world, operators, "first", upgrade)
            lives_through(world, operators, "second", rollback)
        forbidden = Audit(server, release.namespace, operators.account).forbidden()
        # The roles of the earlier chart know none of these; the operator runs without.
        later = ("/queues", "/resourcequotas", "/limitranges", "/persistentvolumeclaims", "/persistentvolumes")
        assert [each for each in forbidden if not any(kind in each for kind in later)] == []
        jobs = {each["metadata"]["uid"] for each in server.request("GET", world.jobs.path)["items"]}
        assert len(jobs) == 2
        release.uninstall()
        assert server.request("GET", DEFINITION)["metadata"]["uid"] == definition, "never made again"
        assert {each["metadata"]["uid"] for each in server.request("GET", world.jobs.path)["items"]} == jobs
