"""`espalier watch` against a real API server: until the job ends, over all that connections and servers do."""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from apiserver import JOBS as JOBS_PATH
from apiserver import ApiServer
from operators import Jobs
from relay import Relay

# How a job's status looks at each moment is made by the operator's own functions, as for the unit tests of the command.
sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "cli"))

from cluster_objects import Object, acted, adaptation, admitted, looked_at, report, worker

from espalier_core.k8s.client import Client, api_of_context
from espalier_core.k8s.errors import ExpiredError, Retries
from espalier_core.k8s.reflector import Change, Changed, Disconnected, Reconnected, Reflector, Rhythm
from espalier_core.k8s.resources import JOBS
from espalier_core.types.reasons import Reason
from espalier_operator.model.actions import Fail, Finish
from forked import Forked
from waiting import PATIENCE, until

pytestmark = pytest.mark.slow

HELPERS = Path(__file__).parents[1] / "helpers"


class Story:
    """A job whose status is written as an operator would."""

    def __init__(self, cluster: ApiServer) -> None:
        self.cluster = cluster
        self.jobs = Jobs(cluster, cluster.namespace())
        self.raw: Object = self.jobs.make("digits", maxReplicas=2)
        self.key = f"{self.jobs.namespace}/digits"

    def write(self, raw: Object) -> None:
        """Write its status."""
        self.raw = raw
        path = f"{self.jobs.path}/digits/status"
        self.cluster.request("PATCH", path, {"status": raw["status"]})

    def wait(self) -> None:
        """It waits for GPUs."""
        self.write(acted(self.raw, refusal=Reason.NO_FREE_GPU, at=time.time()))

    def train(self, *adaptations: object, used: float = 10.0) -> None:
        """It trains with a lent GPU."""
        now = time.time()
        if "allocation" not in self.raw.get("status", {}) or not self.raw["status"]["scheduling"].get("admittedAt"):
            self.raw = admitted(self.raw, extra=1, at=now)
        leader = worker(self.raw, "n", age=0)
        leader["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] = self.raw["metadata"][
            "creationTimestamp"
        ]
        said = report(self.raw, leader, acknowledged=2, used_seconds=used, adaptations=adaptations)
        self.write(looked_at(self.raw, [leader], said, at=now))

    def end(self, action: Finish | Fail) -> None:
        """It ends."""
        self.write(acted(self.raw, action, at=time.time()))

    def complete(self) -> None:
        """It ends well."""
        self.end(Finish(job=self.key, reason=Reason.BUDGET_EXHAUSTED))

    def tell(self, reason: str, message: str, kind: str = "Normal") -> None:
        """Make an Event about it."""
        name = f"digits.{time.monotonic_ns()}"
        about = {key: self.raw["metadata"][key] for key in ("name", "namespace", "uid")}
        body = {
            "metadata": {"name": name, "namespace": self.jobs.namespace},
            "involvedObject": {"apiVersion": self.raw["apiVersion"], "kind": self.raw["kind"], **about},
            "reason": reason,
            "message": message,
            "type": kind,
            "count": 1,
        }
        self.cluster.request("POST", f"/api/v1/namespaces/{self.jobs.namespace}/events", body)


class Watching:
    """The command in a process of its own."""

    def __init__(self, story: Story, folder: Path, *words: str, kubeconfig: Path | None = None) -> None:
        where = ["-n", story.jobs.namespace, "--kubeconfig", str(kubeconfig or story.cluster.kubeconfig)]
        self._out, self._err = folder / "out", folder / "err"
        environment = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(HELPERS)}
        self.process = Forked(
            *("espalier_command", "watch", "digits", *where, *words),
            env=environment,
            out=self._out,
            log=self._err,
            cwd=folder,
        )

    @property
    def out(self) -> list[str]:
        """The whole lines that it has printed."""
        return self._out.read_text().split("\n")[:-1]

    @property
    def err(self) -> list[str]:
        """Those that it has printed to stderr."""
        return self._err.read_text().split("\n")[:-1]

    def said(self, text: str, *, on_stderr: bool = False) -> str:
        """Return the first line with `text` once it is there."""

        def found() -> str | None:
            ended = self.process.poll() is not None
            lines = [line for line in (self.err if on_stderr else self.out) if text in line]
            assert lines or not ended, (text, self.out, self.err)
            return lines[0] if lines else None

        line: str = until(found, lambda: f"nobody says {text!r}: {self.out} {self.err}")
        return line

    def end(self) -> int:
        """Return its exit code once it has ended."""
        return self.process.wait(PATIENCE)


@pytest.fixture
def story(cluster: ApiServer) -> Story:
    return Story(cluster)


@pytest.fixture
def watch(story: Story, tmp_path: Path) -> Iterator[Callable[..., Watching]]:
    """Begin to watch the job of the story."""
    begun: list[Watching] = []

    def begin(*words: str, **options: Any) -> Watching:
        folder = tmp_path / f"watching-{len(begun)}"
        folder.mkdir()
        begun.append(Watching(story, folder, *words, **options))
        return begun[-1]

    yield begin
    for watching in begun:
        watching.process.kill()
        watching.end()


# ---- the command


