"""Programs on a cluster: their pods, what ends them, and how their progress is read over real HTTP."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from api_stub import Handler, serving
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Metric
from espalier_core.types.status import JobStatus
from espalier_operator.job.conditions import Observed, status_of
from espalier_operator.job.state import JobState
from espalier_operator.job.view import facts_of, memory_of, utc
from espalier_operator.kube.apply.steps import DeletePod, steps
from espalier_operator.kube.client import ApiRefusalError, KubeClient
from espalier_operator.kube.objects.manifests import owned_objects
from espalier_operator.kube.objects.pods import parse_pod
from espalier_operator.kube.objects.worker_pod import worker_pod
from espalier_operator.kube.progress import LOG_BYTES, STARTED_A_TICK, ProgressReader
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.state.progress import ProgramProgress, ProgressSource, source_of
from espalier_operator.kube.state.workers import observation_of, sort_pods
from espalier_operator.model import NOWHERE, Stopping, WorkerRole
from espalier_operator.programs import MAX_PAGE_BYTES, ProgramReading
from operator_world.kube_known import Clock
from operator_world.kube_objects import EPOCH, GPU, kube_job, raw_worker, terminated

SETTINGS = KubeSettings()
LOG = {"progress": {"log": {"pattern": "step (?P<step>[0-9]+)"}}}
PAGES = {"progress": {"metrics": {"port": 8000, "series": {"step": "steps"}}, "steps": 10}}
TEMPLATE = {
    "spec": {"containers": [{"command": ["sh"], "resources": {"limits": {GPU: 1}}}], "terminationGracePeriodSeconds": 7}
}
ADDRESSES = {"podIP": "10.0.0.5", "hostIP": "192.168.0.1"}


def program(program: Any = LOG, workers: int = 1) -> Any:
    spec = {"program": program, "template": TEMPLATE, "minReplicas": workers, "maxReplicas": workers}
    return kube_job("one", spec)


# ---- pods


def test_a_program_gets_what_it_needs_and_no_rights() -> None:
    job = program(workers=2)
    assert [each["kind"] for each in owned_objects(job)] == ["Service", "ServiceAccount"]
    pod = worker_pod(job, JobStatus(), WorkerRole.BASE, 1, 0, replace(SETTINGS, agent_url="http://agent"))
    variables = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
    assert variables["ESPALIER_WORKERS"] == "2"
    assert variables["ESPALIER_WORKER_INDEX"] == "1"
    assert variables["ESPALIER_LEADER"].endswith(".one")
    assert variables["ESPALIER_CHECKPOINT_DIR"] == "/checkpoints"
    leader = worker_pod(job, JobStatus(), WorkerRole.BASE, 0, 0, replace(SETTINGS, agent_url="http://agent"))
    assert leader["spec"]["automountServiceAccountToken"] is False
    assert "ports" not in leader["spec"]["containers"][0]
    volumes = {each["name"] for each in leader["spec"]["volumes"]}
    assert volumes == {"espalier-contract", "espalier-checkpoints", "espalier-tmp"}, "no token"


def test_terms_of_a_program() -> None:
    terms = program().terms
    assert (terms.program, terms.adapts, terms.grace_seconds) == (True, False, 7)


@pytest.mark.parametrize(
    ("probe", "ready", "expected"), [(None, False, True), ({"exec": {}}, False, False), ({"exec": {}}, True, True)]
)
def test_a_leader_with_a_readiness_probe_trains_once_it_succeeds(probe: Any, ready: bool, expected: bool) -> None:
    job = program()
    raw = raw_worker(job, uid="leader", **ADDRESSES)
    raw["status"]["containerStatuses"][0]["ready"] = ready
    if probe is not None:
        raw["spec"]["containers"][0]["readinessProbe"] = probe
    pod = parse_pod(raw, SETTINGS)
    assert (pod.ready, pod.address, pod.container) == (expected, "10.0.0.5", "trainer")
    seen = observation_of(sort_pods(job, JobState(attempts=(0,)), [pod]), None, program=True)
    assert seen.fresh is expected


def test_a_pod_on_the_network_of_its_node_has_no_address_of_its_own() -> None:
    assert parse_pod(raw_worker(program(), podIP="10.0.0.5", hostIP="10.0.0.5"), SETTINGS).address == ""


def test_to_stop_a_program_is_to_delete_all_its_pods() -> None:
    job = program(workers=2)
    state = JobState(
        admitted_at=EPOCH,
        attempts=(0, 0),
        incarnations=("a", "b"),
        stopping=Stopping(reason=Reason.SUSPENDED, deadline=EPOCH + 7),
    )
    pods = [parse_pod(raw_worker(job, index, uid=uid), SETTINGS) for index, uid in enumerate("ab")]
    status = memory_of(state, job.terms)
    taken = steps(job, state, sort_pods(job, state, pods), NOWHERE, status, EPOCH + 1, SETTINGS)
    assert [step.pod.uid for step in taken if isinstance(step, DeletePod)] == ["a", "b"]
    assert len(taken) == 2


# ---- what is read, and what becomes of it


def leader(job: Any, **changes: Any) -> Any:
    return parse_pod(raw_worker(job, uid="leader", **ADDRESSES, **changes), SETTINGS)


def test_where_progress_is_read() -> None:
    job, pages = program(), program(PAGES)
    running, ended = leader(job), leader(job, phase="Succeeded", state=terminated(0))
    source = source_of(job, running)
    assert (source.leader.name, source.leader.container, source.leader.done) == ("one-base-0-0", "trainer", False)
    last = source_of(job, ended)
    assert last.leader.done
    assert source_of(pages, running) is not None
    assert source_of(pages, ended) is None, "nobody serves metrics any more"
    assert source_of(pages, replace(running, address="")) is None, "the node is not asked"
    assert source_of(program({}), running) is None
    assert source_of(job, None) is None
    assert source_of(job, replace(running, started_at=None)) is None


def test_the_end_is_unread_until_it_was_read_and_what_was_read_stays() -> None:
    job = program()
    progress, running = ProgramProgress(None), source_of(job, leader(job))
    ended = source_of(job, leader(job, phase="Succeeded", state=terminated(0)))
    progress.take(running, {"step": 3.0}, EPOCH)
    assert not progress.is_unread(running)
    assert progress.is_unread(ended)
    progress.take(ended, {}, EPOCH + 5)
    assert not progress.is_unread(ended)
    assert (progress.reading, progress.read_at) == (ProgramReading({"step": 3.0}), utc(EPOCH))


def test_the_status_of_a_program() -> None:
    job = program()
    state = JobState(admitted_at=EPOCH, used_seconds=25.0, attempts=(0,), incarnations=("leader",))
    seen = observation_of(sort_pods(job, state, [leader(job)]), None, program=True)
    facts = facts_of("ns/one", state, seen, job.terms, EPOCH, SETTINGS.timing, done=0.3)
    before = status_of(facts, state, Observed(), None, utc(EPOCH))
    assert (before.training.progress_percentage, before.training.done_percentage) == (25, None)
    said = Observed(reading=ProgramReading({"step": 3.0, "steps": 10.0, "loss": 0.5}), read_at=utc(EPOCH + 1))
    status = status_of(facts, state, said, before, utc(EPOCH + 1))
    assert (status.training.step, status.training.done_percentage, status.phase) == (3, 30, "Running")
    assert status.training.metrics == (Metric(name="loss", value=0.5),)
    after = status_of(facts, state, Observed(), status, utc(EPOCH + 2))
    assert after.training == status.training, "an operator that starts has not read it yet"
    assert ProgramProgress(after).done == 0.3


# ---- reading, over HTTP


def source(spec: Any, pod: str = "leader", *, ended: bool = False) -> ProgressSource:
    """Return a source on this machine."""
    phase = "Succeeded" if ended else "Running"
    there = replace(leader(program()), uid=pod, name=pod, address="127.0.0.1", phase=phase)
    return ProgressSource(job="uid", leader=there, spec=spec)


async def read_once(handler: Handler, given: Any, *, ended: bool = False) -> list[Mapping[str, float] | None]:
    """Let a reader read one source until it has an answer; return what it got."""
    taken: list[Mapping[str, float] | None] = []
    done = asyncio.Event()
    async with serving(handler) as (api, port):
        spec = program({"progress": given(port)}).job.spec.program.progress

        def take(_: ProgressSource, values: Mapping[str, float] | None) -> None:
            taken.append(values)
            done.set()

        reading = asyncio.create_task(
            ProgressReader(KubeClient(api), Clock(), lambda: [source(spec, ended=ended)], take).run()
        )
        async with asyncio.timeout(20):
            await done.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    return taken


def log_of(port: int) -> Any:
    return LOG["progress"]


def pages_of(port: int) -> Any:
    return {"metrics": {"port": port, "path": "/stats", "series": {"step": "steps"}}}


def kubelet(written: list[str], asked: list[dict[str, str]]) -> Handler:
    """Answer as a kubelet: the newest entries of a log, and of these the oldest bytes up to the limit."""

    async def answer(request: web.Request) -> web.Response:
        assert request.path == "/api/v1/namespaces/ns/pods/leader/log"
        asked.append(dict(request.query))
        tail = "".join(written[-int(request.query["tailLines"]) :])
        return web.Response(text=tail[: int(request.query["limitBytes"])])

    return answer


def test_that_a_log_may_not_be_read_is_known_until_it_is_read() -> None:
    progress, running = ProgramProgress(None), source(program(LOG).job.spec.program.progress)
    found: list[bool] = []
    for values in ({}, None, {}, {"step": 1.0}):
        progress.take(running, values, 1.0)
        found.append(progress.is_forbidden)
    assert found == [False, True, False, False]


async def test_the_newest_lines_of_a_log_are_read() -> None:
    asked: list[dict[str, str]] = []
    lines = [f"step {number}\n" for number in range(1000)]
    assert await read_once(kubelet(lines, asked), log_of) == [{"step": 999.0}]
    assert asked == [{"container": "trainer", "tailLines": "100", "limitBytes": str(LOG_BYTES)}]


@pytest.mark.parametrize(
    "entry",
    [f"{'x' * 900} step {{}}\n", f"{'x' * 3000} step {{}}\n", "\rstep {}" + "\rstep 1" * 2000 + "\rstep {}"],
    ids=["long lines", "longer lines", "a progress bar"],
)
async def test_the_newest_lines_are_read_where_a_hundred_are_too_many_bytes(entry: str) -> None:
    """The limit of bytes cuts off the newest: values were of some of a hundred lines ago, also at a program's end."""
    asked: list[dict[str, str]] = []
    written = [entry.replace("{}", str(number)) for number in range(1000)]
    assert await read_once(kubelet(written, asked), log_of, ended=True) == [{"step": 999.0}]
    assert len(asked) <= 3


