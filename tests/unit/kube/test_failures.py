"""What failures mean, and when a request is tried again."""

from __future__ import annotations

import pytest

from espalier_kube.errors import ApiError, Call, ExpiredError, RefusedError, Retries, Status, UnreachableError, error_of
from espalier_kube.resources import PODS

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
    assert retries.wait(1, 3.0, jitter=1.0) == 3.0
    assert retries.wait(1, 3600.0, jitter=1.0) == 5.0, "not as long as it likes"
    assert retries.wait(10_000) == 5.0
