"""Decisions and their outcomes: what is kept, what is lost and counted, and the command that counts them."""

from __future__ import annotations

import json
import logging
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bodies import ask
from click.testing import CliRunner
from jobs_world import PATIENCE, locked, outcome, storing

from espalier_agent.commands.agent import agent
from espalier_agent.data import named_architecture
from espalier_agent.history import decisions
from espalier_agent.history.schema import DecisionRecord, ShadowRecord, StoreError
from espalier_agent.history.store import NotStoredError, OutcomeStore
from espalier_agent.policies.advice import PolicyDecision, decide
from espalier_agent.policies.policy import Policy
from espalier_core.types.advice import MAX_DECISION_IDS, Action, ActionProbability, PolicyVersion
from espalier_core.types.allocation import Allocation
from waiting import until

WRITER = Path(__file__).with_name("outcome_writer.py")

Open = Callable[..., OutcomeStore]


def rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def reported(path: Path) -> set[str]:
    return {name for (name,) in rows(path, "SELECT decision_id FROM outcomes")}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "outcomes.db"


@pytest.fixture
def stored() -> Counter[str]:
    """Return what the stores of this test say that they stored."""
    return Counter()


@pytest.fixture
def lost() -> Counter[str]:
    """Return what the stores of this test say that they lost, by what went wrong."""
    return Counter()


@pytest.fixture
def open_store(path: Path, stored: Counter[str], lost: Counter[str]) -> Iterator[Open]:
    """Return a function that opens and starts a store, closed afterwards."""
    opened = []

    def store(file: Path = path, **options: Any) -> OutcomeStore:
        made = OutcomeStore(
            file,
            stored=lambda kind, amount: stored.update({kind: amount}),
            lost=lambda error, amount: lost.update({error: amount}),
            **options,
        )
        made.start()
        opened.append(made)
        return made

    yield store
    for made in opened:
        made.close(PATIENCE)


def record(policy: Policy, name: str = "d", **changes: Any) -> DecisionRecord:
    allowed = (Action.deepen("block1"), Action.nothing())
    fields = {"time_budget_seconds": 400.0, "allowed_actions": allowed, **changes}
    allocation = Allocation(generation=2, replicas=3, gpus=4)
    request = ask(named_architecture("cnn1"), 330.0, allocation=allocation, **fields)
    return DecisionRecord(name, datetime.now(UTC), request, decide(policy, request), policy.identity)


def test_a_decision_and_its_outcome_are_read_back_whole(
    open_store: Open, path: Path, policy: Policy, stored: Counter[str]
) -> None:
    store = open_store()
    kept = record(policy)
    other = PolicyVersion(name="other", version="2")
    store.keep(kept, 100)
    store.keep(ShadowRecord("d", datetime.now(UTC), kept.decision, other, agreed=True), 10)
    store.keep(record(policy, "unfinished"), 100)
    assert store.report(outcome("d", "of-another-replica", accuracy=0.75)).result(PATIENCE) == 2
    finished, unfinished = decisions(path)
    assert (finished.decision_id, finished.job, finished.final_accuracy) == ("d", "job", 0.75)
    assert finished.architecture == kept.request.architecture
    assert (finished.time_left_seconds, finished.time_budget_seconds) == (330.0, 400.0)
    assert finished.allocation == kept.request.allocation
    assert finished.progress == kept.request.progress
    assert finished.actions == (Action.deepen("block1"), Action.nothing())
    assert finished.probabilities == tuple(entry.probability for entry in kept.decision.probabilities)
    assert finished.action == kept.decision.action
    assert finished.policy == policy.identity
    assert finished.behaviour_probability == 1.0
    assert [(shadow.policy, shadow.agreed) for shadow in finished.shadows] == [(other, True)]
    assert abs((finished.time - kept.time).total_seconds()) < 0.001
    assert unfinished.final_accuracy is None
    assert unfinished.shadows == ()
    assert rows(path, "SELECT count(*) FROM architectures") == [(1,)]
    store.close(PATIENCE)
    assert stored == {"decision": 2, "shadow": 1, "outcome": 1}


