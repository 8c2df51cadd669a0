"""Whatever is sent to the service: it answers in its one shape, never fails, and forgets what it refused."""

from __future__ import annotations

import json
import logging
import sqlite3
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import bodies
import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sweeps
from espalier_agent.policies.policy import Policy
from espalier_agent.service.app import create_app
from espalier_agent.service.serving import ServiceSettings
from espalier_core.types.advice import MAX_DECISION_IDS

Call = tuple[str, str, dict[str, Any]]
Send = Callable[[FastAPI, Sequence[Call]], list[httpx.Response]]

HEADERS = {"content-type": "application/json"}
ROUTES = ("/v1/advice", "/v1/outcomes")
ANSWERS = {200, 400, 404, 405, 413, 422}
QUESTION = {**bodies.QUESTION, "allowedActions": [{"kind": "Deepen", "target": "block2"}, {"kind": "Nothing"}]}
VALID = {"/v1/advice": QUESTION, "/v1/outcomes": bodies.OUTCOME}

texts = st.text(st.characters(exclude_categories=()), max_size=40)
numbers = st.integers() | st.integers(min_value=10**30, max_value=10**400) | st.floats()
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def places(value: Any, place: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the paths of everything inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(path for key, item in items for path in places(item, (*place, key)))]


def replaced(value: Any, path: tuple[str | int, ...], other: Any) -> Any:
    """Return a copy of a JSON value with `other` at `path`."""
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], other)
    return copy


@st.composite
def almost_valid(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draw a valid request in which up to three values are others."""
    route = draw(st.sampled_from(ROUTES))
    body: Any = VALID[route]
    for _ in range(draw(st.integers(1, 3))):
        body = replaced(body, draw(st.sampled_from(places(body))), draw(values))
    return route, json.dumps(body).encode()


requests = st.one_of(
    almost_valid(),
    st.tuples(st.sampled_from(ROUTES), st.binary(max_size=200)),
    st.tuples(st.sampled_from(ROUTES), values.map(lambda value: json.dumps(value).encode())),
    st.tuples(
        st.sampled_from(ROUTES), st.sampled_from([b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b"x" * 300_000])
    ),
)


@pytest.fixture
def app(policy: Policy, tmp_path: Path) -> FastAPI:
    return create_app(ServiceSettings(outcomes_path=tmp_path / "outcomes.db", max_body_bytes=200_000), policy)


@settings(max_examples=sweeps.examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=st.lists(requests, min_size=5, max_size=15))
def test_anything_is_answered_and_nothing_refused_is_kept(
    app: FastAPI, call: Send, caplog: pytest.LogCaptureFixture, tmp_path: Path, sent: list[tuple[str, bytes]]
) -> None:
    caplog.set_level(logging.INFO)
    caplog.clear()
    known: Call = ("POST", "/v1/advice", {"json": QUESTION})
    described: Call = ("GET", "/v1/policy", {})
    before = call(app, [known, described])
    stored = rows(tmp_path / "outcomes.db")
    answers = call(app, [("POST", route, {"content": body, "headers": HEADERS}) for route, body in sent])
    for answer in answers:
        assert answer.status_code in ANSWERS, answer.text
        if answer.status_code != 200:
            assert {"code", "message"} <= set(answer.json()) <= {"code", "message", "field"}
            assert len(answer.content) < 2000
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]
    assert all(len(line) < 1000 and line.isprintable() for line in caplog.messages)
    if not any(answer.status_code == 200 for answer in answers):
        assert rows(tmp_path / "outcomes.db") == stored
    after = call(app, [known, described])
    assert after[0].json()["probabilities"] == before[0].json()["probabilities"]
    assert after[1].json() == before[1].json()


def rows(path: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(path)) as connection:
        count = "SELECT (SELECT count(*) FROM decisions), (SELECT count(*) FROM outcomes)"
        decisions, outcomes = connection.execute(count).fetchone()
    return decisions, outcomes


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(method=st.sampled_from(["GET", "PUT", "DELETE", "PATCH", "HEAD", "TRACE"]), name=st.text(max_size=30))
def test_any_path_is_answered(app: FastAPI, call: Send, method: str, name: str) -> None:
    path = httpx.URL("http://agent/").copy_with(raw_path=b"/" + name.encode().hex().encode())
    (answer,) = call(app, [(method, str(path), {})])
    assert answer.status_code == 404


def test_refused_requests_take_no_memory(app: FastAPI, call: Send) -> None:
    """Each is nearly as large as is accepted; a hundred of them together would be 20 MB."""
    bodies = [json.dumps({**QUESTION, "job": f"{index}-" + "x" * 190_000}).encode() for index in range(4)]

    def send() -> None:
        for body in bodies:
            (answer,) = call(app, [("POST", "/v1/advice", {"content": body, "headers": HEADERS})])
            assert answer.status_code == 422

    send()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(25):
            send()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2_000_000


@pytest.mark.parametrize(
    ("route", "change", "field", "message"),
    [
        ("/v1/advice", {"timeLeftSeconds": 1e308}, "timeLeftSeconds", "less than or equal to 31536000; it is 1e+308"),
        ("/v1/advice", {"timeBudgetSeconds": 10**300}, "timeBudgetSeconds", "less than or equal to 31536000; it is 1"),
        ("/v1/advice", {"job": "j" * 1_000_000}, "job", 'at most 320 characters; it is "jjj'),
        ("/v1/advice", {"job": "a\n2026 INFO forged"}, "job", "cannot be printed; send `namespace/name`"),
        ("/v1/advice", {"batchSize": 2**63}, "batchSize", "less than or equal to 1099511627776"),
        ("/v1/outcomes", {"timeBudgetSeconds": 1e308}, "timeBudgetSeconds", "less than or equal to 31536000"),
        ("/v1/outcomes", {"finalAccuracy": float("nan")}, "finalAccuracy", "finite number; it is NaN"),
        ("/v1/outcomes", {"job": "\x1b[2J"}, "job", "cannot be printed"),
        ("/v1/outcomes", {"finalAccuracy": 1.5}, "finalAccuracy", "less than or equal to 1"),
        ("/v1/outcomes", {"decisionIds": "a"}, "decisionIds", ""),
        ("/v1/outcomes", {"decisionIds": ["a"] * (MAX_DECISION_IDS + 1)}, "decisionIds", str(MAX_DECISION_IDS)),
        ("/v1/outcomes", {"decisionIds": ["a", "b" * 201]}, "decisionIds.1", "200"),
        ("/v1/outcomes", {"timeBudgetSeconds": 0}, "timeBudgetSeconds", "greater than 0"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(
    call: Send, policy: Policy, route: str, change: dict[str, Any], field: str, message: str
) -> None:
    body = json.dumps({**VALID[route], **change}).encode()
    (answer,) = call(create_app(None, policy), [("POST", route, {"content": body, "headers": HEADERS})])
    assert (answer.status_code, answer.json()["field"]) == (422, field)
    assert message in answer.json()["message"]
    assert len(answer.content) < 500


def test_a_name_in_the_architecture_stays_in_its_line_of_the_log(
    call: Send, policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    name = "block\n2026 INFO forged " + "x" * 5000
    text = json.dumps(QUESTION).replace('"block2"', json.dumps(name))
    (answer,) = call(create_app(None, policy), [("POST", "/v1/advice", {"content": text, "headers": HEADERS})])
    assert answer.status_code == 200
    (line,) = [line for line in caplog.messages if line.startswith("decision ")]
    assert line.isprintable()
    assert len(line) < 500