async def test_a_number_that_is_cut_off_is_not_read() -> None:
    asked: list[dict[str, str]] = []
    end = "x" * (LOG_BYTES - len("step 1\r") - len("step 12")) + "step 1234\r"
    assert await read_once(kubelet(["step 1\r" + end], asked), log_of) == [{"step": 1.0}]
    assert [each["tailLines"] for each in asked] == ["100", "1"]


@pytest.mark.parametrize("code", [400, 403, 404, 500])
async def test_a_log_that_cannot_be_read_is_no_reading_and_asked_for_once(code: int) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"kind": "Status", "message": "no"}, status=code)

    assert await read_once(answer, log_of, ended=True) == [None if code == 403 else {}]
    assert len(asked) == 1


async def test_a_page_of_metrics_is_read_up_to_its_limit() -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.path == "/stats"
        assert "Authorization" not in request.headers
        return web.Response(body=b"steps 3\n" + b"# x\n" * MAX_PAGE_BYTES + b"steps 9\n")

    assert await read_once(answer, pages_of) == [{"step": 3.0}]


async def test_a_page_that_is_elsewhere_or_compressed_is_not_read() -> None:
    async def moved(request: web.Request) -> web.Response:
        if request.path == "/stats":
            raise web.HTTPFound("/other")
        return web.Response(text="steps 3\n")

    async def compressed(request: web.Request) -> web.Response:
        return web.Response(body=gzip.compress(b"steps 3\n"), headers={"Content-Encoding": "gzip"})

    assert await read_once(moved, pages_of) == [{}]
    assert await read_once(compressed, pages_of) == [{}]


async def test_a_log_is_refused_with_the_words_of_the_server() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "message": "forbidden"}, status=403)

    async with serving(answer) as (api, _):
        with pytest.raises(ApiRefusalError, match="403"):
            await KubeClient(api).log("ns", "pod", "trainer", lines=1, limit=10)


async def test_many_programs_take_turns_those_that_have_ended_first() -> None:
    read: list[str] = []
    counts: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="step 1")

    spec, clock = program().job.spec.program.progress, Clock()
    sources = [source(spec, f"pod-{number}", ended=number == 24) for number in range(25)]
    async with serving(answer) as (api, _):
        taken = lambda each, values: read.append(each.leader.uid)  # noqa: E731
        reader = ProgressReader(KubeClient(api), clock, lambda: sources, taken)
        for _ in range(4):
            reader.start_due(None)  # no metrics here
            await asyncio.gather(*reader._reads.values())
            counts.append(len(read))
            clock.time += 1
    assert counts == [STARTED_A_TICK, 2 * STARTED_A_TICK, 25, 25]
    assert "pod-24" in read[:STARTED_A_TICK]
    assert len(set(read)) == 25, "each once"