def test_a_report_that_comes_again_changes_nothing_and_a_later_one_holds(open_store: Open, path: Path) -> None:
    store = open_store()
    for accuracy in (0.5, 0.5, 0.6):
        store.report(outcome("a", "b", "a", accuracy=accuracy)).result(PATIENCE)
    assert rows(path, "SELECT decision_id, final_accuracy FROM outcomes") == [("a", 0.6), ("b", 0.6)]


def test_advice_and_outcome_are_joined_over_the_files_of_replicas(
    open_store: Open, tmp_path: Path, policy: Policy
) -> None:
    one, two = open_store(tmp_path / "one.db"), open_store(tmp_path / "two.db")
    one.keep(record(policy), 1)
    one.report(outcome("d", accuracy=0.1)).result(PATIENCE)
    two.report(outcome("d", accuracy=0.9)).result(PATIENCE)
    assert [each.final_accuracy for each in decisions(tmp_path)] == [0.9]


def test_what_was_committed_survives_a_kill_in_the_middle_of_writing(path: Path) -> None:
    committed: list[str] = []
    for attempt, after in enumerate((1, 40, 200)):
        writer = subprocess.Popen(
            [sys.executable, str(WRITER), str(path), f"writer{attempt}", "1000000"], stdout=subprocess.PIPE, text=True
        )
        committed += [writer.stdout.readline().strip() for _ in range(after)]
        writer.send_signal(signal.SIGKILL)
        committed += writer.communicate(timeout=PATIENCE)[0].split()
        assert writer.returncode == -signal.SIGKILL
    assert len(committed) >= 241
    assert set(committed) <= reported(path)
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


def test_two_services_share_a_file(path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, str(WRITER), str(path), name, "300"], stdout=subprocess.PIPE, text=True)
        for name in ("one", "two")
    ]
    printed = {name for writer in writers for name in writer.communicate(timeout=2 * PATIENCE)[0].split()}
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(printed) == 600
    assert reported(path) == printed


def test_a_disk_that_is_full_loses_what_comes_and_keeps_what_is_there(
    open_store: Open, path: Path, lost: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(max_bytes=64 * 1024)
    faults = [store.report(outcome(*(f"{n}-{part}" for part in range(100)))).exception(PATIENCE) for n in range(20)]
    kept = faults.count(None)
    assert 1 <= kept < 20
    assert faults[:kept] == [None] * kept
    assert {str(fault) for fault in faults[kept:]} == {"database or disk is full"}
    assert lost == {"Full": 20 - kept}
    assert caplog.text.count("not stored in") == 1, "said once a minute"
    assert len(reported(path)) == 100 * kept
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_write_that_the_system_refuses_is_survived(path: Path) -> None:
    """A limit on the size of files, as a quota: the kernel refuses the write itself."""
    limited = subprocess.run(
        [sys.executable, "-B", str(WRITER), str(path), "limited", "100000"],  # a .pyc would be cut, too
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)),
    )
    assert limited.returncode == 1
    assert "NotStoredError" in limited.stderr
    assert "Advice continues" in limited.stderr
    committed = set(limited.stdout.split())
    assert committed
    assert committed <= reported(path)
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_folder_that_cannot_be_made_is_counted_and_used_once_it_can(
    open_store: Open, path: Path, lost: Counter[str]
) -> None:
    path.parent.write_text("in the way")
    store = open_store()
    with pytest.raises(NotStoredError, match="File exists"):
        store.report(outcome("a")).result(PATIENCE)
    assert lost == {"Unwritable": 1}
    path.parent.unlink()
    assert store.report(outcome("a")).result(PATIENCE) == 1


def test_a_folder_that_is_read_only_is_counted(open_store: Open, lost: Counter[str]) -> None:
    # There nobody makes a file, root included.
    with pytest.raises(NotStoredError, match="unable to open"):
        open_store(Path("/proc/outcomes.db")).report(outcome("a")).result(PATIENCE)
    assert lost == {"Unwritable": 1}


def test_a_locked_database_loses_what_waits_too_long(open_store: Open, path: Path, lost: Counter[str]) -> None:
    store = open_store(lock_seconds=0.1)
    store.report(outcome("a")).result(PATIENCE)
    with locked(path), pytest.raises(NotStoredError, match="locked"):
        store.report(outcome("b")).result(PATIENCE)
    assert store.report(outcome("c")).result(PATIENCE) == 1
    assert lost == {"Locked": 1}
    assert reported(path) == {"a", "c"}


