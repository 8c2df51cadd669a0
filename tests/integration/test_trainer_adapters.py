"""The trainer against a real API server: it hears its allocation, it reports, whatever happens in between."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from apiserver import JOBS, ApiServer
from relay import Relay

from espalier_core.files.documents import loads, write_document
from espalier_core.k8s.client import Client
from espalier_core.types import environment
from espalier_core.types.allocation import Allocation, AllocationDocument, Direction
from espalier_core.types.job import ALLOCATION_ANNOTATION, JOB_ANNOTATION, REPORT_KEY, AdaptiveTrainingJob
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report, TrainerPhase
from espalier_core.types.status import JobStatus
from espalier_core.validation.reading import load_job
from espalier_operator.kube.objects import manifests as objects
from espalier_operator.kube.objects import worker_pod
from espalier_operator.kube.objects.jobs import KubeJob, parse_job
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import WorkerRole
from espalier_trainer import kube
from espalier_trainer.signals.report import EventLog
from espalier_trainer.signals.scheduler import AllocationFileSource, DocumentScheduler
from forked import Forked
from waiting import PATIENCE, until

PROJECT = Path(__file__).parents[2]


@dataclass
class Place:
    """A job in a namespace of its own, with what the operator would make for its leader."""

    cluster: ApiServer
    folder: Path
    namespace: str
    job: KubeJob
    generation: int = 0
    _status: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"{JOBS}/namespaces/{self.namespace}/adaptivetrainingjobs/{self.job.name}"

    @property
    def config_map(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/configmaps/{self.job.name}-report"

    def status(self, **changes: Any) -> None:
        """Patch the job's status, as the operator does."""
        self._status |= changes
        self.cluster.request("PATCH", f"{self.path}/status", {"status": changes})

    def allocate(self, replicas: int, reason: str = "") -> int:
        """Grant `replicas` and return the generation of the allocation."""
        self.generation += 1
        allocation = {"generation": self.generation, "replicas": replicas, "gpus": replicas, "reason": reason}
        self.status(allocation=allocation, timeBudget={"usedSeconds": 0.5, "remainingSeconds": 9, "gpuSecondsUsed": 1})
        return self.generation

    def report(self) -> Report | None:
        text = (self.cluster.request("GET", self.config_map).get("data") or {}).get(REPORT_KEY)
        return None if text is None else loads(text, Report, "the ConfigMap")

    def make_objects(self) -> None:
        """Make the job's objects, but no pod."""
        kinds = {"Service": "services", "ConfigMap": "configmaps", "ServiceAccount": "serviceaccounts"}
        kinds |= {"Role": "roles", "RoleBinding": "rolebindings"}
        for body in objects.owned_objects(self.job):
            version = body["apiVersion"]
            group = f"/api/{version}" if version == "v1" else f"/apis/{version}"
            self.cluster.request("POST", f"{group}/namespaces/{self.namespace}/{kinds[body['kind']]}", body)

    def kubeconfig(self, account: str, port: int | None = None) -> Path:
        """Write the kubeconfig of a ServiceAccount, by way of `port`."""
        text = self.cluster.kubeconfig_text(self.cluster.token(self.namespace, account))
        if port is not None:
            text = text.replace(self.cluster.url, f"https://127.0.0.1:{port}")
        path = self.folder / f"kubeconfig-{account}"
        path.write_text(text)
        return path


@pytest.fixture
def place(cluster: ApiServer, tmp_path: Path) -> Callable[..., Place]:
    """Make jobs; `spec` goes over the digits example's."""

    def make(**spec: Any) -> Place:
        body = load_job(PROJECT / "examples" / "digits.yaml").to_json()
        namespace = cluster.namespace()
        body["metadata"] = {"name": "digits", "namespace": namespace}
        body["spec"] |= spec  # type: ignore[operator]
        raw = cluster.request("POST", f"{JOBS}/namespaces/{namespace}/adaptivetrainingjobs", body)
        job = parse_job(raw, KubeSettings())
        assert isinstance(job, KubeJob), job
        made = Place(cluster, tmp_path, namespace, job)
        made.make_objects()
        return made

    return make


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], Client]]:
    """Connect as the kubeconfig says."""
    opened: list[Client] = []

    def open_(kubeconfig: Path) -> Client:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        opened.append(kube.connect())
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


