"""Learned allocation: what the network sees, its two forms, its file, and the decisions that come of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from espalier_lab.scheduling.learned import description
from espalier_lab.scheduling.learned.description import WORKERS_AND_SERVERS, WORKERS_ONLY, NetworkInputs
from espalier_lab.scheduling.learned.files import (
    AllocationLineage,
    AllocationPolicy,
    LearnedPolicyError,
    Serves,
    make_policy,
    parse_policy,
    read_policy,
    write_policy,
)
from espalier_lab.scheduling.learned.network import JobScorer
from espalier_lab.scheduling.learned.picture import PartialDecision
from espalier_lab.scheduling.learned.ranking import Ranking
from espalier_lab.scheduling.learned.serving import LearnedAllocation, by_type
from espalier_lab.scheduling.learned.speeds import LARGEST_GAIN, STEPS, gains
from espalier_lab.scheduling.learned.twin import Twin
from espalier_operator.policies.view import Candidate, View
from speed_curves import Amdahl

SERVES = Serves(min_gpus=1, max_gpus=512, max_jobs=512)
LINEAGE = AllocationLineage(
    name="tiny", learnt_from="nothing", algorithm="drawn at random", seed=1, decisions=0, serves=SERVES
)  # fmt: skip


def policy(seed: int = 1, **changes: Any) -> AllocationPolicy:
    lineage = LINEAGE.model_copy(update=changes)
    return make_policy(Twin(len(lineage.actions), seed=seed).frozen(), lineage)


def drawn(rng: np.random.Generator, batch: int, jobs: int, options: int) -> tuple[NetworkInputs, np.ndarray]:
    def some(*shape: int) -> np.ndarray:
        return rng.normal(0, 1, shape).astype(np.float32)

    present = (rng.random((batch, jobs)) < 0.7).astype(np.float32)
    seen = NetworkInputs(
        jobs=some(batch, jobs, len(description.JOB_FEATURES)) * present[..., None],
        options=some(batch, jobs, options, len(description.OPTION_FEATURES)) * present[..., None, None],
        cluster=some(batch, len(description.CLUSTER_FEATURES)),
        present=present,
    )
    mask = np.repeat(present > 0, options, axis=1) & (rng.random((batch, jobs * options)) < 0.8)
    return seen, np.concatenate([mask, np.ones((batch, 1), bool)], axis=1)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 9), st.sampled_from((1, 3)))
def test_the_network_in_torch_and_in_numpy_score_the_same(seed: int, batch: int, jobs: int, options: int) -> None:
    seen, mask = drawn(np.random.default_rng(seed), batch, jobs, options)
    twin = Twin(options, hidden=8, seed=seed)
    with torch.no_grad():
        scores, values = twin(
            *(torch.from_numpy(value) for value in (seen.jobs, seen.options, seen.cluster, seen.present, mask))
        )
    np.testing.assert_allclose(twin.frozen().scores(seen, mask), scores.numpy(), rtol=1e-4, atol=1e-5)
    assert not values.numpy()[seen.present == 0].any()
    again = Twin.of(twin.frozen().weights, options)
    np.testing.assert_array_equal(again.frozen().scores(seen, mask), twin.frozen().scores(seen, mask))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9))
def test_scores_follow_the_jobs_in_any_order_and_padding_changes_nothing(seed: int, jobs: int) -> None:
    rng = np.random.default_rng(seed)
    seen, _ = drawn(rng, 1, jobs, 3)
    network, mask = Twin(3, hidden=8, seed=seed).frozen(), np.ones((1, jobs * 3 + 1), bool)
    order = rng.permutation(jobs)
    moved = replace(seen, jobs=seen.jobs[:, order], options=seen.options[:, order], present=seen.present[:, order])
    before, after = network.scores(seen, mask)[0], network.scores(moved, mask)[0]
    np.testing.assert_allclose(after[:-1].reshape(jobs, 3), before[:-1].reshape(jobs, 3)[order], atol=1e-5)
    assert after[-1] == pytest.approx(before[-1], abs=1e-5)
    padded = replace(
        seen,
        jobs=np.pad(seen.jobs, ((0, 0), (0, 2), (0, 0))),
        options=np.pad(seen.options, ((0, 0), (0, 2), (0, 0), (0, 0))),
        present=np.pad(seen.present, ((0, 0), (0, 2))),
    )
    wide = network.scores(padded, np.ones((1, (jobs + 2) * 3 + 1), bool))[0]
    np.testing.assert_allclose(wide[: jobs * 3], before[:-1], atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(2, 5))
def test_gains_are_those_of_a_search(seed: int, servers: int, workers: int) -> None:
    rng = np.random.default_rng(seed)
    seconds = rng.uniform(0.5, 4, (servers, workers))
    seconds[:, 0] = math.inf
    found = gains(seconds, tuple(STEPS))
    for server, worker in np.ndindex(seconds.shape):
        for column, (more_servers, more_workers) in enumerate(STEPS.values()):
            ahead, saved = [-LARGEST_GAIN], [-math.inf]
            for then_server, then_worker in np.ndindex(seconds.shape):
                up, right = then_server - server, then_worker - worker
                if up < more_servers or right < more_workers:
                    continue
                steps = max(1, max(up, right) if column == 2 else up + right)
                now, then = seconds[server, worker], seconds[then_server, then_worker]
                if math.isinf(now):
                    gain, less = (0.0, 0.0) if math.isinf(then) else (LARGEST_GAIN, math.inf)
                else:
                    gain, less = (-LARGEST_GAIN, -math.inf) if math.isinf(then) else (math.log(now / then), now - then)
                ahead.append(gain / steps)
                saved.append(less / steps)
            assert found.gain_ahead[server, worker, column] == pytest.approx(max(ahead))
            assert found.saved_ahead[server, worker, column] == pytest.approx(max(saved))


def test_a_policy_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = policy(actions=WORKERS_AND_SERVERS, results={"chooseJctSlots": 24.5})
    write_policy(written, tmp_path / "tiny.safetensors")
    found = read_policy(tmp_path / "tiny.safetensors")
    assert (found.lineage, found.version) == (written.lineage, written.version)
    assert all((found.network.weights[name] == value).all() for name, value in written.network.weights.items())


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damaged_files_are_refused(data: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("damaged") / "tiny.safetensors"
    write_policy(policy(), path)
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    try:
        found = parse_policy(bytes(content), "file")
    except LearnedPolicyError as error:
        assert str(error).startswith("file: ")
    else:  # a blank of the header
        assert (found.version, found.lineage) == (policy().version, policy().lineage)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda header, weights: header.update(format="espalier/allocation-v9"), "is served; learn it again"),
        (lambda header, weights: header.update(jobFeatures=["colour"]), "jobFeatures are others"),
        (lambda header, weights: header["lineage"].pop("serves"), "lineage: "),
        (lambda header, weights: header["lineage"]["serves"].update(maxGpus=9999), "was changed after it was written"),
        (lambda header, weights: header["lineage"].update(actions=["magic"]), "actions are magic"),
        (lambda header, weights: weights.pop("deep.bias"), "'deep.bias' is missing"),
        (lambda header, weights: weights["deep.bias"].fill(1), "was changed after it was written"),
    ],
)
def test_files_that_cannot_be_served_are_refused_with_reasons(change: Any, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.safetensors"
    write_policy(policy(), path)
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(json.loads(content[8:end])["__metadata__"]["espalier"])
    weights = {name: value.copy() for name, value in load(content).items()}
    change(header, weights)
    with pytest.raises(LearnedPolicyError, match=reason):
        parse_policy(save(weights, metadata={"espalier": json.dumps(header)}), "tiny")


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LearnedPolicyError, match="cannot be read"):
        read_policy(tmp_path / "away")
    with pytest.raises(LearnedPolicyError, match="not a safetensors file"):
        parse_policy(b"\x80\x04pickle", "tiny")
    with pytest.raises(LearnedPolicyError, match="no lineage"):
        parse_policy(save({"a": np.zeros(1, np.float32)}), "tiny")


def test_a_policy_says_which_clusters_it_cannot_serve() -> None:
    serves = Serves(min_gpus=8, max_gpus=64, max_jobs=100)
    assert serves.refusal(16) is None
    assert "serves 8 to 64" in str(serves.refusal(4))
    with pytest.raises(LearnedPolicyError, match="only workers can be given"):
        LearnedAllocation(policy(actions=WORKERS_AND_SERVERS))


views = st.builds(
    lambda jobs, gpus: View(
        now=1000.0,
        gpus=gpus,
        jobs=tuple(
            Candidate(
                key=f"j{index}",
                submitted_at=900.0 - index,
                min_workers=base,
                max_workers=base + more,
                gpus_per_worker=size,
                workers=base if runs else 0,
                yields=yields,
            )
            for index, (base, more, size, runs, yields, _, _) in enumerate(jobs)
        ),
        speed_models={f"j{i}": Amdahl(steps, 0.1, 0.9) for i, (*_, known, steps) in enumerate(jobs) if known},
    ),
    st.lists(
        st.tuples(
            st.integers(1, 3), st.integers(0, 6), st.integers(1, 2), st.booleans(), st.booleans(), st.booleans(),
            st.floats(0, 1e5),
        ),
        max_size=8,
    ),
    st.integers(0, 24),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(views, st.integers(0, 20))
def test_decisions_fit_whatever_the_network_says(view: View, seed: int) -> None:
    decision = LearnedAllocation(policy(seed)).decide(view)
    jobs = {job.key: job for job in view.jobs}
    assert sorted(share.job for share in decision.shares) == sorted(jobs)
    assert sum(share.workers * jobs[share.job].gpus_per_worker for share in decision.shares) <= view.gpus
    for share in decision.shares:
        job = jobs[share.job]
        assert share.workers == 0 or job.min_workers <= share.workers <= job.max_workers
    left = view.gpus - sum(share.workers * jobs[share.job].gpus_per_worker for share in decision.shares)
    waiting = [jobs[share.job] for share in decision.shares if not share.workers]
    assert all(job.min_workers * job.gpus_per_worker > left for job in waiting), "a job that fits waits"


def crowd(rng: np.random.Generator, count: int) -> View:
    """Return many jobs: some run, some have a known speed."""
    jobs = tuple(
        Candidate(
            key=f"j{index}",
            submitted_at=float(-rng.integers(10_000)),
            min_workers=int(rng.integers(1, 3)),
            max_workers=int(rng.integers(3, 9)),
            gpus_per_worker=int(rng.integers(1, 3)),
            workers=int(rng.integers(0, 3)),
            done=float(rng.random()),
        )
        for index in range(count)
    )
    known = [job.key for job in jobs if rng.random() < 0.6]
    drawn_parts = {key: (float(rng.uniform(10, 1e5)), float(rng.random())) for key in known}
    speed_models = {key: Amdahl(steps, serial, 1 - serial) for key, (steps, serial) in drawn_parts.items()}
    return View(now=0.0, gpus=int(rng.integers(count, 6 * count)), jobs=jobs, speed_models=speed_models)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from((1, 3, 30, 60)), st.sampled_from((0.3, 1.0, 3.0)))
def test_a_ranking_chooses_what_scores_highest_of_all(seed: int, count: int, scale: float) -> None:
    """Up to ties: scores of float32 that are nearer to each other than rounding."""
    view = crowd(np.random.default_rng(seed), count)
    weights = {name: value * np.float32(scale) for name, value in policy(seed).network.weights.items()}
    picture, network = PartialDecision.of(view), JobScorer(weights)
    ranking = Ranking(network, picture)
    while True:
        mask = picture.mask()
        scores = network.scores(picture.inputs(), mask)
        chosen = ranking.choice()
        assert scores[count if chosen is None else chosen] >= scores.max() - 1e-4 * max(1.0, scale**4)
        if chosen is None:
            break
        ranking.give(chosen)
    assert picture.free >= 0


@pytest.mark.parametrize(("power", "serves"), [(3, True), (12, False), (20, False), (37, False)])
def test_scores_that_overflow_are_reported(power: int, serves: bool) -> None:
    view = crowd(np.random.default_rng(1), 20)
    found = policy(2)
    weights = {name: value * np.float32(10.0**power) for name, value in found.network.weights.items()}
    large = LearnedAllocation(replace(found, network=JobScorer(weights)))
    if serves:
        assert sum(share.workers for share in large.decide(view).shares) > 0
    else:
        with pytest.raises(LearnedPolicyError, match="so large that scores are not finite; learn it again"):
            large.decide(view)


def test_a_ranking_scores_few_jobs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    view, scored = crowd(np.random.default_rng(5), 200), list[int]()
    rated = JobScorer.rated

    def counted(network: JobScorer, encoded: Any, *others: Any) -> Any:
        scored.append(len(encoded))
        return rated(network, encoded, *others)

    monkeypatch.setattr(JobScorer, "rated", counted)
    LearnedAllocation(policy(3)).decide(view)
    assert len(scored) > 100
    assert sum(scored) < 0.5 * 200 * len(scored)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12))
def test_tables_hold_what_is_seen(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    picture = PartialDecision.of(crowd(rng, count))
    jobs, options = picture.tables()
    while (mask := picture.mask()).any():
        seen, rows = picture.inputs(), (np.arange(count), picture.workers)
        np.testing.assert_allclose(jobs[rows], seen.jobs, rtol=1e-6)
        can = np.flatnonzero(mask[:-1])
        offered = options[rows][can]
        offered[:, description.OF_FREE] = picture.of_free(can)
        np.testing.assert_allclose(offered, seen.options[can, 0], rtol=1e-6)
        np.testing.assert_allclose(picture.cluster(), seen.cluster, rtol=1e-6)
        chosen = int(rng.choice(np.flatnonzero(mask)))
        if chosen == count:
            break
        picture.give(chosen)


@settings(max_examples=40, deadline=None)
@given(views, st.integers(0, 20), st.data())
def test_types_of_gpu_are_divided_among_the_jobs_that_have_them(view: View, seed: int, data: Any) -> None:
    first = data.draw(st.integers(0, view.gpus))
    gpu_types = {name: gpus for name, gpus in (("a", first), ("b", view.gpus - first)) if gpus}
    jobs = tuple(
        replace(job, gpu_type=data.draw(st.sampled_from((*gpu_types, "gone"))) if job.workers else None)
        for job in view.jobs
    )
    typed = replace(view, jobs=jobs, gpu_types=gpu_types)
    decision = LearnedAllocation(policy(seed)).decide(typed)
    if len(gpu_types) < 2:
        return
    parts = {name: {job.key: job for job in part.jobs} for name, part in zip(gpu_types, by_type(typed), strict=True)}
    assert sorted(key for part in parts.values() for key in part) == sorted(job.key for job in jobs)
    for name, part in parts.items():
        assert all(job.gpu_type in (name, None, "gone") for job in part.values())
        taken = sum(part[each.job].gpus_per_worker * each.workers for each in decision.shares if each.job in part)
        assert taken <= gpu_types[name]
    assert sorted(share.job for share in decision.shares) == sorted(job.key for job in jobs)
    assert all(share.gpu_type is None for share in decision.shares), "where jobs start is up to the planner"


def test_a_job_that_waits_counts_where_there_is_room_for_it() -> None:
    runs = Candidate(key="runs", submitted_at=0, min_workers=1, max_workers=8, workers=1, gpu_type="small")
    large, small = (
        Candidate(key=key, submitted_at=1, min_workers=base, max_workers=base)
        for key, base in (("wide", 4), ("tiny", 1))
    )
    view = View(now=9.0, gpus=7, jobs=(large, runs, small), gpu_types={"large": 4, "small": 3})
    assert [[job.key for job in part.jobs] for part in by_type(view)] == [["wide"], ["runs", "tiny"]]
    decision = LearnedAllocation(policy(1)).decide(view)
    assert decision.shares[0].job == "runs", "what starts stops nobody on another type"


def test_jobs_that_may_not_be_stopped_keep_their_base_workers() -> None:
    jobs = [
        Candidate(key=f"j{i}", submitted_at=0, min_workers=2, max_workers=4, workers=2 * (i < 2), yields=i > 0)
        for i in range(4)
    ]
    picture = PartialDecision.of(View(now=1.0, gpus=4, jobs=tuple(jobs)))
    assert list(picture.workers) == [2, 0, 0, 0]
    assert list(picture.mask()) == [False, True, True, True, False]
    picture.give(2)
    assert (list(picture.workers), picture.free, list(picture.mask())) == ([2, 0, 2, 0], 0, [False] * 4 + [True])


def test_without_a_speed_nothing_of_it_is_seen() -> None:
    job = Candidate(key="a", submitted_at=0, min_workers=1, max_workers=4)
    assert WORKERS_ONLY == ("worker",)
    seen = PartialDecision.of(View(now=600.0, gpus=4, jobs=(job,))).inputs()
    names = dict(zip(description.JOB_FEATURES, seen.jobs[0], strict=True))
    offered = dict(zip(description.OPTION_FEATURES, seen.options[0, 0], strict=True))
    assert (names["known"], names["left"], names["best_left"]) == (0, 0, 0)
    assert (offered["gain"], offered["saved"], offered["saved_ahead"], offered["saved_by_share"]) == (0, 0, 0, 0)
    assert names["age"] == pytest.approx(math.log(2) / 4)
    known = replace(View(now=600.0, gpus=4, jobs=(job,)), speed_models={"a": Amdahl(600, 0.0, 1.0)})
    seen = PartialDecision.of(known).inputs()
    offered = dict(zip(description.OPTION_FEATURES, seen.options[0, 0], strict=True))
    assert offered["gain"] == pytest.approx(math.log(2))
    assert offered["saved"] == pytest.approx(math.log(1.5) / 4)
