"""Programs that know nothing of Espalier: they are budgeted, stopped and resumed, and their progress is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube import ClusterError, Nodes, Space, get_raw, host_folder, kubectl, shared_folder, wait_for

EXAMPLES = Path(__file__).parents[3] / "examples"
PATCH = ("--type=merge", "--patch")
SERVER = """
import http.server, json, os, urllib.request
posted = {"trainerStatus": {"metrics": [{"name": "posted", "value": "7"}]}}
proof = {"Authorization": "Bearer " + open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read()}
url = os.environ["KUBEFLOW_TRAINER_SERVER_URL"]
urllib.request.urlopen(urllib.request.Request(url, json.dumps(posted).encode(), proof), timeout=20).read()
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'steps_done 10\\nloss{split="test"} 0.5\\n')
http.server.HTTPServer(("", 8000), Page).serve_forever()
"""
pytestmark = pytest.mark.without("agent")


def example(name: str, space: Space, called: str = "", **spec: Any) -> dict[str, Any]:
    """Return the job of an example with its checkpoints in the shared folder."""
    job: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    job["metadata"]["name"] = called or name
    pod = job["spec"]["template"]["spec"]
    pod["volumes"] = [host_folder(space)]
    mount = {"name": "shared", "mountPath": "/checkpoints", "subPath": called or name}
    pod["containers"][0]["volumeMounts"] = [mount]
    job["spec"] |= spec
    return job


def log(space: Space, pod: str) -> str:
    """Return what a pod has written."""
    return get_raw(f"/api/v1/namespaces/{space.name}/pods/{pod}/log")


def training(space: Space, job: str) -> dict[str, Any]:
    """Return what the status says of the progress of a job."""
    found: dict[str, Any] = space.status(job).get("training", {})
    return found


def test_programs_are_budgeted_stopped_and_resumed(space: Space, nodes: Nodes) -> None:
    """A shell script is suspended and resumed; a PyTorch script runs to its end beside it.

    Then the end of a budget is SIGTERM, and a program that waits for the GPU follows. It may say in its metrics how far
    it is, and post that; and it has no rights at the API server.
    """
    nodes.set_gpus(2)
    shared_folder(space, nodes.names[0])
    shell = example("program-shell", space)
    script = shell["spec"]["template"]["spec"]["containers"][0]["args"]
    script[0] = script[0].replace("sleep 0.5", "sleep 1")  # so that there is time to stop it, and to see it run again
    space.apply(example("program-pytorch", space), shell)
    wait_for("its progress is read", lambda: training(space, "program-shell").get("donePercentage"))
    kubectl("patch", "atj", "program-shell", *PATCH, '{"spec": {"suspend": true}}', "--namespace", space.name)
    space.wait_condition("program-shell", "Suspended")
    stopped = wait_for("the pod has ended", lambda: not space.leader("program-shell") and space.status("program-shell"))
    assert stopped["scheduling"]["failures"] == 0
    used, done = stopped["timeBudget"]["usedSeconds"], stopped["training"]["step"]
    assert 0 < done < 20
    kubectl("patch", "atj", "program-shell", *PATCH, '{"spec": {"suspend": false}}', "--namespace", space.name)
    leader = wait_for("it runs again", lambda: space.leader("program-shell"))["metadata"]["name"]
    first = wait_for("it says where it starts", lambda: log(space, leader)).splitlines()[0]
    assert int(first.removeprefix("starting after step ")) >= done
    assert space.wait_condition("program-shell", "Complete")["reason"] == "Completed"
    status = space.status("program-shell")
    assert (status["training"]["step"], status["training"]["donePercentage"]) == (20, 100)
    assert status["training"]["metrics"] == [{"name": "loss", "value": 0.2}]
    assert used < status["timeBudget"]["usedSeconds"] < 60
    assert space.wait_condition("program-pytorch", "Complete")["reason"] == "Completed"
    trained = training(space, "program-pytorch")
    assert (trained["step"], trained["donePercentage"]) == (800, 100)
    figures = {entry["name"]: entry["value"] for entry in trained["metrics"]}
    assert figures["accuracy"] > 0.9

    nodes.set_gpus(1)
    space.apply(example("program-shell", space, "brief", timeBudgetSeconds=6))
    pages = example("program-pytorch", space, "pages")
    container = pages["spec"]["template"]["spec"]["containers"][0]
    container["command"], container["args"] = ["python", "-c", SERVER], []
    pages["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1  # it ignores SIGTERM
    pages["spec"]["program"]["progress"] = {
        "metrics": {"port": 8000, "series": {"step": "steps_done", "loss": 'loss{split="test"}'}},
        "steps": 40,
    }
    assert space.wait_condition("brief", "Running")
    space.apply(pages)
    assert space.wait_condition("brief", "Complete")["reason"] == "BudgetExhausted"
    assert space.status("brief")["scheduling"]["failures"] == 0
    told = [{"name": "posted", "value": 7}, {"name": "loss", "value": 0.5}]
    wait_for("its post and its metrics are read", lambda: training(space, "pages").get("metrics") == told)
    assert training(space, "pages")["donePercentage"] == 25
    pod = space.leader("pages")
    assert pod is not None
    tokens = [volume for volume in pod["spec"]["volumes"] if "serviceAccountToken" in json.dumps(volume)]
    assert all('"audience": "espalier-progress/' in json.dumps(volume) for volume in tokens), (
        "the API server takes none"
    )
    with pytest.raises(ClusterError, match="404"):
        space.report("pages")