@pytest.fixture
def listen() -> Iterator[Callable[..., DocumentScheduler]]:
    """Watch a job, with a file as the second source."""
    started: list[kube.JobWatch] = []

    def start(api: Client, job: AdaptiveTrainingJob, file: Path | None = None) -> DocumentScheduler:
        watch = kube.JobWatch(api, job)
        started.append(watch)
        watch.start()
        files = () if file is None else (AllocationFileSource(file, job),)
        return DocumentScheduler((watch, *files), job)

    yield start
    for watch in started:
        watch.close()
        until(lambda: not watch.running, "the end of the watch's thread")  # noqa: B023


@pytest.fixture
def relay(cluster: ApiServer) -> Iterator[Relay]:
    with Relay(cluster.port) as relay:
        yield relay


def with_uid(job: AdaptiveTrainingJob, uid: str) -> AdaptiveTrainingJob:
    """Return the job as a job file has it that says the UID."""
    body = job.to_json()
    return AdaptiveTrainingJob.model_validate({**body, "metadata": {**body["metadata"], "uid": uid}})  # type: ignore[dict-item]


def document(job: KubeJob, generation: int, replicas: int, stop: Reason | None = None) -> AllocationDocument:
    """Return what the annotation would say."""
    scheduler = DocumentScheduler((), job.job)
    base = AllocationDocument(
        job=job.key,
        allocation=Allocation(generation=generation, replicas=replicas),
        time_budget={"budget_seconds": scheduler.time_budget()},
    )
    return base.model_copy(update={"stop": stop})


def calls_of(api: Client, name: str) -> list[tuple[Any, ...]]:
    """Return the arguments of the calls of one method of `api`, as they come."""
    calls: list[tuple[Any, ...]] = []
    real = getattr(api, name)

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return real(*arguments, **options)

    setattr(api, name, call)
    return calls


def test_every_allocation_is_heard(place, connect, listen) -> None:
    """Every patch of the status reaches the training loop, which does no more than read."""
    here = place()
    here.allocate(1)
    scheduler = listen(connect(here.kubeconfig("digits-trainer")), here.job.job)
    scheduler.start(0.0)
    assert scheduler.allocation().generation == 1, "the first state is there before the budget runs"
    assert scheduler.used_seconds() >= 0.5
    for count in range(30):
        generation = here.allocate(1 + count % 2)
        until(lambda: scheduler.allocation().generation == generation, "the allocation")  # noqa: B023
    assert scheduler.take_warnings() == ()


def test_stop_and_deadline_are_heard(place, connect, listen) -> None:
    here = place()
    here.allocate(2)
    scheduler = listen(connect(here.kubeconfig("digits-trainer")), here.job.job)
    scheduler.start(0.0)
    assert scheduler.allocation().direction is Direction.UP
    deadline = datetime(2030, 1, 1, tzinfo=UTC)
    down = {"generation": 2, "replicas": 1, "gpus": 1, "direction": "down", "deadline": deadline.isoformat()}
    here.status(allocation=down)
    until(lambda: scheduler.allocation().generation == 2, "the reclaim")
    assert scheduler.allocation().deadline == deadline
    assert scheduler.stop_reason() is None
    here.status(scheduling={"stopping": {"reason": "Suspended", "deadline": deadline.isoformat()}})
    until(lambda: scheduler.stop_reason() is Reason.SUSPENDED, "the demand to stop")


