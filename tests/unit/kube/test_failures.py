"""What failures mean, and when a request is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.k8s.errors import (
    ApiError,
    Call,
    ExpiredError,
    RefusedError,
    Retries,
    Status,
    UnreachableError,
    error_of,
)
from espalier_core.k8s.resources import PODS

OTHER_UID = "Precondition failed: UID in precondition: a, UID in object meta: b"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status(400), RefusedError),
        (Status(401), RefusedError),
        (Status(403), RefusedError),
        (Status(404), RefusedError),
        (Status(408), UnreachableError),
        (Status(409, "AlreadyExists"), RefusedError),
        (Status(409, "Conflict", "try again"), UnreachableError),
        (Status(409, "Conflict", OTHER_UID), RefusedError),
        (Status(410, "Expired"), ExpiredError),
        (Status(422, "Invalid"), RefusedError),
        (Status(429), UnreachableError),
        (Status(500), UnreachableError),
        (Status(503), UnreachableError),
    ],
    ids=str,
)
def test_answers_are_classified(status: Status, kind: type[ApiError]) -> None:
    assert type(error_of(status, Call("get", PODS, "a"))) is kind


@given(
    code=st.sampled_from([400, 401, 403, 404, 408, 409, 410, 413, 422, 429, 500, 503]) | st.integers(400, 599),
    reason=st.sampled_from(["", "AlreadyExists", "BadRequest", "Conflict", "Forbidden", "Invalid", "NotFound"]),
    message=st.text(max_size=40) | st.sampled_from(['Pod "a" is invalid: spec: Invalid value', "exceeded quota: q"]),
    form=st.sampled_from(
        [
            'admission webhook "later.example.com" denied the request: {}',
            'admission webhook "later.example.com" denied the request without explanation',
            'Internal error occurred: failed calling webhook "later.example.com": failed to call webhook: {}',
            "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: {}",
            "pods \"a\" is forbidden: policy 'p' with binding 'b' denied request: {}",
        ]
    ),
)
def test_what_admission_denies_is_never_final(code: int, reason: str, message: str, form: str) -> None:
    """A webhook chooses code, reason and message; the API server puts its name before them."""
    status = Status(code, reason, form.format(message))
    assert status.is_denial
    assert (status.is_invalid, status.already_exists, status.is_not_found) == (False, False, False)
    assert type(error_of(status, Call("patch", PODS, "a"))) is UnreachableError


@pytest.mark.parametrize(
    ("code", "message", "final"),
    [
        (422, 'Pod "a-base-0-0" is invalid: spec.containers[0].image: Required value', True),
        (422, 'ConfigMap.v2 "a" is invalid: data: Too long', True),
        (400, 'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal string', True),
        (400, "the object provided is unrecognized (must be of type Pod): couldn't get version/kind", True),
        (400, "something else", False),
        (403, 'Pod "a" is invalid: not by validation', False),
        (403, 'pods "a" is forbidden: violates PodSecurity', False),
        (422, "", False),
    ],
)
def test_what_the_api_server_itself_finds_invalid_is_final(code: int, message: str, final: bool) -> None:
    assert Status(code, "Invalid", message).is_invalid is final


def test_an_answer_that_is_no_status_keeps_its_text() -> None:
    assert Status.of(403, b"<html>no</html>") == Status(403, "", "<html>no</html>", is_from_api=False)
    assert Status.of(403, b"[1]").message == "[1]"
    assert str(Status(503)) == "HTTP status 503"
    assert str(Status(403, "Forbidden", "because")) == "Forbidden (because)"


@pytest.mark.parametrize(
    "body",
    [
        b'{"code": 14, "message": "upstream connect error"}',
        b'{"code": 410, "message": "upstream connect error"}',
        b'{"code": [1], "message": "upstream connect error"}',
        b'{"kind": "Status", "code": [1], "message": "upstream connect error"}',
        b'{"kind": "Status", "code": "x", "message": "upstream connect error"}',
        b'{"kind": "Status", "message": "upstream connect error"}',
    ],
)
def test_a_code_that_is_not_of_a_status_does_not_count(body: bytes) -> None:
    status = Status.of(503, body)
    assert (status.code, status.message) == (503, "upstream connect error")
    assert type(error_of(status, Call("get", PODS, "a"))) is UnreachableError


def test_the_code_of_a_status_counts() -> None:
    expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    assert Status.of_object(expired) == Status(410, "Expired", "too old")


def test_waits_double_within_bounds_and_follow_what_the_server_asks_for() -> None:
    retries = Retries(first_wait=0.1, longest_wait=5.0)
    assert [retries.wait(tried, None, jitter=1.0) for tried in (1, 2, 3, 10)] == [0.1, 0.2, 0.4, 5.0]
    assert retries.wait(1, None, jitter=0.0) == 0.05
    assert retries.wait(1, "3", jitter=1.0) == 3.0
    assert retries.wait(1, "3600", jitter=1.0) == 5.0, "not as long as it likes"
    assert retries.wait(1, "Wed, 21 Oct 2026 07:28:00 GMT", jitter=1.0) == 0.1
    assert retries.wait(10_000) == 5.0
