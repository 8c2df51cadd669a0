"""`espalier_core.client`: the same tests for jobs of a cluster, with a real API server, and for real processes here."""

from __future__ import annotations

import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apiserver import ApiServer
from fake_kubelet import FakeKubelet
from operators import Jobs, World
from trainers import Trainers

from espalier_core.client import ClientError, JobClient, NotFoundError, connect
from espalier_core.files.locks import holder
from espalier_core.types.job import AdaptiveTrainingJob
from waiting import until

pytestmark = pytest.mark.slow


def job(name: str = "steps", **spec: Any) -> dict[str, Any]:
    """Return a program of one GPU that waits for a file `NAME.go` where it was submitted."""
    command = ["sh", "-c", f"echo begun; until [ -e {name}.go ]; do sleep 0.05; done; echo ended"]
    limits = {"limits": {"nvidia.com/gpu": 1}}
    container = {"name": "trainer", "image": "any:1", "command": command, "resources": limits}
    template = {"spec": {"containers": [container]}}
    head = {"apiVersion": "espalier.dev/v1alpha1", "kind": "AdaptiveTrainingJob", "metadata": {"name": name}}
    return {**head, "spec": {"timeBudgetSeconds": 100, "program": {}, "template": template, **spec}}


class Place(ABC):
    """Where jobs run."""

    client: JobClient

    @abstractmethod
    def finish(self, name: str) -> None:
        """Let the program of a job end well."""


class Machine(Place):
    """This one."""

    def __init__(self, folder: Path) -> None:
        self.client, self.folder = connect(folder=folder / "runs", simulate=True, gpus=2), folder

    def finish(self, name: str) -> None:
        (self.folder / f"{name}.go").touch()


class OfCluster(Place):
    """An API server with an operator and a kubelet, whose pods do nothing."""

    def __init__(self, world: World, kubeconfig: Path) -> None:
        self.client, self.world = connect(namespace=world.namespace, kubeconfig=kubeconfig), world

    def finish(self, name: str) -> None:
        self.world.kubelet.end(self.world.namespace, self.world.running(name)[0], 0)