@pytest.mark.parametrize("damage", ["no database", "a page of it"])
def test_a_damaged_database_is_set_aside_and_a_new_one_begun(
    open_store: Open, path: Path, lost: Counter[str], caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    if damage == "no database":
        path.parent.mkdir()
        content = b"this is not a database at all" * 1000
    else:
        before = open_store()
        for part in range(2):
            before.report(outcome(*(f"before-{part}-{number}" for number in range(1000)))).result(PATIENCE)
        before.close(PATIENCE)
        healthy = path.read_bytes()
        # The head stays, so that it looks like a database.
        content = healthy[:4096] + b"\xff" * (len(healthy) - 4096)
    path.write_bytes(content)
    caplog.set_level(logging.ERROR)
    store = open_store()
    with pytest.raises(NotStoredError, match="a new one is begun"):
        store.report(outcome("first")).result(PATIENCE)
    assert store.report(outcome("second")).result(PATIENCE) == 1
    (aside,) = path.parent.glob("outcomes.db.damaged-*[0-9]")
    assert aside.read_bytes() == content
    assert f"is damaged; renamed it to {aside.name}" in caplog.text
    assert reported(path) == {"second"}
    assert lost == {"Damaged": 1}


def test_a_database_that_is_taken_away_is_begun_again(open_store: Open, path: Path) -> None:
    store = open_store()
    store.report(outcome("a")).result(PATIENCE)
    path.rename(path.with_name("kept.db"))
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).rename(path.with_name("kept.db" + suffix))
    store.report(outcome("b")).result(PATIENCE)
    assert reported(path) == {"b"}
    assert reported(path.with_name("kept.db")) == {"a"}


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("PRAGMA user_version = 4", "of a newer Espalier .*move the file away"),
        ("PRAGMA user_version = 0", "of an older Espalier .*move the file away"),
        ("PRAGMA application_id = 7", "a database of another program; name another file"),
    ],
)
def test_a_file_of_another_version_or_program_is_refused(
    open_store: Open, path: Path, statement: str, message: str
) -> None:
    store = open_store()
    store.report(outcome("a")).result(PATIENCE)
    store.close(PATIENCE)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
    content = path.read_bytes()
    with pytest.raises(StoreError, match=message):
        OutcomeStore(path)
    with pytest.raises(StoreError, match=message):
        next(decisions(path))
    assert path.read_bytes() == content


def test_whoever_keeps_never_waits_and_too_much_is_counted(
    open_store: Open, path: Path, policy: Policy, lost: Counter[str], stored: Counter[str]
) -> None:
    store = open_store(lock_seconds=PATIENCE)
    store.report(outcome("first")).result(PATIENCE)
    with locked(path):
        waits = record(policy, "waits")
        for _ in range(4000):
            store.keep(waits, 100)
        too_large = 100 * 1024 * 1024
        store.keep(waits, too_large)
        assert lost["QueueFull"] >= 1801
    store.close(PATIENCE)
    assert stored["decision"] + lost["QueueFull"] == 4001


def test_reports_that_wait_weigh_by_their_ids_however_short(open_store: Open, path: Path, lost: Counter[str]) -> None:
    store = open_store(lock_seconds=PATIENCE)
    store.report(outcome("first")).result(PATIENCE)
    most = outcome(*[""] * MAX_DECISION_IDS)
    with locked(path):
        for _ in range(600):
            store.report(most)
        # A batch of two hundred may have been taken before the weight was reached.
        assert lost["QueueFull"] >= 200


def test_a_report_that_nobody_waits_for_any_more_is_stored(open_store: Open, path: Path) -> None:
    store = open_store(lock_seconds=PATIENCE)
    store.report(outcome("a")).result(PATIENCE)
    with locked(path):
        left = [store.report(outcome(name)) for name in ("b", "c")]
        for committed in left:
            committed.cancel()
    assert store.report(outcome("d")).result(PATIENCE) == 1
    assert reported(path) == {"a", "b", "c", "d"}


