"""Reading of files with jobs and queues; every problem is reported with its position and the allowed values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from espalier_core.base import repeated
from espalier_core.files.documents import DocumentError, read_bounded
from espalier_core.types.job import API_VERSION, GROUP, KIND, AdaptiveTrainingJob
from espalier_core.types.pod_template import DEFAULT_GPU_RESOURCE, PodTemplate
from espalier_core.types.queue import QUEUE_KIND, Queue
from espalier_core.validation.problems import Problem, kind_of, problem_at, problems_of

MAX_BYTES: Final = 3 * 1024 * 1024
"""Maximum size of a job file, in bytes, as of a request to an API server. YAML of that size takes some ten seconds."""
MAX_NODES = 100_000
"""Maximum number of values in a job file (YAML aliases multiply); a file with more is rejected unread."""

_Model = TypeVar("_Model", bound=BaseModel)


class JobFileError(ValueError):
    """A job file cannot be used; `problems` lists all faults, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.line, problem.field)))
        super().__init__("\n".join(str(problem) for problem in self.problems))


def load_job(path: Path, resource: str | None = DEFAULT_GPU_RESOURCE) -> AdaptiveTrainingJob:
    """Read the one job of the file at `path`; raise `JobFileError` as `load_jobs` does, and if there are several."""
    jobs = load_jobs(path, resource)
    if len(jobs) > 1:
        names = ", ".join(job.metadata.name for job in jobs)
        raise JobFileError([Problem(str(path), 0, "", f"holds {len(jobs)} jobs ({names}) where one is expected")])
    return jobs[0]


def load_jobs(path: Path, resource: str | None = DEFAULT_GPU_RESOURCE) -> tuple[AdaptiveTrainingJob, ...]:
    """Read all jobs of a YAML or JSON file; documents of other API groups (a PersistentVolumeClaim, say) are skipped.

    Queues are checked and left out.

    `resource` is the name of the GPU resource; None leaves the templates' GPU limits unread. Raise `JobFileError` with
    every problem of every job.
    """
    return parse_jobs(_text(path), str(path), resource)


def parse_jobs(text: str, source: str, resource: str | None = DEFAULT_GPU_RESOURCE) -> tuple[AdaptiveTrainingJob, ...]:
    """Parse the text of a job file; `source` names it in problems. See `load_jobs`."""
    jobs, _ = _parse(text, source, resource)
    if not jobs:
        raise JobFileError([Problem(source, 0, "", f"holds no {KIND} (apiVersion {API_VERSION})")])
    return jobs


def check_file(path: Path) -> tuple[str, ...]:
    """Return the names of all jobs and queues of a YAML or JSON file. Raise `JobFileError` as `load_jobs` does."""
    jobs, queues = _parse(_text(path), str(path), DEFAULT_GPU_RESOURCE)
    if not jobs and not queues:
        message = f"holds no {KIND} and no {QUEUE_KIND} (apiVersion {API_VERSION})"
        raise JobFileError([Problem(str(path), 0, "", message)])
    return (*(job.metadata.name for job in jobs), *(queue.metadata.name for queue in queues))


def jobs_in(path: Path) -> tuple[AdaptiveTrainingJob, ...]:
    """Return the jobs of a file; none if it holds only queues. Raise `JobFileError` as `load_jobs` does."""
    return _parse(_text(path), str(path), DEFAULT_GPU_RESOURCE)[0]


