"""What a policy sees of a snapshot, and what of its decision can be. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property

from espalier_core.types.measurements import GrowthForecast
from espalier_operator.model import JobFacts, Node, Snapshot, Worker, WorkerRole, WorkerState
from espalier_operator.policies import Policy
from espalier_operator.policies.speed_models import MeasuredSpeeds, speed_models_of
from espalier_operator.policies.view import ONE, Candidate, Decision, ExpectedGrowth, Share, View


def decided(policy: Policy, snapshot: Snapshot, jobs: Sequence[JobFacts], now: float) -> Decision:
    """Return what `policy` decides for `jobs`, unfinished ones of the snapshot, as far as that can be."""
    view = view_of(snapshot, jobs, now)
    return possible(policy.decide(view), view)


def view_of(snapshot: Snapshot, jobs: Sequence[JobFacts], now: float) -> View:
    """Return what a policy sees: the GPUs that pods of others hold are not there for it."""
    nodes = {node.name: node.offered for node in snapshot.nodes if node.takes_pods}
    foreign = WorkerRole.FOREIGN
    for worker in snapshot.workers:
        if worker.role is foreign and (place := worker.node or worker.pinned_to) in nodes:
            nodes[place] = max(0, nodes[place] - worker.gpus)
    typed = _by_type(snapshot.nodes, nodes)
    return View(
        now=now,
        gpus=sum(nodes.values()),
        nodes=nodes,
        jobs=tuple(candidate_of(job, now) for job in jobs),
        held=_WorkerNodes(snapshot.workers),
        speed_models=speed_models_of(snapshot, jobs, now),
        expected_growths={job.key: expected_growth_of(job.growth) for job in jobs if job.growth is not None},
        gpu_types=typed,
        speeds=MeasuredSpeeds(snapshot, jobs, [*typed]) if typed else None,
        continuous=True,
        ended={job.key: job.gpu_seconds_at(now) for job in snapshot.jobs if job.finished},
        memory=snapshot.policy_memory,
    )


def _by_type(nodes: Sequence[Node], gpus: Mapping[str, int]) -> dict[str, int]:
    """Return the GPUs of each type that has some, in order of name; nothing where they are all alike."""
    if len({node.gpu_type for node in nodes}) < 2:
        return {}
    found: dict[str, int] = defaultdict(int)
    for node in nodes:
        found[node.gpu_type] += gpus.get(node.name, 0)
    typed = {name: gpus for name, gpus in sorted(found.items()) if gpus}
    return typed if len(typed) > 1 else {}


def expected_growth_of(forecast: GrowthForecast) -> ExpectedGrowth:
    """Return a job's forecast as policies see it: one decision more, if it gains anything."""
    if forecast.gain <= 0:
        return ExpectedGrowth(gains=(), seconds=())
    return ExpectedGrowth(gains=(forecast.gain,), seconds=(forecast.seconds,))


class _WorkerNodes(Mapping[str, tuple[str, ...]]):
    """The nodes of the workers of each job, base workers first, in the order of their indices.

    Few policies ask, so they are looked up when one does.
    """

    def __init__(self, workers: Iterable[Worker]) -> None:
        self._workers = workers

    def __getitem__(self, job: str) -> tuple[str, ...]:
        return self._nodes[job]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    @cached_property
    def _nodes(self) -> dict[str, tuple[str, ...]]:
        found: defaultdict[str, list[tuple[bool, int, str]]] = defaultdict(list)
        for worker in self._workers:
            node = worker.node or worker.pinned_to
            if worker.job is not None and node is not None and worker.state is not WorkerState.TERMINATING:
                found[worker.job].append((worker.role is WorkerRole.EXTRA, worker.index, node))
        return {job: tuple(node for _, _, node in sorted(places)) for job, places in found.items()}


def candidate_of(job: JobFacts, now: float) -> Candidate:
    """Return a job as policies see it at `now`."""
    terms, waits = job.terms, job.admitted_at is None
    return Candidate(
        key=job.key,
        submitted_at=job.submitted_at,
        min_workers=terms.min_replicas,
        max_workers=terms.max_replicas,
        gpus_per_worker=terms.gpus_per_worker,
        priority=terms.priority,
        aged=job.aged if waits else 0,
        recent_use=job.recent_use if waits else 0.0,
        workers=0 if waits else terms.min_replicas + job.extra,
        service=job.gpu_seconds_at(now),
        done=job.done,
        gpu_type=job.gpu_type if job.admitted_at is not None else None,
        yields=job.terms.base_preemptible,
    )


def possible(decision: Decision, view: View) -> Decision:
    """Return the decision without what cannot be, which `ignored` names: policies of others may ask for anything."""
    jobs, shares, ignored = {job.key: job for job in view.jobs}, dict[str, Share](), list[str]()
    for share in decision.shares:
        job = jobs.get(share.job)
        if job is None:
            ignored.append(f"{share.job}: there is no such job")
        elif share.job in shares:
            ignored.append(f"{share.job}: it has a share already")
        elif not _is_count(share.workers) or not _is_count(share.spare):
            ignored.append(f"{share.job}: it cannot have {share.workers} workers and {share.spare} spare ones")
        elif share.weight is ONE and share.gpu_type is None and share.beside is None and not share.nodes:
            shares[share.job] = share  # nothing in it can be wrong
        else:
            faults = dict(_faults(share, job, view))
            ignored += [f"{share.job}: {fault}" for fault, _ in faults.values()]
            whole = {name: instead for name, (_, instead) in faults.items()}
            shares[share.job] = replace(share, **whole) if whole else share  # type: ignore[arg-type]
    if not ignored:
        return decision
    return replace(decision, shares=tuple(shares.values()), ignored=tuple(ignored))


def _is_count(number: object) -> bool:
    return isinstance(number, int) and number >= 0


def _faults(share: Share, job: Candidate, view: View) -> Iterator[tuple[str, tuple[str, object]]]:
    """Yield the fields of a share that cannot be, why, and what counts instead."""
    if not isinstance(share.weight, Fraction) or share.weight <= 0:
        yield "weight", (f"its weight cannot be {share.weight}", ONE)
    if share.gpu_type is not None and share.gpu_type not in view.gpu_types:
        yield "gpu_type", (f"there are no GPUs of type {share.gpu_type!r} to choose", None)
    if share.beside is not None:
        yield "beside", (f"it cannot use the GPUs of {share.beside} too", None)
    if share.nodes:
        unknown = next((node for node in share.nodes if node not in view.nodes), None)
        if unknown is not None:
            yield "nodes", (f"there is no node {unknown} that takes workers", ())
        elif not job.min_workers <= len(share.nodes) <= job.max_workers:
            yield "nodes", (f"it has {job.min_workers} to {job.max_workers} workers, not {len(share.nodes)}", ())