def test_a_life_is_reported_line_by_line_and_ends_with_0(story: Story, watch: Callable[..., Watching]) -> None:
    story.tell("Old", "news of long ago")
    story.wait()
    watching = watch()
    assert "Pending, NoFreeGPU: no GPUs are free for it" in watching.said("NoFreeGPU")
    story.tell("NoFreeGPU", "no GPUs are free for it; a job that ends or a GPU that is added would change that")
    story.train(used=10.0)
    watching.said("GPUsGranted")
    watching.said("epoch 3, accuracy 0.810, depth 4")
    story.tell("Peculiar", "only an Event says this", kind="Warning")
    watching.said("warning: Peculiar: only an Event says this")
    story.train(adaptation(), used=30.0)
    grown = watching.said("AdaptationGrown")
    story.tell("AdaptationGrown", grown.partition("AdaptationGrown: ")[2])
    story.complete()
    assert watching.end() == 0
    assert sum("AdaptationGrown" in line for line in watching.out) == 1, "status and Event say it once"
    assert not any("long ago" in line for line in watching.out)
    assert "BudgetExhausted: its time budget is used up" in watching.out[-1]
    (verdict,) = watching.err
    assert verdict.startswith("Complete: accuracy 0.8100, depth 4, 306 parameters, grown 1 time, ")


def test_a_job_that_is_deleted_ends_with_1(story: Story, watch: Callable[..., Watching]) -> None:
    story.train()
    watching = watch()
    watching.said("Running")
    story.jobs.delete("digits")
    assert watching.end() == 1
    assert watching.err[-1] == f"error: {story.key} was deleted before it ended"


def test_an_interrupt_ends_with_130_and_says_that_the_job_goes_on(story: Story, watch: Callable[..., Watching]) -> None:
    story.train()
    watching = watch()
    watching.said("Running")
    watching.process.send_signal(signal.SIGINT)
    assert watching.end() == 130
    assert watching.err == ["interrupted; the job continues"]


def test_a_restart_of_the_api_server_is_got_over(story: Story, watch: Callable[..., Watching]) -> None:
    story.train(used=5.0)
    watching = watch()
    watching.said("Running")
    story.cluster.stop()
    watching.said("trying again for up to", on_stderr=True)  # it answers 503 while it shuts down, then not at all
    story.cluster.start()
    watching.said("the API server answers again", on_stderr=True)
    story.train(adaptation(), used=20.0)
    watching.said("AdaptationGrown")
    story.complete()
    assert watching.end() == 0


# ---- following, in this process


RHYTHM = Rhythm(patience=30.0)


class Followed:
    """What a `Reflector` gives."""

    def __init__(self, story: Story, kubeconfig: Path, rhythm: Rhythm = RHYTHM, deadline: float = 30.0) -> None:
        self.client = Client(api_of_context(kubeconfig, None)[0], Retries(deadline=deadline))
        self.told: queue.SimpleQueue[Change] = queue.SimpleQueue()
        self.reflector = Reflector(
            self.client, JOBS, story.jobs.namespace, "metadata.name=digits", self.told.put, rhythm=rhythm
        )

    def __enter__(self) -> Followed:
        self.reflector.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.reflector.stop()
        self.reflector.join(PATIENCE)
        self.client.close()

    def next(self, kind: type[Change]) -> Any:
        """Return the next change, which must be of `kind`."""
        change = self.told.get(timeout=PATIENCE)
        assert isinstance(change, kind), change
        return change

    def sees(self, count: int) -> None:
        """Return when the label `count` of the job has been told."""
        while self.next(Changed).object["metadata"].get("labels", {}).get("count") != str(count):
            pass


def label(story: Story, count: int) -> None:
    story.cluster.request("PATCH", f"{story.jobs.path}/digits", {"metadata": {"labels": {"count": str(count)}}})


def test_connections_that_are_cut_or_die_in_silence_are_made_again(story: Story, tmp_path: Path) -> None:
    rhythm = Rhythm(watch=1, silence=2.0, patience=30.0)
    with (
        Relay(story.cluster.port) as relay,
        Followed(story, relay.kubeconfig(story.cluster, tmp_path), rhythm, deadline=2.0) as followed,
    ):
        followed.next(Changed)
        relay.cut()
        label(story, 1)
        followed.sees(1)
        relay.freeze()
        followed.next(Disconnected)  # nothing tells it that the connection is dead
        relay.thaw()
        followed.next(Reconnected)
        label(story, 2)
        followed.sees(2)


def test_an_expired_version_is_listed_again(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server itself answers 410 to a version that it no longer has."""
    real, since = Client.watch, []

    def watch_from_the_beginning(self: Client, kind: Any, namespace: str, version: int, **options: Any) -> Any:
        since.append(version)
        return real(self, kind, namespace, 1 if len(since) == 1 else version, **options)

    client = Client(api_of_context(story.cluster.kubeconfig, None)[0], Retries())
    with pytest.raises(ExpiredError):
        list(client.watch(JOBS, story.jobs.namespace, 1, seconds=5, silence=10))
    client.close()
    monkeypatch.setattr(Client, "watch", watch_from_the_beginning)
    with Followed(story, story.cluster.kubeconfig) as followed:
        followed.next(Changed)
        until(lambda: len(since) == 2, "the second watch")
        label(story, 1)
        followed.sees(1)


def test_stopping_ends_a_watch_that_waits(story: Story) -> None:
    followed = Followed(story, story.cluster.kubeconfig)
    with followed:
        followed.next(Changed)
        assert story.cluster.api.get(f"{JOBS_PATH}/adaptivetrainingjobs").status_code == 200
    assert not followed.reflector.is_alive()


def test_a_reflector_that_is_stopped_while_its_watch_opens_ends(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    followed, real = Followed(story, story.cluster.kubeconfig), Client.watch

    def open_after_the_stop(self: Client, *words: Any, **options: Any) -> Any:
        opened = real(self, *words, **options)
        followed.reflector._stop.set()  # what `stop` does before it could see this watch
        return opened

    monkeypatch.setattr(Client, "watch", open_after_the_stop)
    with followed:
        followed.reflector.join(PATIENCE)
        assert not followed.reflector.is_alive()