def test_a_record_that_the_database_cannot_take_does_not_end_the_thread_that_stores(
    open_store: Open, path: Path, policy: Policy, lost: Counter[str]
) -> None:
    store = open_store()
    kept = record(policy)
    # SQLite's integers have 64 bits; sqlite3 raises what is no error of its own.
    store.keep(replace(kept, request=kept.request.model_copy(update={"batch_size": 2**63})), 100)
    until(lost.total)
    assert store.report(outcome("after")).result(PATIENCE) == 1
    assert reported(path) == {"after"}
    assert lost == {"Unwritable": 1}


def test_many_threads_may_keep_at_once(open_store: Open, path: Path, policy: Policy) -> None:
    store = open_store()
    made = [record(policy, f"d{number}") for number in range(200)]
    threads = [
        threading.Thread(target=lambda part=part: [store.keep(each, 1) for each in made[part::4]]) for part in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close(PATIENCE)
    assert {each.decision_id for each in decisions(path)} == {f"d{number}" for number in range(200)}


def test_history_names_a_file_that_is_missing_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"missing\.db: no such file"):
        next(decisions(tmp_path / "missing.db"))
    with pytest.raises(StoreError, match=r"has no \*\.db in it"):
        next(decisions(tmp_path))
    damaged = tmp_path / "damaged.db"
    damaged.write_text("not a database" * 100)
    with pytest.raises(StoreError, match=r"damaged\.db: cannot be read \(file is not a database\)"):
        next(decisions(damaged))


OLD, NEW = PolicyVersion(name="mine", version="1"), PolicyVersion(name="mine", version="2")
DEEPEN, NOTHING = Action.deepen("block0"), Action.nothing()


def decided(action: Action) -> PolicyDecision:
    probabilities = tuple(
        ActionProbability(action=each, probability=0.75 if each == action else 0.25) for each in (DEEPEN, NOTHING)
    )
    return PolicyDecision(action=action, probabilities=probabilities, unknown_layers=0)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Return a database with three decisions of one version, two of them reported and shadowed, and one of another."""
    path = tmp_path / "outcomes.db"
    request = ask(named_architecture("cnn1"), allowed_actions=(DEEPEN,))
    now = datetime.now(UTC)
    with storing(path) as store:
        for name, action, policy in (("a", DEEPEN, OLD), ("b", NOTHING, OLD), ("c", DEEPEN, OLD), ("d", NOTHING, NEW)):
            store.keep(DecisionRecord(name, now, request, decided(action), policy), 1)
        for name, action, agreed in (("a", DEEPEN, True), ("b", DEEPEN, False)):
            store.keep(ShadowRecord(name, now, decided(action), NEW, agreed), 1)
        for name, accuracy in (("a", 0.5), ("b", 0.8)):
            store.report(outcome(name, accuracy=accuracy)).result(PATIENCE)
    return path


def test_decisions_are_counted_by_policy_and_version(database: Path) -> None:
    result = CliRunner().invoke(agent, ["outcomes", "--db", str(database), "--json"])
    assert result.exit_code == 0
    none = {"policy": "mine", "deepened": 0, "widened": 0, "extended": 0}
    first = {"version": "1", "decisions": 3, "deepened": 2, "outcomes": 2, "shadowed": 2, "agreement": 0.5}
    second = {"version": "2", "decisions": 1, "outcomes": 0, "meanAccuracy": None, "shadowed": 0, "agreement": None}
    assert json.loads(result.stdout) == {
        "policies": [{**none, **first, "meanAccuracy": pytest.approx(0.65)}, {**none, **second}]
    }


def test_people_get_a_table(database: Path) -> None:
    result = CliRunner().invoke(agent, ["outcomes", "--db", str(database.parent)])
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["policy", "decisions", "deepened", "widened", "extended", "outcomes", "accuracy", "agreement"],
        ["mine@1", "3", "2", "0", "0", "2", "0.6500", "0.5000"],
        ["mine@2", "1", "0", "0", "0", "0", "-", "-"],
    ]


def test_what_is_no_database_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("text" * 1000)
    for source, message in ((tmp_path / "text.db", "file is not a database"), (tmp_path / "none", "no such file")):
        result = CliRunner().invoke(agent, ["outcomes", "--db", str(source)])
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error: {source}: ")
        assert message in result.stderr


def test_the_old_option_names_the_new_one() -> None:
    result = CliRunner().invoke(agent, ["serve", "--outcomes-file", "x.jsonl"])
    assert result.exit_code == 2
    assert "use --outcomes-db FILE" in result.stderr
