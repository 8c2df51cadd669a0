"""A real Prometheus scrapes a real operator, agent and trainer: all that is asked of them is there, and is drawn."""

from __future__ import annotations

import math
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import httpx
import pytest
from apiserver import ApiServer
from fake_kubelet import FakeKubelet
from matplotlib.image import imread
from operator_process import OperatorProcess
from operators import World
from prometheus_client.parser import text_string_to_metric_families
from prometheus_process import PrometheusProcess, prometheus_binaries
from trainer_process import TrainerProcess
from trainers import Raw, Trainers

import sweeps
from agent_service import serving
from espalier_agent.policies.policy import default_policy, save_policy
from espalier_core.files.documents import dumps
from espalier_core.growth.architecture import Architecture, GrowthPoint, Layer
from espalier_core.k8s import resources
from espalier_core.k8s.resources import Resource
from espalier_core.metrics import FAMILIES, Exporter, MetricFamily
from espalier_core.types.measurements import Bid, BidUse, GradientNoise, GrowthForecast, Measurements
from espalier_core.types.reasons import Reason
from espalier_core.types.report import WORKERS_METRIC, Adaptation, AdaptationSource, Arm, Metric, Report, TrainerPhase
from espalier_core.validation.reading import load_job
from espalier_monitoring.__main__ import main
from espalier_monitoring.alerts import ALERTS, Alert
from espalier_monitoring.boards import Board, Panel, Row
from espalier_monitoring.outputs import BOARDS, RELABELLING, RULES
from espalier_monitoring.reading import Prometheus, Reader, ReadingError, Window
from espalier_monitoring.sheet import WIDTH
from espalier_operator.model.actions import Action
from operator_world.kube_objects import adaptation
from promql_names import expressions, names

