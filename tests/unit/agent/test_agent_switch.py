"""A new policy put to work while the service runs, and one that only says what it would have done."""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from bodies import ask
from jobs_world import locked, outcome

from espalier_agent.data import named_architecture
from espalier_agent.history import decisions
from espalier_agent.policies.advice import decide
from espalier_agent.policies.network import PolicyNetwork
from espalier_agent.policies.policy import Policy, PolicyError, make_policy, save_policy
from espalier_agent.service.app import create_app
from espalier_agent.service.serving import PolicyWatch, ServiceSettings, Serving
from espalier_core.files.reloading import Signature
from espalier_core.metrics import Exporter, Metrics
from espalier_core.types.advice import AdviceResponse
from waiting import PATIENCE, until

LOOK = 0.05
QUESTIONS = [ask(named_architecture("cnn1"), float(left), time_budget_seconds=400.0) for left in range(10, 400, 30)]


@pytest.fixture
def other(policy: Policy) -> Policy:
    """Return a policy that nobody taught, of the shape of the shipped one."""
    network = PolicyNetwork.seeded(policy.network.config, seed=7)
    return make_policy("other", network, policy.vocabulary, policy.lineage)


@pytest.fixture
def folder(policy: Policy, tmp_path: Path) -> Path:
    made = tmp_path / "policy"
    save_policy(policy, made)
    return made


@contextmanager
def served(settings: ServiceSettings) -> Iterator[str]:
    """Run the service on a port of its own; give its URL."""
    config = uvicorn.Config(create_app(settings), port=0, log_config=None, lifespan="on", access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive(), "the service listens")
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)


def damage(folder: Path) -> None:
    """Cut the weights short, as a copy that broke off; at once, or a look in between would see another damage."""
    (weights,) = folder.glob("*.safetensors")
    short = folder / "short"
    short.write_bytes(weights.read_bytes()[:100])
    short.rename(weights)


def samples(url: str) -> dict[str, float]:
    lines = [line for line in httpx.get(f"{url}/metrics").text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def advised(url: str) -> float:
    return sum(value for name, value in samples(url).items() if name.startswith("espalier_agent_advice_total"))


def version(url: str) -> str:
    return str(httpx.get(f"{url}/v1/policy").json()["policy"]["version"])


def test_a_switch_under_load_gives_each_answer_by_one_policy(folder: Path, policy: Policy, other: Policy) -> None:
    expected = {
        each.identity: [[entry.probability for entry in decide(each, question).probabilities] for question in QUESTIONS]
        for each in (policy, other)
    }
    settings = ServiceSettings(policy_path=folder, policy_look_seconds=LOOK)
    stop = threading.Event()

    def load(url: str) -> list[tuple[int, AdviceResponse]]:
        answers = []
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            while not stop.is_set():
                place = len(answers) % len(QUESTIONS)
                response = client.post("/v1/advice", json=QUESTIONS[place].to_json())
                assert response.status_code == 200
                answers.append((place, AdviceResponse.model_validate(response.json())))
        return answers

    with served(settings) as url, ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(load, url) for _ in range(4)]
        try:
            until(lambda: advised(url) > 4, "the old one answers")
            save_policy(other, folder)
            until(lambda: version(url) == other.version, "the new one is in service")
            save_policy(policy, folder)
            until(lambda: version(url) == policy.version, "and the old one again")
            damage(folder)
            # Twice, if it is damaged while it is read: the next look finds other files.
            until(lambda: samples(url)["espalier_agent_policy_refusals_total"] >= 1, "a damaged one is refused")
            answered = advised(url)
            until(lambda: advised(url) > answered + 8, "answers continue")
            assert version(url) == policy.version
            save_policy(other, folder)
            until(lambda: version(url) == other.version, "a sound one comes after it")
        finally:
            stop.set()
        answers = [answer for each in loads for answer in each.result(PATIENCE)]
        shown = samples(url)
    assert shown["espalier_agent_policy_switches_total"] == 3
    info = [name for name in shown if name.startswith("espalier_agent_policy_info")]
    assert info == [f'espalier_agent_policy_info{{policy="other",version="{other.version}"}}']
    assert {answer.policy for _, answer in answers} == {policy.identity, other.identity}
    for place, answer in answers:
        probabilities = [entry.probability for entry in answer.probabilities]
        assert probabilities == expected[answer.policy][place]
        best = max(answer.probabilities, key=lambda entry: entry.probability)
        assert answer.action == best.action