def test_api_server_that_restarts_is_one_warning_and_the_file_holds_meanwhile(
    place, connect, listen, cluster, tmp_path, caplog
) -> None:
    here = place()
    here.allocate(1)
    file = tmp_path / "allocation.json"
    write_document(file, document(here.job, 1, 1))
    scheduler = listen(connect(here.kubeconfig("digits-trainer")), here.job.job, file)
    scheduler.start(0.0)
    assert scheduler.allocation().generation == 1
    cluster.stop(signal.SIGKILL)
    warnings: list[str] = []
    until(lambda: warnings.extend(scheduler.take_warnings()) or warnings, "a warning")
    write_document(file, document(here.job, 2, 2))
    until(lambda: scheduler.allocation().generation == 2, "the file's newer generation")
    cluster.start()
    here.generation = 2
    generation = here.allocate(1)
    with caplog.at_level(logging.INFO, "espalier_trainer"):
        until(lambda: scheduler.allocation().generation == generation, "the allocation after the restart")
    warnings.extend(scheduler.take_warnings())
    assert len(warnings) == 1, warnings
    assert "cannot watch job" in warnings[0]
    assert "Connection refused" in warnings[0]
    assert warnings[0].endswith("continuing with the annotation")
    assert scheduler.allocation().generation == generation, "the file's older one does not come back"


def test_later_job_of_the_same_name_is_not_listened_to(place, connect, listen) -> None:
    here = place()
    here.allocate(1)
    scheduler = listen(connect(here.kubeconfig("digits-trainer")), with_uid(here.job.job, "another"))
    scheduler.start(0.0)
    assert scheduler.allocation().generation == 0
    assert scheduler.used_seconds() < 0.5


def test_pod_connects_with_what_is_mounted_into_it(place, listen, tmp_path, monkeypatch) -> None:
    """Address from the variables, token and certificate from the mount, no proxy."""
    here = place()
    here.allocate(1)
    (tmp_path / "token").write_text(here.cluster.token(here.namespace, "digits-trainer"))
    certificate = json.loads(here.kubeconfig("default").read_text())["clusters"][0]["cluster"]["certificate-authority"]
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_CERT_FILENAME", certificate)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(here.cluster.port))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    api = kube.connect()
    scheduler = listen(api, here.job.job)
    scheduler.start(0.0)
    assert scheduler.allocation().generation == 1
    api.close()
    (tmp_path / "token").unlink()
    with pytest.raises(kube.NoAccessError, match="token"):
        kube.connect()


def test_without_rights_the_annotation_holds_until_they_are_granted(place, connect, listen, tmp_path) -> None:
    here = place()
    here.allocate(1)
    file = tmp_path / "allocation.json"
    write_document(file, document(here.job, 1, 1))
    api = connect(here.kubeconfig("default"))
    attempts = calls_of(api, "list")
    scheduler = listen(api, here.job.job, file)
    scheduler.start(3.0)
    assert scheduler.used_seconds() >= 3.0
    write_document(file, document(here.job, 2, 2))
    until(lambda: scheduler.allocation().generation == 2, "the file's allocation")
    warnings = list(scheduler.take_warnings())
    write_document(file, document(here.job, 3, 1, stop=Reason.SUSPENDED))
    until(lambda: scheduler.stop_reason() is Reason.SUSPENDED, "the file's stop")
    # The further attempts are what must not warn; when the second begins, the first has failed.
    made = len(attempts)
    until(lambda: len(attempts) >= made + 2, "some more attempts")
    warnings.extend(scheduler.take_warnings())
    assert len(warnings) == 1, warnings
    assert f"cannot watch job {here.job.key}: Forbidden" in warnings[0]
    binding = objects.role_binding(here.job)
    binding["metadata"]["name"] = "late"
    binding["subjects"][0]["name"] = "default"
    here.cluster.request(
        "POST", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{here.namespace}/rolebindings", binding
    )
    here.generation = 3
    generation = here.allocate(2)
    until(lambda: scheduler.allocation().generation == generation, "the watched allocation")


def make_report(job: KubeJob, step: int = 0, **more: Any) -> Report:
    return Report(job=job.key, incarnation="test", step=step, updated_time=datetime.now(UTC), **more)


