"""Shared by the trainer's tests: jobs, virtual runs, an agent on loopback, real trainer processes."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from espalier_core.files.documents import read_document, write_document, write_text_atomically
from espalier_core.growth.architecture import Architecture
from espalier_core.types import environment
from espalier_core.types.allocation import Allocation, AllocationDocument, TimeBudget
from espalier_core.types.events import EVENT, AnyEvent
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report
from espalier_lab.virtual_time import ReplicaChange, VirtualScheduler
from espalier_trainer.builtin_loop.trainer import Trainer
from espalier_trainer.checkpoints.document import Checkpoint, CheckpointIdentity, CheckpointState
from espalier_trainer.checkpoints.store import CheckpointStore
from espalier_trainer.data import Data, load_data
from espalier_trainer.growth.advisor import Advisor
from espalier_trainer.models.zoo import build_model
from espalier_trainer.net2net.randomness import seed_everything
from espalier_trainer.run.services import Services
from espalier_trainer.signals.report import MemoryReporter, Reporter
from espalier_trainer.training.progress import TrainingResult
from forked import fork_server
from own_scripts import OWN, another_process
from trainer_processes import until

STEP_SECONDS = 0.004


@pytest.fixture(scope="session")
def make_checkpoint() -> Callable[..., Checkpoint]:
    """Return what makes a small checkpoint by its step; two of its tensors share memory."""
    return _checkpoint


def _checkpoint(step: int = 0) -> Checkpoint:
    state = CheckpointState(
        identity=CheckpointIdentity(job="default/t", model="m", dataset="d", optimizer="Adam", batch_size=1, seed=0),
        architecture=None,
        epoch=0,
        step=step,
        cursor=0,
        epoch_loss_sum=0.1 + 0.2,
        used_seconds=1 / 3,
        consultations=0,
        adaptations=(),
        metrics=(),
        depth_before=1,
        parameters_before=1,
        max_step_gap_seconds=0.0,
        schedule={},
        optimizer_groups=({"lr": 0.1, "params": ["w"]},),
        optimizer_values={},
        random={},
    )
    weights = torch.arange(6, dtype=torch.float32).view(2, 3)
    return Checkpoint(
        state, {"w": weights, "tied": weights, "row": weights[1:]}, {"optimizer.w|step": torch.tensor(3.0)}
    )


@pytest.fixture(autouse=True)
def _of_another_process() -> None:
    another_process()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def job_of(**spec: Any) -> AdaptiveTrainingJob:
    """Return the digits job with `spec` (camelCase) over small defaults."""
    merged = {"timeBudgetSeconds": 0.4, "maxReplicas": 2, **spec}
    return AdaptiveTrainingJob.model_validate(
        {
            "apiVersion": "espalier.dev/v1alpha1",
            "kind": "AdaptiveTrainingJob",
            "metadata": {"name": "t"},
            "spec": merged,
        }
    )


@pytest.fixture(scope="session")
def make_job() -> Callable[..., AdaptiveTrainingJob]:
    return job_of


@pytest.fixture(scope="session")
def digits() -> Data:
    return load_data(job_of().spec.training.dataset)


def step_seconds(architecture: Architecture | None, seconds: float = STEP_SECONDS) -> float:
    """A step costs `seconds`, and a quarter more a layer added."""
    grown = sum(architecture.growth_history.values()) if architecture else 0
    return seconds * (1 + grown / 4)


@dataclass
class VirtualRun:
    """One finished run under virtual time."""

    result: TrainingResult
    trainer: Trainer
    reporter: MemoryReporter
    scheduler: VirtualScheduler

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return self.trainer.network.module.state_dict()

    def assert_same_weights(self, other: VirtualRun) -> None:
        """Assert that both ended with the same bits, under the same names in the same order."""
        assert list(self.weights) == list(other.weights)
        for name, tensor in other.weights.items():
            assert torch.equal(self.weights[name], tensor), name


class StopAfter:
    """Asks training to stop at its n-th step boundary."""

    def __init__(self, boundaries: int) -> None:
        self.left = boundaries

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.fixture(scope="session")
def stop_after() -> type[StopAfter]:
    return StopAfter


@pytest.fixture(scope="session")
def run(digits: Data) -> Callable[..., VirtualRun]:
    """Run the digits net under virtual time; `up_at` is when the second replica comes."""

    def runner(
        job: AdaptiveTrainingJob | None = None,
        *,
        advisor: Advisor | None = None,
        up_at: float | None = None,
        arrivals: tuple[ReplicaChange, ...] = (),
        store: Path | None = None,
        data: Data | None = None,
        wrap: Callable[[Reporter], Reporter] = lambda reporter: reporter,
        step: float = STEP_SECONDS,
        scheduler: VirtualScheduler | None = None,
        **options: Any,
    ) -> VirtualRun:
        job = job or job_of()
        data = data or digits
        seed_everything(job.spec.training.seed)
        model = build_model(job.spec.training.model, data.classes, data.example_input(), data.task)
        if up_at is not None:
            arrivals = (ReplicaChange(up_at, 2),)
        if scheduler is None:
            cost = partial(step_seconds, seconds=step)
            scheduler = VirtualScheduler(job.spec.time_budget_seconds, cost, arrivals)
        reporter = MemoryReporter()
        checkpoints = None if store is None else CheckpointStore(store)
        names = ("stop", "team", "step_took", "clock", "forecaster")
        connected = {name: options.pop(name) for name in names if name in options}
        services = Services(scheduler, wrap(reporter), advisor, checkpoints, **connected)
        trainer = Trainer(job, model, data, services, **options)
        return VirtualRun(trainer.run(), trainer, reporter, scheduler)

    return runner


@dataclass
class AgentServer:
    """An agent on loopback that answers as `answer(request body) -> (status, bytes)` says.

    It does not tell what growing would gain: such questions come when an epoch begins, and count apart.
    """

    answer: Callable[[dict[str, Any]], tuple[int, bytes]]
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    forecasts: list[dict[str, Any]] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def agent_server() -> Iterator[Callable[..., AgentServer]]:
    """Start agents; each is a real HTTP server on a port of its own."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(answer: Callable[[dict[str, Any]], tuple[int, bytes]]) -> AgentServer:
        agent = AgentServer(answer)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # the name that http.server looks for
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                agent.authorizations.append(self.headers["authorization"])
                if body.get("forecast"):
                    agent.forecasts.append(body)
                    status, content = 404, b""
                else:
                    agent.requests.append((self.path, body))
                    status, content = agent.answer(body)
                try:
                    self.send_response(status)
                    self.send_header("content-length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the trainer no longer waits

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        servers.append(server)
        agent.url = f"http://127.0.0.1:{server.server_address[1]}"
        return agent

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def advice(target: str | None, decision: str = "d-1") -> bytes:
    """Return the body of a well-formed answer."""
    action = {"kind": "Nothing"} if target is None else {"kind": "Deepen", "target": target}
    body = {
        "decisionId": decision,
        "action": action,
        "policy": {"name": "test", "version": "7"},
        "probabilities": [{"action": action, "probability": 1.0}],
    }
    return json.dumps(body).encode()


@pytest.fixture
def advice_body() -> Callable[..., bytes]:
    return advice


@pytest.fixture
def leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_job: Callable[..., AdaptiveTrainingJob]
) -> AdaptiveTrainingJob:
    """Let this process be the leader of a job, alone; its signals and the end of the process stay the tests' own."""
    job = make_job(timeBudgetSeconds=3600)
    (tmp_path / "job.json").write_text(json.dumps(job.model_dump(mode="json", by_alias=True, exclude_none=True)))
    monkeypatch.setenv("ESPALIER_JOB_FILE", str(tmp_path / "job.json"))
    monkeypatch.setenv("ESPALIER_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("ESPALIER_REPORT_FILE", str(tmp_path / "report.json"))
    monkeypatch.setenv("ESPALIER_EVENTS_FILE", str(tmp_path / "events.jsonl"))
    monkeypatch.setattr("signal.signal", lambda *given: None)
    monkeypatch.setattr("atexit.register", lambda function: function)
    return job


@pytest.fixture
def users_module(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], Any]:
    """Let modules of a user's own be imported by entrypoints: by name and text."""

    def make(name: str, text: str) -> None:
        folder = tmp_path_factory.mktemp("modules")
        (folder / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, name, raising=False)

    return make