def test_a_link_that_is_switched_is_noticed(tmp_path: Path, policy: Policy, other: Policy) -> None:
    """As the kubelet does it: a folder for each state, `..data` links to one, and each file links into `..data`."""
    mount = tmp_path / "mount"
    for name, each in (("..1", policy), ("..2", other)):
        save_policy(each, mount / name)
    (mount / "..data").symlink_to("..1")
    for name in os.listdir(mount / "..1"):
        (mount / name).symlink_to(Path("..data") / name)
    watch = PolicyWatch(policy, mount)
    watch.look()
    assert watch.current is policy
    for name in os.listdir(mount / "..2"):
        if not (mount / name).is_symlink():
            (mount / name).symlink_to(Path("..data") / name)
    (mount / "..data_tmp").symlink_to("..2")
    (mount / "..data_tmp").rename(mount / "..data")
    watch.look()
    assert watch.current.identity == other.identity


def no_tensor(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        path.unlink()


def another_version(folder: Path) -> None:
    text = (folder / "policy.json").read_text()
    (folder / "policy.json").write_text(text.replace('"version": 1', '"version": 2', 1))


def half_a_document(folder: Path) -> None:
    text = (folder / "policy.json").read_text()
    (folder / "policy.json").write_text(text[: len(text) // 2])


def gone(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize("harm", [damage, no_tensor, another_version, half_a_document, gone])
def test_what_cannot_be_used_is_refused_once_and_taken_when_it_is_whole(
    folder: Path, policy: Policy, other: Policy, harm: Callable[[Path], None]
) -> None:
    refused: list[PolicyError] = []
    watch = PolicyWatch(policy, folder, refused=refused.append)
    watch.look()
    save_policy(other, folder)
    harm(folder)
    for _ in range(3):
        watch.look()
    assert watch.current is policy
    assert len(refused) == 1
    assert str(folder) in str(refused[0])
    save_policy(other, folder)
    watch.look()
    assert watch.current.identity == other.identity


def test_a_folder_that_cannot_be_looked_at_is_refused_once_and_looked_at_again(
    folder: Path, policy: Policy, other: Policy
) -> None:
    """As a mount that is stale: the folder cannot even be asked whether it is one."""
    refused: list[PolicyError] = []
    watch = PolicyWatch(policy, folder, refused=refused.append)
    watch.look()
    away = folder.rename(folder.with_name("away"))
    folder.symlink_to("too-long" * 100)
    for _ in range(3):
        watch.look()
    assert watch.current is policy
    assert len(refused) == 1
    folder.unlink()
    save_policy(other, away.rename(folder))
    watch.look()
    assert watch.current.identity == other.identity


def test_a_fault_of_the_disk_does_not_end_the_watch_and_is_reported_once(
    folder: Path, policy: Policy, other: Policy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[Iterable[Path]] = []

    def stale(paths: Iterable[Path]) -> Signature:
        looks.append(paths)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    watch = PolicyWatch(policy, folder, look_seconds=0.01)
    try:
        with monkeypatch.context() as patched:
            patched.setattr("espalier_core.files.reloading.signature_of", stale)
            watch.start()
            until(lambda: len(looks) > 3, "it looked some times")
        save_policy(other, folder)
        until(lambda: watch.current.identity == other.identity, "the new one is in service")
    finally:
        watch.close(PATIENCE)
    assert caplog.text.count("cannot check") == 1


def test_a_policy_that_is_written_file_by_file_is_taken_in_the_end(
    folder: Path, tmp_path: Path, policy: Policy, other: Policy
) -> None:
    """As `cp` does it, which knows nothing of our order: the document before the weights."""
    save_policy(other, tmp_path / "other")
    watch = PolicyWatch(policy, folder)
    shutil.copy(tmp_path / "other" / "policy.json", folder)
    watch.look()
    assert watch.current is policy
    (weights,) = (tmp_path / "other").glob("*.safetensors")
    shutil.copy(weights, folder)
    watch.look()
    assert watch.current.identity == other.identity


def test_the_same_policy_written_again_is_no_switch(folder: Path, policy: Policy) -> None:
    switched: list[Any] = []
    watch = PolicyWatch(policy, folder, switched=lambda old, new: switched.append(new))
    for _ in range(2):
        save_policy(policy, folder)
        watch.look()
    assert watch.current is policy
    assert switched == []


def test_a_policy_is_tried_before_it_is_put_to_work(
    folder: Path, policy: Policy, other: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such kernel")

    watch = PolicyWatch(policy, folder)
    save_policy(other, folder)
    monkeypatch.setattr("espalier_agent.service.serving.decide", broken)
    watch.look()
    assert watch.current is policy


def test_a_shadow_says_what_it_would_have_done_and_changes_nothing(
    folder: Path, tmp_path: Path, policy: Policy, other: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "espalier_agent.service.serving")
    save_policy(other, tmp_path / "shadow")
    path = tmp_path / "outcomes.db"
    settings = ServiceSettings(policy_path=folder, shadow_path=tmp_path / "shadow", outcomes_path=path)
    with served(settings) as url:
        answers = [
            AdviceResponse.model_validate(httpx.post(f"{url}/v1/advice", json=question.to_json()).json())
            for question in QUESTIONS
        ]
        stored = 'espalier_agent_records_total{record="shadow"}'
        until(lambda: samples(url).get(stored, 0) == len(QUESTIONS), "all are stored")
        shown = samples(url)
        described = httpx.get(f"{url}/v1/policy").json()
    assert described["policy"]["name"] == policy.name
    assert described["shadow"] == {"name": "other", "version": other.version}
    kept = {decision.decision_id: decision for decision in decisions(path)}
    agreements = []
    for question, answer in zip(QUESTIONS, answers, strict=True):
        assert answer.action == decide(policy, question).action
        would = decide(other, question)
        (shadow,) = kept[answer.decision_id].shadows
        assert (shadow.policy, shadow.action) == (other.identity, would.action)
        assert shadow.probabilities == tuple(entry.probability for entry in would.probabilities)
        assert shadow.agreed == (would.action == answer.action)
        agreements.append(shadow.agreed)
    for agreed, name in ((True, "yes"), (False, "no")):
        series = f'espalier_agent_shadow_total{{agreed="{name}"}}'
        assert shown.get(series, 0) == agreements.count(agreed)
    assert len(re.findall(r"shadow of decision \S+: other@", caplog.text)) == len(QUESTIONS)


def test_a_shadow_that_fails_or_falls_behind_is_counted_and_answers_go_on(
    folder: Path, tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_policy(policy, tmp_path / "shadow")
    settings = ServiceSettings(policy_path=folder, shadow_path=tmp_path / "shadow")

    def broken(*_: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("espalier_agent.service.serving.decide", broken)
    with served(settings) as url:
        statuses = {httpx.post(f"{url}/v1/advice", json=question.to_json()).status_code for question in QUESTIONS}
        lost = 'espalier_agent_records_lost_total{error="NotAsked"}'
        until(lambda: samples(url).get(lost, 0) == len(QUESTIONS), "all are counted")
    assert statuses == {200}


def test_a_shadow_that_cannot_be_read_ends_start_up(tmp_path: Path, policy: Policy) -> None:
    with pytest.raises(PolicyError, match=r"none/policy\.json: cannot be read"):
        Serving(ServiceSettings(shadow_path=tmp_path / "none"), policy, Metrics(Exporter.AGENT))


def test_all_that_hangs_has_one_time_to_end(
    folder: Path, tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both watches read from a disk that does not answer, the shadow thinks, the database is locked."""
    goes_on, hanging = threading.Event(), threading.Semaphore(0)
    ended: list[bool] = []

    def hangs(*_: object) -> None:
        hanging.release()
        ended.append(goes_on.wait(PATIENCE))
        raise PolicyError("of no use any more")

    monkeypatch.setattr("espalier_agent.service.serving.END_SECONDS", 1.0)
    path = tmp_path / "outcomes.db"
    serving = Serving(
        ServiceSettings(policy_path=folder, shadow_path=folder, outcomes_path=path), policy, Metrics(Exporter.AGENT)
    )
    for name in ("load_policy", "decide"):
        monkeypatch.setattr(f"espalier_agent.service.serving.{name}", hangs)
    serving.start()
    try:
        serving.store.report(outcome("a")).result(PATIENCE)
        with locked(path):
            serving.decided("a", QUESTIONS[0], decide(policy, QUESTIONS[0]), policy.identity, 1)
            for _ in range(3):
                assert hanging.acquire(timeout=PATIENCE)
            serving.close()
            assert not ended, "it waited for what hangs"
    finally:
        goes_on.set()
        serving.close()