@pytest.fixture
def reporter_of() -> Iterator[Callable[..., kube.ConfigMapReporter]]:
    started: list[kube.ConfigMapReporter] = []

    def start(api: Client, here: Place, **options: Any) -> kube.ConfigMapReporter:
        reporter = kube.ConfigMapReporter(api, here.namespace, "digits-report", EventLog(), **options)
        started.append(reporter)
        reporter.start()
        return reporter

    yield start
    for each in started:
        each.close()


def test_reports_are_patched_in_at_once_when_urgent_and_after_a_while_otherwise(place, connect, reporter_of) -> None:
    here = place()
    now = [100.0]
    reporter = reporter_of(connect(here.kubeconfig("digits-trainer")), here, clock=lambda: now[0])
    assert reporter.previous_used_seconds(here.job.job) == 0.0
    reporter.publish(lambda: make_report(here.job, 1, used_seconds=4.5), urgent=True)
    until(lambda: here.report() is not None, "the report")
    made: list[float] = []

    def make() -> Report:
        made.append(now[0])
        return make_report(here.job, 2, used_seconds=4.5)

    for now[0] in (100.0, 101.9, 102.0, 102.1, 103.9):
        reporter.publish(make)
    assert made == [102.0]
    until(lambda: here.report().step == 2, "the report that was due")
    reporter.publish(lambda: make_report(here.job, 7, phase=TrainerPhase.COMPLETED, used_seconds=4.5), urgent=True)
    reporter.close()
    report = here.report()
    assert (report.step, report.phase) == (7, TrainerPhase.COMPLETED)
    again = reporter_of(connect(here.kubeconfig("digits-trainer")), here)
    assert again.previous_used_seconds(here.job.job) == 4.5
    assert again.previous_used_seconds(with_uid(here.job.job, here.job.uid)) == 4.5
    assert again.previous_used_seconds(with_uid(here.job.job, "another")) == 0.0, "of a deleted job of this name"


def test_last_report_survives_a_short_outage_and_a_long_one_costs_seconds(
    place, connect, relay, reporter_of, caplog
) -> None:
    here = place()
    api = connect(here.kubeconfig("digits-trainer", relay.port))
    reporter = reporter_of(api, here)
    relay.refuse()
    reporter.publish(lambda: make_report(here.job, 1, phase=TrainerPhase.COMPLETED), urgent=True)
    back = threading.Timer(1.0, relay.accept)
    back.start()
    reporter.close()
    back.join()
    assert here.report().phase is TrainerPhase.COMPLETED
    assert len(caplog.records) == 1, caplog.text
    assert "the report cannot be written" in caplog.text
    caplog.clear()

    reporter = reporter_of(api, here)
    relay.refuse()
    reporter.publish(lambda: make_report(here.job, 2), urgent=True)
    reporter.close()
    assert "the last report did not reach" in caplog.text
    assert here.report().step == 1
    relay.accept()


def test_what_is_refused_is_warned_about_once(place, connect, reporter_of, caplog) -> None:
    here = place()
    api = connect(here.kubeconfig("default"))
    attempts = calls_of(api, "merge_patch")
    reporter = reporter_of(api, here)
    for step in range(5):
        made = len(attempts)
        reporter.publish(lambda: make_report(here.job, step), urgent=True)  # noqa: B023
        until(lambda: len(attempts) > made, "another attempt")  # noqa: B023
    made = len(attempts)
    reporter.close()
    assert len(attempts) <= made + 1, "nothing is to be gained by trying on"
    refused = [record.message for record in caplog.records if "cannot be written" in record.message]
    assert len(refused) == 1
    assert "Forbidden" in refused[0]
    assert here.report() is None


