"""Snapshots survive the way to a file and back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sweeps
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_operator.model import (
    JobFacts,
    JobTerms,
    Node,
    Promise,
    Rules,
    Snapshot,
    SnapshotError,
    Worker,
    WorkerRole,
)
from espalier_operator.planner import plan
from espalier_operator.policies.fair import FairPolicy

finite = st.floats(allow_nan=False, allow_infinity=False)
st.register_type_strategy(float, finite)
snapshots = st.builds(
    Snapshot,
    nodes=st.lists(st.builds(Node), max_size=3).map(tuple),
    workers=st.lists(st.builds(Worker), max_size=3).map(tuple),
    promises=st.lists(st.builds(Promise), max_size=3).map(tuple),
    jobs=st.lists(st.builds(JobFacts), max_size=3).map(tuple),
)


@settings(max_examples=sweeps.examples(100))
@given(snapshots)
def test_json_loses_nothing(snapshot):
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


def test_a_replayed_snapshot_gives_the_same_plan(job_of):
    jobs = tuple(
        JobFacts(key=f"ns/{n}", terms=JobTerms(min_replicas=1, max_replicas=2, time_budget_seconds=9), submitted_at=n)
        for n in range(3)
    )
    snapshot = Snapshot(taken_at=5.0, nodes=(Node(name="n", gpu_type="a", allocatable=2),), jobs=jobs)
    again = Snapshot.from_json(snapshot.to_json())
    assert plan(again, FairPolicy(), 5.0) == plan(snapshot, FairPolicy(), 5.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not complete JSON"),
        ("[]", "is not a snapshot"),
        ('{"kind": "Plan", "version": 1, "taken_at": 1}', "kind is not 'Snapshot'"),
        ('{"kind": "Snapshot", "version": 9}', "version is 9; this Espalier reads 1"),
        ('{"kind": "Snapshot", "version": 1, "taken_at": "soon"}', "taken_at: "),
        ('{"kind": "Snapshot", "version": 1, "taken_at": 1, "nodes": [{"name": "n"}]}', r"nodes\.0\.gpu_type: "),
    ],
)
def test_a_damaged_snapshot_says_where(text, message):
    with pytest.raises(SnapshotError, match=message):
        Snapshot.from_json(text)


def test_the_words_of_an_earlier_snapshot_are_read():
    text = """{"kind": "Snapshot", "version": 1, "taken_at": 1, "rules": {"evaluation_grace": 4},
        "workers": [
        {"name": "w", "job": null, "role": "alien", "node": "n", "gpus": 1, "state": "running"}]}"""
    snapshot = Snapshot.from_json(text)
    assert (snapshot.rules, snapshot.workers[0].role) == (Rules(), WorkerRole.FOREIGN)


def test_terms_are_the_part_of_the_spec_that_is_scheduled_by(job_of):
    job: AdaptiveTrainingJob = job_of("one", gpus_per_worker=2, minReplicas=2, maxReplicas=3, priority=4)
    terms = JobTerms.of(job, grace_seconds=7)
    assert (terms.min_replicas, terms.max_replicas, terms.gpus_per_worker, terms.priority) == (2, 3, 2, 4)
    assert (terms.notice_seconds, terms.cooldown_seconds, terms.min_runtime_seconds) == (1, 0.2, 0.2)
    assert (terms.adapts, terms.grace_seconds, terms.time_budget_seconds) == (True, 7, 2)
    off = job_of("off", adaptation={"mode": "Off"})
    assert not JobTerms.of(off).adapts