PROJECT = Path(__file__).parents[2]
SERIES = {series: family for family in FAMILIES for series in family.series}
NOT_IN_THIS_RUN = {
    "espalier_operator_errors_total": "nothing that the operator does fails here",
    "espalier_agent_records_lost_total": "the agent's disk has room",
    "espalier_trainer_advice_problems_total": "the agent answers the trainer",
    "espalier_job_done_ratio": "only programs say it",
    "espalier_node_failed_jobs": "no node refuses pods",
    "espalier_scheduling_policy_questions_total": "only a policy in a file is asked",
    "espalier_trainer_step_gain_ratio": "the job looks for no faster computation of its steps",
}
"""Metrics that have no series after such a run, and why."""
EMPTY_HERE = {
    "Espalier: fleet: Errors": "nothing that the operator does fails here",
    "Espalier: agent: Not kept": "the agent's disk has room",
}
"""Panels without data after such a run, and why."""
CONSULTATIONS = 2
NOT_DRAWN = {*EMPTY_HERE, "Espalier: job: Waiting", "Espalier: job: Workers that train together"}
"""Panels of the drawn dashboards without data: that job has its GPUs, and its leader trains alone."""
UNCERTAIN = {"Espalier: job: Gradient noise scale"}
"""And that which may have none: noise may hide its gradient for as long as it trains."""
MANY = sweeps.size("jobs whose series go with them", 1000)
BOUNDED = {
    "espalier_api_requests_total": {
        "verb": {"discover", "get", "list", "create", "patch", "delete"},
        "resource": {resource.plural for resource in vars(resources).values() if isinstance(resource, Resource)},
        "code": {"0", "200", "201", "404", "409", "410", "422", "429"},  # 422: a patch that another write has overtaken
    },
    "espalier_scheduler_actions_total": {
        "action": {action.__name__ for action in get_args(Action)},
        "reason": set(Reason),
    },
}
"""What more jobs may bring to light, as pods end and answers come in another order: of a few values, not of jobs."""
LAST_ANSWER = 'espalier_agent_requests_total{route="/v1/advice", code="422"}'
"""The last that happens in such a run."""
SCRAPES = 3
"""Seconds between scrapes, as the dashboards are told: on a busy machine they come later than each second."""
PATIENCE = 180.0
"""Seconds; the machine may be slow."""
QUEUES = "/apis/espalier.dev/v1alpha1/queues"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
Sample = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What has happened, and who saw it."""

    world: World
    operator: OperatorProcess
    agent: str
    """Its URL."""
    prometheus: PrometheusProcess
    since: float
    binaries: Path
    directory: Path
    of_trainer: list[str] = field(default_factory=list)
    """What the trainer exported while it trained, the newest last."""

    def scrape(self, exporter: Exporter = Exporter.OPERATOR) -> str:
        """Return what the operator or the agent exports now, or the trainer did while it was there."""
        if exporter is Exporter.TRAINER:
            return self.of_trainer[-1]
        url = {Exporter.OPERATOR: f"http://{self.operator.address}", Exporter.AGENT: self.agent}[exporter]
        answer = httpx.get(f"{url}/metrics", timeout=20, trust_env=False)
        assert answer.status_code == 200
        return answer.text

    def samples(self, exporter: Exporter = Exporter.OPERATOR) -> set[Sample]:
        """Return the series of a scrape."""
        found = text_string_to_metric_families(self.scrape(exporter))
        return {(sample.name, frozenset(sample.labels.items())) for family in found for sample in family.samples}

    def answer(self, expression: str) -> list[Raw]:
        """Return the series of a panel's or rule's expression in this run, of any job, that have a number."""
        made = expression.replace("$__rate_interval", "10s").replace("$__range", "10m")
        made = made.replace('namespace="$namespace"', f'namespace="{self.world.namespace}"')
        found = self.prometheus.query_range(made.replace('job_name="$job_name"', 'job_name=~".+"'), self.since)
        return [series for series in found if any(math.isfinite(float(value)) for _, value in series["values"])]


@pytest.fixture(scope="module")
def run(api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Play a job whose trainer is real; one that trains, is lent a GPU, grows, gives it back and completes; one that
    fails and is preempted, and continues; and one that waits.
    """
    binaries = prometheus_binaries()
    directory = tmp_path_factory.mktemp("monitoring")
    api_server.start()
    api_server.clear()
    with ExitStack() as stack:
        kubelet = stack.enter_context(FakeKubelet(api_server))
        trainers = stack.enter_context(Trainers(api_server))
        world = stack.enter_context(World(api_server, kubelet, trainers))
        agent = stack.enter_context(_agent(world, directory))
        # However long a busy machine takes to end a leader: none is ended by force.
        options = (
            "--trainer-image=trainer:dev",
            "--persist-seconds=0.2",
            "--restart-seconds=0.1",
            "--grace-seconds=120",
        )
        options += (f"--agent-url={agent}",)
        process = OperatorProcess(api_server, directory, "operator", *options, namespace=world.namespace)
        operator = stack.enter_context(process)
        world.until("it leads", lambda: operator.says("holding the lease"), PATIENCE)
        targets = {"operator": operator.address, "agent": agent.removeprefix("http://")}
        prometheus = stack.enter_context(PrometheusProcess(binaries, directory, targets, PROJECT / RULES, RELABELLING))
        made = Run(
            world=world,
            operator=operator,
            agent=agent,
            prometheus=prometheus,
            since=time.time(),
            binaries=binaries,
            directory=directory,
        )
        world.kubelet.add_node("node", 1, gpu_type="H200")
        queue = {"apiVersion": "espalier.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "default"}}
        world.server.request("POST", QUEUES, {**queue, "spec": {"quotas": [{"nominal": 100}]}})
        _train(made)
        _play(made)
        _consult(made)
        yield made
        world.server.request("DELETE", f"{QUEUES}/default")
    api_server.clear()


@contextmanager
def _agent(world: World, directory: Path) -> Iterator[str]:
    """Give the URL of an agent with the policy that it comes with, as its own shadow, too; it keeps what it decides."""
    shadow = directory / "shadow"
    save_policy(default_policy(), shadow)
    with serving(directory, f"--shadow={shadow}") as url:
        yield url


def _consult(run: Run) -> None:
    """Ask the agent about a model with a layer that it does not know, tell it the outcome, and ask nonsense."""
    attributes = {"in_features": 8, "out_features": 8, "bias": True}
    layers = (
        Layer(name="input", operator="Input"),
        Layer(name="a", operator="Linear", attributes=attributes, inputs=("input",)),
        Layer(name="b", operator="Quantum", inputs=("a",)),
    )
    added = Layer(name="linear", operator="Linear", attributes=attributes, inputs=("",))
    point = GrowthPoint(id="a", kind="Linear", after="a", block="a.grown", insertion=(added,))
    architecture = Architecture(layers=layers, outputs=("b",), growth_points=(point,))
    question = {"job": "one", "architecture": architecture.to_json(), "timeLeftSeconds": 50, "timeBudgetSeconds": 100}
    with httpx.Client(base_url=run.agent, timeout=20, trust_env=False) as agent:
        answer = agent.post("/v1/advice", json=question)
        assert answer.status_code == 200, answer.text
        outcome = {"decisionIds": [answer.json()["decisionId"]], "finalAccuracy": 0.9, "timeBudgetSeconds": 100}
        assert agent.post("/v1/outcomes", json={"job": "one", **outcome}).status_code == 200
        assert agent.post("/v1/advice", json={}).status_code == 422
    _until_scraped(run, f"{LAST_ANSWER} == 1")
    for record in ("decision", "outcome", "shadow"):
        _until_scraped(run, f'espalier_agent_records_total{{record="{record}"}} > 0')
    # A rate needs a second look.
    _until_scraped(run, f"count_over_time({LAST_ANSWER}[1m]) > 1")


def _train(run: Run) -> None:
    """Let a real trainer train, be lent a GPU and ask the agent, twice at most, and complete."""
    world = run.world
    world.trainers.silent.add("learns")
    example = load_job(PROJECT / "examples" / "digits.yaml").to_json()["spec"]
    spec = {
        **example,
        "timeBudgetSeconds": 600,
        "adaptation": {"mode": "Auto", "maxAdaptations": CONSULTATIONS, "decisionTimeoutSeconds": 20},
    }
    world.jobs.make("learns", **{name: value for name, value in spec.items() if name != "template"})
    world.until("its leader runs", lambda: "learns-base-0-0" in world.running("learns"), PATIENCE)
    pod = world.pods("learns")["learns-base-0-0"]
    folder = run.directory / "learns"
    folder.mkdir()
    place = f'{{namespace="{world.namespace}", job_name="learns"}}'
    with TrainerProcess(world.server, pod, folder) as trainer:
        run.prometheus.find({trainer.address: pod})
        _until_scraped(
            run, f"espalier_trainer_loss{place} and on () count_over_time(espalier_trainer_loss{place}[1m]) > 2"
        )
        _until_scraped(run, f"espalier_job_adaptations_total{place} == 0")
        world.kubelet.set_gpus("node", 2)

        def all_asked() -> bool:
            assert trainer.ended() is None, f"the trainer has ended:\n{trainer.log}"
            answer = httpx.get(f"http://{trainer.address}/metrics", timeout=20, trust_env=False)
            run.of_trainer[:] = [answer.text]
            counted = "espalier_trainer_adaptation_seconds_count"
            return sum(value for name, value in _values(answer.text) if name == counted) == CONSULTATIONS

        world.until("it has asked the agent", all_asked, PATIENCE)
        _until_scraped(run, f"sum(espalier_trainer_adaptation_seconds_count{place}) == {CONSULTATIONS}")
        used = world.jobs.status("learns")["timeBudget"]["usedSeconds"]
        world.jobs.change("learns", timeBudgetSeconds=used + 3)  # it has shown what it should
        world.until("it has trained to the end", lambda: trainer.ended() is not None, PATIENCE)
        assert trainer.ended() == 0, trainer.log
    run.prometheus.find({})
    world.kubelet.end(world.namespace, "learns-base-0-0", 0)
    world.until_condition("learns", "Complete", "True", "BudgetExhausted", PATIENCE)
    world.until("all its pods are gone", lambda: not world.running("learns"), PATIENCE)


def _values(scrape: str) -> Iterator[tuple[str, float]]:
    for each in text_string_to_metric_families(scrape):
        for sample in each.samples:
            yield sample.name, sample.value


def _play(run: Run) -> None:
    world = run.world
    world.trainers.silent.add("grows")
    world.jobs.make("grows", maxReplicas=2, preemption={"cooldownSeconds": 0, "minRuntimeSeconds": 0})
    world.until("its leader runs", lambda: "grows-base-0-0" in world.running("grows"), PATIENCE)
    leader = world.pods("grows")["grows-base-0-0"]["metadata"]["uid"]
    accuracy = Metric(name="validation_accuracy", value=0.5)
    figures = (accuracy, Metric(name="validation_loss", value=1.5), Metric(name="examples_per_second", value=99))
    together = Metric(name=WORKERS_METRIC, value=2)
    # Reported here: a short real run may end before there are such figures, or noise may hide its gradient.
    measured = Measurements(
        gradient=GradientNoise(squared_norm=0.5, variance=16.0, samples=20),
        growth=GrowthForecast(gain=0.1, low=0.05, high=0.15, seconds=20),
        bids=(Bid(use=BidUse.GROWTH, workers=2, gain=0.2, low=0.1, high=0.3, seconds=20),),
    )
    report = Report(
        job=f"{world.namespace}/grows",
        incarnation=leader,
        acknowledged_generation=1,
        phase=TrainerPhase.TRAINING,
        epoch=1,
        step=10,
        used_seconds=0.5,
        metrics=figures,
        depth=3,
        parameters=100,
        measurements=measured,
        updated_time=datetime.now(UTC),
    )
    _say(run, report)
    allocation = _until_allocation(run, 2)
    report = report.model_copy(update={"acknowledged_generation": allocation["generation"], "epoch": 2, "step": 20})
    _say(run, report)
    world.until("the extra worker runs", lambda: len(world.running("grows")) == 2, PATIENCE)
    # Before it grows the scrape has seen that it has not: else there is no change to see.
    place = f'{{namespace="{world.namespace}", job_name="grows"}}'
    _until_scraped(run, f"espalier_job_steps_total{place} == 20 and espalier_job_adaptations_total{place} == 0")
    grown = _adaptation("d-1", AdaptationSource.AGENT, None).model_copy(
        update={"accuracy_before": 0.5, "accuracy_after": 0.75, "arms": (Arm(action="Nothing", loss=1.0, steps=5),)}
    )
    again = _adaptation("d-2", AdaptationSource.FALLBACK, Reason.AGENT_UNAVAILABLE)
    report = report.model_copy(update={"step": 30, "depth": 5, "parameters": 200, "adaptations": (grown, again)})
    report = report.model_copy(update={"metrics": (*figures, together)})
    _say(run, report)
    _until_scraped(run, f"espalier_job_adaptations_total{place} == 2 and espalier_job_workers{place} == 2")

    # Somebody needs the lent GPU: it is given back on notice.
    world.jobs.make("other")
    allocation = _until_allocation(run, 1)
    report = report.model_copy(update={"acknowledged_generation": allocation["generation"], "step": 40})
    _say(run, report)
    world.until_condition("other", "Running", "True", "Running", PATIENCE)
    world.delete_pod("other-base-0-0")
    world.until("it was preempted", lambda: world.jobs.status("other")["preemptions"] == 1, PATIENCE)
    world.until("it runs again", lambda: world.running("other") == ["other-base-0-1"], PATIENCE)
    world.until_condition("other", "Running", "True", "Running", PATIENCE)
    world.kubelet.end(world.namespace, "other-base-0-1", 1, "CUDA error")
    world.until("it was started again", lambda: world.running("other") == ["other-base-0-2"], PATIENCE)
    world.until_condition("other", "Running", "True", "Running", PATIENCE)

    world.jobs.make("waits", gpus=2)
    world.until_condition("waits", "Admitted", "False", "NoFreeGPU", PATIENCE)
    _say(run, report.model_copy(update={"phase": TrainerPhase.COMPLETED, "reason": Reason.BUDGET_EXHAUSTED}))
    world.kubelet.end(world.namespace, "grows-base-0-0", 0)
    world.until_condition("grows", "Complete", "True", "BudgetExhausted", PATIENCE)
    _until_scraped(run, 'espalier_jobs{phase="Complete"} == 2')
    _until_scraped(run, f'espalier_jobs_finished_total{{namespace="{world.namespace}", result="Complete"}} == 2')


def _adaptation(decision: str, source: AdaptationSource, reason: Reason | None) -> Adaptation:
    now = datetime.now(UTC)
    return adaptation(decision_id=decision, time=now, source=source, reason=reason, policy="table@1", probabilities={})


def _say(run: Run, report: Report) -> None:
    path = f"/api/v1/namespaces/{run.world.namespace}/configmaps/grows-report"
    now = report.model_copy(update={"updated_time": datetime.now(UTC)})
    run.world.server.request("PATCH", path, {"data": {"report.json": dumps(now)}})


def _until_allocation(run: Run, replicas: int) -> Raw:
    def allocation() -> Raw | None:
        told: Raw = run.world.jobs.status("grows").get("allocation", {})
        return told if told.get("replicas") == replicas and told["generation"] > 1 else None

    found: Raw = run.world.until(f"it is told of {replicas} workers", allocation, PATIENCE)
    return found


def _until_scraped(run: Run, expression: str, seconds: float = PATIENCE) -> None:
    run.world.until(f"Prometheus knows {expression}", lambda: run.prometheus.query(expression), seconds)


PANELS = [each for board in BOARDS.values() for each in expressions(board)]


@pytest.mark.parametrize(("where", "expression"), PANELS)
def test_every_panel_has_data(run: Run, where: str, expression: str) -> None:
    found = run.answer(expression)
    if where in EMPTY_HERE:
        assert not found, f"{where} has data: take it out of EMPTY_HERE"
    else:
        assert found, f"{where}: nothing is found by {expression}"


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_metric_and_label_of_a_rule_is_there(run: Run, alert: Alert) -> None:
    """Most rules find nothing when all is well; what they select by must be there all the same."""
    run.answer(alert.expression)
    for metric, labels in names(alert.expression).selected.items():
        if metric not in NOT_IN_THIS_RUN:
            selector = ",".join(f'{label}!=""' for label in labels)
            assert run.answer(f"{metric}{{{selector}}}"), f"{metric} with {selector} is not there"


def test_prometheus_evaluates_the_rules(run: Run) -> None:
    def evaluated() -> list[Raw] | None:
        rules = [rule for group in run.prometheus.get("rules")["groups"] for rule in group["rules"]]
        return rules if all(rule["health"] != "unknown" for rule in rules) else None

    rules = run.world.until("all rules were evaluated", evaluated, PATIENCE)
    assert {rule["name"]: rule["health"] for rule in rules} == {alert.name: "ok" for alert in ALERTS}
    firing = {rule["name"] for rule in rules if rule["state"] == "firing"}
    # One of four consultations was decided by a fallback.
    assert firing == {"EspalierAdviceFallsBack"}


@pytest.mark.parametrize("exporter", list(Exporter))
def test_every_metric_is_in_the_scrape_with_its_labels(run: Run, exporter: Exporter) -> None:
    found: dict[str, set[frozenset[str]]] = {}
    for name, labels in run.samples(exporter):
        found.setdefault(name, set()).add(frozenset(label for label, _ in labels))
    exported = [family for family in FAMILIES if family.exporter is exporter]
    expected = {family.name for family in exported} - set(NOT_IN_THIS_RUN)
    assert {family.name for family in exported if set(family.series) <= set(found)} == expected
    assert set(found) <= {series for family in exported for series in family.series}, "nothing else is exported"
    for name, labels in found.items():
        assert labels == {_labels(SERIES[name], name)}, f"{name} has other labels than the catalogue says"
    in_prometheus = set(run.prometheus.get("label/__name__/values"))
    assert set(found) <= in_prometheus


def _labels(family: MetricFamily, series: str) -> frozenset[str]:
    return frozenset((*family.labels, *(["le"] if series.endswith("_bucket") else [])))


@pytest.mark.parametrize("exporter", list(Exporter))
def test_promtool_finds_no_fault_with_the_scrape(run: Run, exporter: Exporter) -> None:
    command = [run.binaries / "promtool", "check", "metrics"]
    result = subprocess.run(command, input=run.scrape(exporter), capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_dashboards_are_drawn_with_what_prometheus_knows(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the job with the real trainer; how a panel looks is for unit tests."""
    chosen = {name: BOARDS[name] for name in sweeps.sample("dashboards that are drawn", list(BOARDS))}
    # A picture ends at a whole step: what has only just begun is not in it yet.
    _until_scraped(run, f"{LAST_ANSWER} offset {2 * SCRAPES}s == 1")
    past = math.ceil(time.time() - run.since)
    place = ["--namespace", run.world.namespace, "--job", "learns", "--last", f"{past}s"]
    place += ["--scrape-interval", f"{SCRAPES}s"]
    place += [option for name in chosen for option in ("--dashboard", name)]
    assert main(["draw", "--prometheus", run.prometheus.url, "--output", str(tmp_path), *place]) == 0
    printed = capsys.readouterr()
    assert (printed.out.split(), printed.err) == ([str(tmp_path / f"{name}.png") for name in chosen], "")
    with Prometheus(run.prometheus.url) as prometheus:
        now = time.time()
        window = Window.until(now, past, SCRAPES, 360)
        given = {"namespace": run.world.namespace, "job_name": "learns"}
        reader = Reader(prometheus=prometheus, window=window, now=now, scrape_seconds=SCRAPES, given=given)
        for name, made in chosen.items():
            board = reader.read(made)
            empty = {f"{board.title}: {panel.panel.title}" for panel in board.panels if not panel.lines}
            assert empty - UNCERTAIN == {where for where in NOT_DRAWN if where.startswith(f"{board.title}:")}
            assert imread(tmp_path / f"{name}.png").shape[1] == WIDTH


def test_a_query_that_prometheus_refuses_is_named_with_its_panel(run: Run) -> None:
    panel = Panel(title="Bad", about="", queries=(("sum by (route (", ""),))
    board = Board(uid="", title="Board", about="", rows=[Row("Row", panel)])
    with Prometheus(run.prometheus.url) as prometheus:
        window = Window.until(time.time(), 60, 1, 60)
        reader = Reader(prometheus=prometheus, window=window, now=window.end, scrape_seconds=1, given={})
        with pytest.raises(ReadingError, match=re.escape(f"panel {panel.title!r}: query sum by (route (: ")) as raised:
            reader.read(board)
    assert "parse error" in str(raised.value)


@pytest.mark.timeout(900)
def test_many_jobs_leave_nothing_behind(run: Run) -> None:
    """After the others: it deletes their jobs."""
    _delete_all(run)
    _make(run, 3)  # whatever happens to jobs like these has happened once
    _delete_all(run)
    before = run.samples()
    _make(run, MANY)
    _delete_all(run)

    # The operator hears of the last deletions a moment after the API server has done them.
    def without_jobs() -> set[Sample] | None:
        found = run.samples()
        return None if any("job_name" in dict(labels) for _, labels in found) else found

    after = run.world.until("no series is of a job", without_jobs, PATIENCE)
    assert {sample for sample in after ^ before if sample[0] not in BOUNDED} == set()
    for name, labels in after:
        for label, value in labels:
            if name in BOUNDED:
                assert value in BOUNDED[name][label], f"{name}: {label} {value} is none of a few"
    _until_scraped(run, 'absent({job_name!=""})')


def _make(run: Run, count: int) -> None:
    for number in range(count):
        run.world.jobs.make(f"many-{number}")
    _until_scraped(run, f"count(espalier_job_info) == {count}")
    _until_scraped(run, 'sum(espalier_jobs{phase="Running"}) == 2')
    _until_scraped(run, f"sum(espalier_jobs_waiting) == {count} - 2", 3 * PATIENCE)  # a status for each of them


def _delete_all(run: Run) -> None:
    run.world.server.request("DELETE", run.world.jobs.path)
    _until_scraped(run, "absent(espalier_job_info)")
    run.world.until("all pods are gone", lambda: not run.world.kubelet.pods(run.world.namespace), PATIENCE)
    _until_scraped(run, 'absent(espalier_gpus{state!~"free|unavailable"})')