def test_a_leader_that_was_replaced_cannot_overwrite_the_report_of_its_successor(
    place, connect, reporter_of, caplog
) -> None:
    here = place()
    api = connect(here.kubeconfig("digits-trainer"))

    def told(attempt: int, step: int, **more: Any) -> Callable[[], Report]:
        return lambda: make_report(here.job, step, attempt=attempt, **more)

    old = reporter_of(api, here, attempt=0, job_uid=here.job.uid)
    old.publish(told(0, 1), urgent=True)
    until(lambda: here.report() is not None, "the report")
    new = reporter_of(api, here, attempt=1, job_uid=here.job.uid)
    assert new.previous_used_seconds(here.job.job) == 0.0
    old.publish(told(0, 2), urgent=True)
    until(lambda: here.report().step == 2, "the old leader's report")
    assert (old.superseded(), new.superseded()) == ("", ""), "it may report until its successor does"
    new.publish(told(1, 3), urgent=True)
    until(lambda: here.report().step == 3, "the new leader's report")
    patched = calls_of(api, "merge_patch")
    old.publish(told(0, 4, phase=TrainerPhase.COMPLETED), urgent=True)
    until(old.superseded, "the old leader's insight")
    assert "attempt 1 has taken over from attempt 0" in old.superseded()
    assert here.report().step == 3
    made = len(patched)
    old.publish(told(0, 5), urgent=True)
    old.close()
    assert len(patched) == made, "it does not try again"
    new.publish(told(1, 6), urgent=True)
    new.close()
    assert here.report().step == 6
    assert new.superseded() == ""
    assert [record.levelname for record in caplog.records] == ["WARNING"], caplog.text


def test_a_report_that_others_touch_is_written_on_their_version(place, connect, reporter_of) -> None:
    """An annotation, say: the version has changed, and the report is still this leader's."""
    here = place()
    reporter = reporter_of(connect(here.kubeconfig("digits-trainer")), here, attempt=2, job_uid=here.job.uid)
    for step in range(1, 4):
        here.cluster.request("PATCH", here.config_map, {"metadata": {"annotations": {"touched": str(step)}}})
        reporter.publish(lambda: make_report(here.job, step, attempt=2), urgent=True)  # noqa: B023
        until(lambda: here.report() is not None and here.report().step == step, "the report")  # noqa: B023
    assert reporter.superseded() == ""


def test_attempts_of_a_deleted_job_of_the_same_name_do_not_count(place, connect, reporter_of) -> None:
    here = place()
    api = connect(here.kubeconfig("digits-trainer"))
    earlier = reporter_of(api, here, attempt=7, job_uid=here.job.uid)
    earlier.publish(lambda: make_report(here.job, 1, attempt=7, used_seconds=9.0), urgent=True)
    until(lambda: here.report() is not None, "the report")
    again = reporter_of(api, here, attempt=0, job_uid="another")
    assert again.previous_used_seconds(here.job.job) == 0.0
    again.publish(lambda: make_report(here.job, 2, attempt=0), urgent=True)
    until(lambda: here.report().step == 2, "the report")


@dataclass
class Leader:
    """A real trainer process that was told what its pod would tell it."""

    place: Place
    folder: Path
    process: Forked

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def reported(self, holds: Callable[[Report], bool], what: str) -> Report:
        def found() -> Report | None:
            if self.process.poll() not in (None, 0, 143):
                pytest.fail(f"the trainer ended with {self.process.returncode}:\n{self.log}")
            report = self.place.report()
            return report if report is not None and holds(report) else None

        return until(found, what)

    def end(self) -> int:
        return self.process.wait(PATIENCE)


