"""Programs under a real API server: no library, no reports, and the same life as every job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from operator_process import OperatorProcess
from operators import World

from ports import free_port

PROGRAM = {"progress": {"log": {"pattern": "step (?P<step>[0-9]+)"}}}


def pod(world: World, job: str) -> str:
    """Return the name of the leader's pod, once it runs."""
    found: str = world.until(f"{job} has a leader", lambda: next(iter(world.running(job)), None))
    return found


def make(world: World, name: str, **spec: Any) -> None:
    """Make a program whose leader the fake trainers do not play."""
    world.trainers.silent.add(name)
    world.jobs.make(name, program=PROGRAM, pod={"terminationGracePeriodSeconds": 5}, **spec)


def test_the_leader_of_a_program_posts_its_progress_and_nobody_else_does(world: World, tmp_path: Path) -> None:
    """By the variables and the token of its pod, as Kubeflow Trainer's protocol has it."""
    world.kubelet.add_node("node", 2)
    options = (f"--watch-namespaces={world.namespace}", f"--progress-url=http://127.0.0.1:{free_port()}/")
    with OperatorProcess(world.server, tmp_path, "one", *options, namespace=world.namespace):
        for name in ("program", "other"):
            world.trainers.silent.add(name)
            world.jobs.make(name, program={})
            world.until_condition(name, "Running", "True", "Running")
        leader, other = (world.pods(name)[pod(world, name)] for name in ("program", "other"))
        variables = {each["name"]: each.get("value") for each in leader["spec"]["containers"][0]["env"]}
        folder, _, file = variables["KUBEFLOW_TRAINER_SERVER_TOKEN"].rpartition("/")
        mounts = {each["mountPath"]: each["name"] for each in leader["spec"]["containers"][0]["volumeMounts"]}
        volumes = {each["name"]: each for each in leader["spec"]["volumes"]}
        projected = volumes[mounts[folder]]["projected"]["sources"][0]["serviceAccountToken"]
        assert projected["path"] == file

        def token(owner: dict[str, Any], audience: str) -> str:
            """Return what the kubelet would mount into a pod."""
            account, name = owner["spec"]["serviceAccountName"], owner["metadata"]["name"]
            return world.server.token(world.namespace, account, audience, pod=name)

        def post(body: Any, proof: str | None, url: str = variables["KUBEFLOW_TRAINER_SERVER_URL"]) -> int:
            headers = {} if proof is None else {"Authorization": f"Bearer {proof}"}
            return httpx.post(url, json=body, headers=headers, trust_env=False).status_code

        right, audience = token(leader, projected["audience"]), projected["audience"]
        metrics = [{"name": "loss", "value": "0.25"}, {"name": "current_step", "value": "30"}]
        posted = {"trainerStatus": {"progressPercentage": 40, "estimatedRemainingSeconds": 9, "metrics": metrics}}
        assert post(posted, None) == 401
        assert post(posted, "eyJ.eyJ.x") == 403
        assert post(posted, token(other, audience)) == 403
        assert post(posted, token(leader, "espalier-agent")) == 403
        assert post(posted, right, variables["KUBEFLOW_TRAINER_SERVER_URL"].replace("program", "none")) == 404
        assert post({"trainerStatus": 1}, right) == 400
        assert post({"trainerStatus": {"metrics": ["x" * 70_000]}}, right) == 413
        assert "donePercentage" not in world.jobs.status("program")["training"]
        assert post(posted, right) == 200
        world.until("its status has it", lambda: world.jobs.status("program")["training"].get("donePercentage") == 40)
        training = world.jobs.status("program")["training"]
        assert training["step"] == 30
        assert {each["name"]: each["value"] for each in training["metrics"]} == {"loss": 0.25, "remaining_seconds": 9.0}