@pytest.fixture
def advised(
    leader: AdaptiveTrainingJob, agent_server: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Give the job a second GPU, a seed, and an agent that answers as `answer` says; returns the agent."""

    def start(answer: Callable[[dict[str, Any]], tuple[int, bytes]]) -> Any:
        agent = agent_server(answer)
        allocation = Allocation(generation=1, replicas=2, gpus=2)
        budget = TimeBudget(budget_seconds=leader.spec.time_budget_seconds)
        document = AllocationDocument(job=leader.key, allocation=allocation, time_budget=budget)
        write_document(tmp_path / "allocation.json", document)
        monkeypatch.setenv("ESPALIER_ALLOCATION_FILE", str(tmp_path / "allocation.json"))
        monkeypatch.setenv("ESPALIER_AGENT_URL", agent.url)
        monkeypatch.setenv("ESPALIER_SEED", "7")
        return agent

    return start


_CHILD = """
import gc, os, sys, time
gc.freeze()  # what the server has imported stays
handle = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.dup2(handle, 1)
os.dup2(handle, 2)
# Whole lines at once, also where PYTHONUNBUFFERED is set: the log gets those of others, too.
sys.stdout.reconfigure(line_buffering=True, write_through=False)
os.environ.update({variables!r})
sys.path[:0] = {path!r}
import torch
torch.set_num_threads(1)
import espalier_trainer.signals.report
from espalier_trainer.elastic import generations, group, member
# Tests wait for reports, and all processes of a job compute meanwhile.
espalier_trainer.signals.report.INTERVAL_WALL_SECONDS = 0.1
# What is waited for takes some steps; at full speed, all processes would compute until the test has noticed.
if {pace}:
    from torch.optim.optimizer import register_optimizer_step_post_hook
    register_optimizer_step_post_hook(lambda *_: time.sleep({pace}))
# However late one comes on a busy machine: that a generation breaks is only what a test brings about.
group.FORM_SECONDS = member.FORM_SECONDS = generations.FORM_SECONDS = 30.0
{prelude}
{run}
"""

_TRAINER = "from espalier_trainer.launch.main import main; sys.exit(main())"


@dataclass
class Workplace:
    """The folder in which a trainer process finds its contracts."""

    folder: Path
    job: AdaptiveTrainingJob
    agent_url: str = ""
    time_scale: float = 1.0
    prelude: str = ""
    python_path: tuple[str, ...] = ()
    run: str = _TRAINER
    """What each process does, once it is set up."""
    pace: float = 0.0
    """Seconds of rest after each step of a process; a file of tests says it as `PACE`."""
    _generation: int = 0
    _events: list[AnyEvent] = field(default_factory=list)
    _events_end: int = 0
    """Bytes of the file with events that have been read."""

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    def logs(self, extra: int) -> str:
        """Return what extra worker `extra` has logged."""
        path = self.folder / f"log-{extra}"
        return path.read_text() if path.exists() else ""

    def variables(self) -> dict[str, str]:
        return {
            environment.JOB_FILE: str(self.folder / "job.json"),
            environment.ALLOCATION_FILE: str(self.folder / "allocation.json"),
            environment.REPORT_FILE: str(self.folder / "report.json"),
            environment.EVENTS_FILE: str(self.folder / "events.jsonl"),
            environment.CHECKPOINT_DIR: str(self.checkpoints),
            environment.AGENT_URL: self.agent_url,
            environment.TIME_SCALE: str(self.time_scale),
            environment.RENDEZVOUS: str(self.folder / "rendezvous"),
        }

    def allocate(
        self,
        replicas: int,
        *,
        generation: int | None = None,
        stop: Reason | None = None,
        reason: str = "",
        budget: float | None = None,
    ) -> None:
        """Write the allocation file, as a scheduler does."""
        self._generation = self._generation + 1 if generation is None else generation
        allocation = Allocation(generation=self._generation, replicas=replicas, gpus=replicas, reason=reason)
        time_budget = TimeBudget(budget_seconds=self.job.spec.time_budget_seconds if budget is None else budget)
        document = AllocationDocument(job=self.job.key, allocation=allocation, time_budget=time_budget, stop=stop)
        write_document(self.folder / "allocation.json", document)

    def write_job(self) -> None:
        """Write the job file."""
        job = self.job.model_dump(mode="json", by_alias=True, exclude_none=True)
        # At once: the process that was started before may be reading it.
        write_text_atomically(self.folder / "job.json", json.dumps(job))

    def start(self, extra: int | None = None) -> Any:
        """Start the leader, or extra worker `extra` (forked from a server that has torch imported already)."""
        self.write_job()
        variables, log = self.variables(), "log"
        if extra is not None:
            variables |= {environment.WORKER_ROLE: "extra", environment.WORKER_INDEX: str(extra)}
            log = f"log-{extra}"
        code = _CHILD.format(
            log=str(self.folder / log),
            variables=variables,
            path=list(self.python_path),
            pace=self.pace,
            prelude=self.prelude,
            run=self.run,
        )
        process = fork_server().Process(target=exec, args=(code, {}))
        process.start()
        return process

    def report(self) -> Report:
        return read_document(self.folder / "report.json", Report)

    @property
    def steps(self) -> int:
        """The steps that the leader has reported."""
        return self.report().step if self.has_report() else 0

    def trains_on(self, steps: int = 20) -> None:
        """Wait until more than so many steps have been added."""
        before = self.steps
        until(lambda: self.steps > before + steps, self)

    def has_report(self) -> bool:
        return (self.folder / "report.json").exists()

    def events(self) -> list[AnyEvent]:
        """Return the events so far; each is read once, as tests ask again and again."""
        path = self.folder / "events.jsonl"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._events_end)
                whole, newline, _ = file.read().rpartition(b"\n")  # what follows the last line is on its way
            self._events_end += len(whole) + len(newline)
            self._events += [EVENT.validate_json(line) for line in whole.splitlines()]
        return list(self._events)


@pytest.fixture
def workplace(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Workplace]]:
    """Make folders for trainer processes; what still runs at the end is killed."""
    started: list[Any] = []

    def make(job: AdaptiveTrainingJob, **options: Any) -> Workplace:
        place = Workplace(tmp_path, job, **{"pace": getattr(request.module, "PACE", 0.0), **options})
        begin = place.start

        def start(extra: int | None = None) -> Any:
            started.append(begin(extra))
            return started[-1]

        place.start = start  # type: ignore[method-assign]
        return place

    yield make
    for process in started:
        if process.is_alive():
            process.kill()
        process.join()


@pytest.fixture
def scripted(
    workplace: Callable[..., Workplace], make_job: Callable[..., AdaptiveTrainingJob]
) -> Callable[..., Workplace]:
    """Make a place where workers run `script` (text, or a path) with `arguments`."""

    def make(script: str | Path, *arguments: str, budget: float = 3600.0, **spec: Any) -> Workplace:
        training = {"elasticBatch": "keepGlobal", **spec.pop("training", {})}
        job = make_job(
            **{"maxReplicas": 3, "adaptation": {"mode": "Off"}, **spec}, timeBudgetSeconds=budget, training=training
        )
        place = workplace(job)
        if isinstance(script, str):
            script, text = place.folder / "script.py", script
            script.write_text(text)
        place.run = OWN.format(folder=str(place.folder), arguments=arguments, script=str(script))
        return place

    return make


@pytest.fixture
def elastic(
    workplace: Callable[..., Workplace], make_job: Callable[..., AdaptiveTrainingJob]
) -> Callable[..., Workplace]:
    """Make a place where workers train together, and the heuristic grows their model if it `grows`."""

    def make(*, prelude: str = "", grows: bool = False, stragglers: str = "Report", **spec: Any) -> Workplace:
        growing = {"mode": "Auto", "fallback": "Heuristic", "maxAdaptations": 2, "trials": "Off"}
        adaptation = growing if grows else {"mode": "Off"}
        training = {"elasticBatch": "keepGlobal", "stragglers": stragglers, "schedule": {"name": "Constant"}}
        body = {"maxReplicas": 4, "adaptation": adaptation, "training": training, "timeBudgetSeconds": 3600, **spec}
        return workplace(make_job(**body), prelude=prelude)

    return make