@pytest.fixture
def lead(tmp_path: Path) -> Iterator[Callable[..., Leader]]:
    """Start leaders from the pod that the operator makes: its variables, its annotations as files."""
    processes: list[Forked] = []

    def start(
        here: Place, kubeconfig: Path | None = None, attempt: int = 0, folder: str = "", **settings: Any
    ) -> Leader:
        status = JobStatus.model_validate(here._status)
        pod = worker_pod.worker_pod(here.job, status, WorkerRole.BASE, 0, attempt, replace(KubeSettings(), **settings))
        given = {entry["name"]: entry.get("value", "uid") for entry in pod["spec"]["containers"][0]["env"]}
        files = {worker_pod.JOB_FILE: JOB_ANNOTATION, worker_pod.ALLOCATION_FILE: ALLOCATION_ANNOTATION}
        for path, annotation in files.items():
            (tmp_path / Path(path).name).write_text(pod["metadata"]["annotations"][annotation])
        moved = {path: str(tmp_path / Path(path).name) for path in files}
        variables = {
            **{name: moved.get(value, value) for name, value in given.items()},
            environment.CHECKPOINT_DIR: str(tmp_path / (folder or "checkpoints")),
            "KUBECONFIG": str(kubeconfig or here.kubeconfig("digits-trainer")),
            "PATH": os.environ["PATH"],
        }
        processes.append(Forked("espalier_trainer", env=variables, out=tmp_path / "log", cwd=tmp_path))
        return Leader(here, tmp_path, processes[-1])

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE)


@pytest.mark.slow
def test_leader_that_is_replaced_counts_on(place, lead) -> None:
    """SIGTERM ends it with a report; the next begins with what the ConfigMap, the status or the checkpoint knows."""
    here = place(timeBudgetSeconds=30, checkpoint={"path": "/checkpoints", "intervalSeconds": 60})
    here.allocate(1)
    leader = lead(here)
    leader.reported(lambda report: report.used_seconds > 1, "training")
    leader.process.terminate()
    assert leader.end() == 143, leader.log
    stopped = here.report()
    assert (stopped.phase, stopped.reason) == (TrainerPhase.STOPPED, Reason.INTERRUPTED)
    here.status(timeBudget={"usedSeconds": 12.0, "remainingSeconds": 18, "gpuSecondsUsed": 12})
    leader = lead(here)
    resumed = leader.reported(lambda report: report.phase is TrainerPhase.TRAINING, "training again")
    assert resumed.used_seconds >= 12.0
    assert resumed.step >= stopped.step
    here.status(scheduling={"stopping": {"reason": "Suspended", "deadline": "2030-01-01T00:00:00Z"}})
    assert leader.end() == 143, leader.log
    assert here.report().reason is Reason.SUSPENDED


@pytest.mark.slow
def test_leader_that_was_replaced_ends_though_it_shares_no_folder_with_its_successor(place, lead) -> None:
    """Its checkpoints lie in an emptyDir: only the report shows that a later attempt has taken over."""
    here = place(timeBudgetSeconds=600)
    here.allocate(1)
    old = lead(here)
    old.reported(lambda report: report.attempt == 0 and report.phase is TrainerPhase.TRAINING, "the first attempt")
    new = lead(here, attempt=1, folder="another")
    new.reported(lambda report: report.attempt == 1 and report.phase is TrainerPhase.TRAINING, "the second attempt")
    assert old.end() == 4, old.log
    assert "attempt 1 has taken over from attempt 0, and reports; this leader was given up" in old.log
    assert "Traceback" not in old.log
    step = here.report().step
    new.reported(lambda report: report.attempt == 1 and report.step > step, "its next report")
    new.process.terminate()
    assert new.end() == 143, new.log
    assert here.report().phase is TrainerPhase.STOPPED


@pytest.mark.slow
def test_leader_without_a_token_goes_by_its_files(place, lead, tmp_path) -> None:
    here = place(timeBudgetSeconds=60)
    here.allocate(1)
    leader = lead(here, tmp_path / "no-such-kubeconfig")
    until(lambda: '"type":"TrainerStarted"' in leader.log, "training")
    write_document(tmp_path / "allocation.json", document(here.job, 2, 1, stop=Reason.SUSPENDED))
    assert leader.end() == 143, leader.log
    assert "the API server cannot be used" in leader.log
    assert '"reason":"Suspended"' in leader.log
    assert "Traceback" not in leader.log
    assert here.report() is None