def _text(path: Path) -> str:
    try:
        return read_bounded(path, MAX_BYTES).decode()
    except DocumentError as error:
        message = f"is larger than {MAX_BYTES >> 20} MiB, more than an API server reads; put its jobs in several files"
        raise JobFileError([Problem(str(path), 0, "", message)]) from error
    except OSError as error:
        raise JobFileError([Problem(str(path), 0, "", f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise JobFileError([Problem(str(path), 0, "", "is not UTF-8 text")]) from error


def _parse(text: str, source: str, resource: str | None) -> tuple[tuple[AdaptiveTrainingJob, ...], tuple[Queue, ...]]:
    problems: list[Problem] = []
    jobs: list[AdaptiveTrainingJob] = []
    queues: list[Queue] = []
    for document in _documents(text, source):
        if not isinstance(document, CommentedMap):
            line = document.lc.line + 1 if isinstance(document, CommentedSeq) else 1
            problems.append(Problem(source, line, "", f"is {kind_of(document)}; must be a mapping (a job)"))
        elif _belongs_to_others(document):
            continue
        elif document.get("kind") == QUEUE_KIND:
            found, queue = _check_queue(document, source)
            problems.extend(found)
            if queue is not None:
                queues.append(queue)
        else:
            found, job = _check(document, source, resource)
            problems.extend(found)
            if job is not None:
                jobs.append(job)
    for what, names in (("jobs", [job.key for job in jobs]), ("queues", [queue.metadata.name for queue in queues])):
        problems.extend(
            Problem(source, 0, "metadata.name", f"{name!r} is used by {number} {what}; names must differ")
            for name, number in sorted(repeated(names).items())
        )
    if problems:
        raise JobFileError(problems)
    return tuple(jobs), tuple(queues)


def with_spec(job: AdaptiveTrainingJob, **changes: Any) -> AdaptiveTrainingJob:
    """Return the job with other values in `spec`, under their names in JSON; raise `ValidationError` if not allowed.

    Maps are merged with the existing ones, and None leaves the existing value.
    """
    whole = job.to_json()
    return AdaptiveTrainingJob.model_validate({**whole, "spec": _merged(whole["spec"], changes)})


def _merged(old: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for name, value in changes.items():
        if value is not None:
            merged[name] = _merged(old.get(name, {}), value) if isinstance(value, Mapping) else value
    return merged


def _documents(text: str, source: str) -> list[Any]:
    try:
        loaded = [document for document in YAML(typ="rt").load_all(text) if document is not None]
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise JobFileError([Problem(source, line, "", f"is not YAML: {what}")]) from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise JobFileError([Problem(source, 0, "", f"is not YAML: {error}")]) from error
    if not loaded:
        raise JobFileError([Problem(source, 0, "", f"is empty; an {KIND} is expected")])
    return loaded


def _belongs_to_others(document: CommentedMap) -> bool:
    version = document.get("apiVersion")
    return isinstance(version, str) and "kind" in document and not version.startswith(GROUP.split(".")[0])


def _check(
    document: CommentedMap, source: str, resource: str | None
) -> tuple[list[Problem], AdaptiveTrainingJob | None]:
    try:
        plain = _plain(document)
    except ValueError as error:
        return [Problem(source, 0, "", str(error))], None
    try:
        job = _read(AdaptiveTrainingJob, plain)
    except ValidationError as error:
        found = problems_of(error, document, source, AdaptiveTrainingJob)
        return [*found, *_template_problems(_template_of(plain), document, source, resource)], None
    found = _template_problems(job.spec.template, document, source, resource)
    return found, None if found else job


def _check_queue(document: CommentedMap, source: str) -> tuple[list[Problem], Queue | None]:
    try:
        return [], _read(Queue, _plain(document))
    except ValidationError as error:
        return problems_of(error, document, source, Queue), None
    except ValueError as error:
        return [Problem(source, 0, "", str(error))], None


def _read(model: type[_Model], plain: Any) -> _Model:
    """Return `plain` as a `model`; raise `ValidationError` if it is not one.

    Through JSON: strict mode then means the same as in Kubernetes (no "3" for 3, no true for 1), but accepts lists for
    tuples and strings for enums. Fields have their camelCase names only, as in Kubernetes.
    """
    return model.model_validate_json(json.dumps(plain), strict=True, by_alias=True, by_name=False)


def _template_of(plain: Any) -> PodTemplate | None:
    """Return the template of a job that is invalid elsewhere; None if it has none or an invalid one."""
    try:
        return _read(PodTemplate, plain["spec"]["template"])
    except (KeyError, TypeError, ValidationError):
        return None


def _template_problems(
    template: PodTemplate | None, document: CommentedMap, source: str, resource: str | None
) -> list[Problem]:
    """Return problems that the types cannot express: a worker needs a whole number of GPUs, and at least one."""
    if template is None or resource is None:
        return []
    place = ("spec", "template", "spec", "containers")
    try:
        message = (
            f"no container has a limit of {resource}; the GPUs of a worker are read there, and it needs one"
            if template.gpus(resource) < 1
            else ""
        )
    except ValueError as error:
        message = str(error)
    return [problem_at(place, document, source, message)] if message else []


def _plain(document: Any) -> Any:
    """Return plain JSON types; raise `ValueError` for YAML that JSON cannot express, or too much of it."""
    count = 0

    def walk(value: Any, path: str) -> Any:
        nonlocal count
        count += 1
        if count > MAX_NODES:
            raise ValueError(f"holds more than {MAX_NODES} values; no job needs that many")
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    raise ValueError(f"{path}: key {key!r} is {kind_of(key)}; keys must be text, so quote it")
            return {str(key): walk(item, f"{path}.{key}".lstrip(".")) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item, f"{path}[{index}]") for index, item in enumerate(value)]
        if isinstance(value, bool) or value is None:
            return value
        for kind in (int, float, str):
            if isinstance(value, kind):
                return kind(value)
        return str(value)  # dates and binaries: Kubernetes reads them as text

    try:
        return walk(document, "")
    except RecursionError as error:
        raise ValueError("refers to itself or is nested too deeply; write the values out") from error