@pytest.fixture(params=["machine", "cluster"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.chdir(tmp_path)
    if request.param == "machine":
        here = Machine(tmp_path)
        yield here
        for left in here.client.jobs():
            left.delete()
        return
    cluster: ApiServer = request.getfixturevalue("cluster")
    kubelet: FakeKubelet = request.getfixturevalue("kubelet")
    kubelet.add_node("here", 2)
    with Trainers(cluster) as trainers, World(cluster, kubelet, trainers) as world:
        world.operate()
        there = OfCluster(world, cluster.kubeconfig)
        with there.client:
            yield there


def test_the_life_of_a_job(place: Place) -> None:
    made = place.client.submit(job())
    found = place.client.job("steps")
    until(lambda: found.result().phase == "Running", "it runs")
    assert found.explain().phase == "Running"
    with pytest.raises(TimeoutError, match="steps .*wait with a longer timeout"):
        found.wait(timeout=0.3)
    heard: list[str] = []
    follower = threading.Thread(target=lambda: heard.extend(event.reason for event in found.events(follow=True)))
    follower.start()
    place.finish("steps")
    result = made.wait(timeout=60)
    follower.join()
    assert (result.phase, result.reason, result.time_budget_seconds) == ("Complete", "Completed", 100)
    assert result.job.endswith("/steps")
    assert result == place.client.job("steps").result()
    until(lambda: "Completed" in {event.reason for event in made.events()}, "its end is an event")
    moments = [event.at for event in made.events()]
    assert moments == sorted(moments)
    assert "GPUsGranted" in heard
    assert {"GPUsGranted", "Completed"} <= {event.reason for event in made.events(follow=True)}, "it does not wait"
    explanation = made.explain()
    assert (explanation.phase, explanation.reason) == ("Complete", "Completed")
    assert explanation.sections[0].title == "Where it stands"
    assert str(explanation).startswith("Where it stands\n  ")
    assert [each.name for each in place.client.jobs()] == ["steps"]
    made.delete()
    with pytest.raises(NotFoundError, match="there is no job 'steps'"):
        until(lambda: place.client.job("steps") is None, "it is gone")
    assert place.client.jobs() == []


def test_a_suspended_job_goes_on(place: Place) -> None:
    made = place.client.submit(AdaptiveTrainingJob.model_validate(job()))
    until(lambda: made.result().phase == "Running", "it runs")
    made.suspend()
    until(lambda: made.result().phase in ("Suspended", "Stopped"), "it is suspended")
    made.resume()
    until(lambda: made.result().phase == "Running", "it runs again")
    place.finish("steps")
    assert made.wait(timeout=60).phase == "Complete"


def test_what_cannot_be_is_an_error_with_a_remedy(place: Place, tmp_path: Path) -> None:
    place.client.submit(job())
    with pytest.raises(ClientError, match=r"exists.*; delete it first, or give .* another name"):
        place.client.submit(job())
    with pytest.raises(NotFoundError, match="there is no job 'step' in .*; did you mean steps"):
        place.client.job("step")
    with pytest.raises(ClientError, match=r"spec.minReplicas: is 0; must be at least 1"):
        place.client.submit(job("other", minReplicas=0))
    file = tmp_path / "two.yaml"
    file.write_text("\n---\n".join(str(job(name)) for name in ("one", "two")))
    with pytest.raises(ClientError, match=r"two.yaml: holds 2 jobs \(one, two\) where one is expected"):
        place.client.submit(file)
    assert [each.name for each in place.client.jobs()] == ["steps"]


# ---- what only one place has


def test_what_a_leader_printed_is_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = Machine(tmp_path)
    made = here.client.submit(job())
    printed: list[bytes] = []
    reader = threading.Thread(target=lambda: printed.extend(made.logs(follow=True)))
    reader.start()
    here.finish("steps")
    made.wait(timeout=60)
    reader.join()
    assert b"".join(printed) == b"begun\nended\n"
    made.delete()


def test_a_run_that_was_killed_has_stopped_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = Machine(tmp_path)
    made = here.client.submit(job())
    until(lambda: made.result().phase == "Running", "it runs")
    os.kill(holder(tmp_path / "runs" / "steps") or 0, signal.SIGKILL)
    assert made.wait(timeout=60).phase == "Stopped"
    assert made.explain().phase == "Stopped"
    monkeypatch.chdir("/")  # its command is started again where it was started first
    connect(folder=tmp_path / "runs").job("steps").resume()
    until(lambda: made.result().phase == "Running", "it runs again")
    here.finish("steps")
    assert made.wait(timeout=60).phase == "Complete"


def test_options_of_run_are_checked_as_the_command_does(tmp_path: Path) -> None:
    for options, message in (
        ({"arrive": "soon"}, r"'soon' is not a change of GPUs; write MOMENT:COUNT"),
        ({"gpus": -1}, "'--gpus': -1 is not in the range"),
        ({"graphics": 1}, "No such option '--graphics'"),
    ):
        client = connect(folder=tmp_path / "runs", **options)
        with pytest.raises(ClientError, match=message):
            client.submit(job())
        assert client.jobs() == []
    with pytest.raises(ClientError, match="connect: restart: cannot be set here"):
        connect(folder=tmp_path, restart=True)
    with pytest.raises(ClientError, match="connect: folder is for this machine, and namespace for a cluster"):
        connect(folder=tmp_path, namespace="a")
    with pytest.raises(ClientError, match=r"connect: gpus: options of `espalier run` need folder"):
        connect(gpus=1)


def test_a_run_of_the_command_is_seen_but_not_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "history.jsonl").touch()
    (run,) = connect(folder=tmp_path).jobs()
    with pytest.raises(ClientError, match="was not submitted by a client .*; use the command that started it"):
        run.delete()
    assert folder.is_dir()


def test_a_job_that_is_deleted_ends_whoever_waits(cluster: ApiServer) -> None:
    namespace = cluster.namespace()
    Jobs(cluster, namespace).make("short")
    with connect(namespace=namespace, kubeconfig=cluster.kubeconfig) as client:
        waiting = client.job("short")
        deleting = threading.Timer(0.5, client.job("short").delete)
        deleting.start()
        with pytest.raises(ClientError, match="short was deleted before it ended"):
            waiting.wait(timeout=60)
        deleting.join()


def test_the_namespace_of_a_job_counts_more_than_that_of_the_client(cluster: ApiServer) -> None:
    first, second = cluster.namespace(), cluster.namespace()
    with connect(namespace=first, kubeconfig=cluster.kubeconfig) as client:
        there = {**job(), "metadata": {"name": "steps", "namespace": second}}
        client.submit(there)
        client.submit(job())
        assert [each.result().job for each in client.jobs()] == [f"{first}/steps"]
        assert client.job(f"{second}/steps").result().job == f"{second}/steps"
