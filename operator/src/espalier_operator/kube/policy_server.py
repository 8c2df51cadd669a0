"""Client of the policy server, a process beside the operator that evaluates a policy file.

`POST /v1/decision` with a `Question` answers 200 with a `PolicyAnswer`, or 409 with `{"message": ...}` where the file
cannot be used or cannot serve this cluster.
"""

from __future__ import annotations

import json
from typing import Any, Final

import aiohttp

from espalier_operator.policies import Policy
from espalier_operator.policies.learned import LearnedPolicy, PolicyAnswer, PolicyFileError, answer_of
from espalier_operator.policies.remote import Ask, Asking, AwayError, PolicyObserver, asked_here
from espalier_operator.policies.remote import asked as question_about
from espalier_operator.policies.view import View

PATH: Final = "/v1/decision"
REFUSED: Final = 409
MOST_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of an answer. An answer for 10,000 jobs has about two million bytes."""
_LONGEST_MESSAGE: Final = 500


def asked(policy: Policy, observer: PolicyObserver) -> tuple[Policy, Asking | None]:
    """Return the policy for the operator, with its `Asking`; None: it decides by itself."""
    if isinstance(policy, LearnedPolicy) and policy.evaluates is None:
        return policy, Asking(policy, asking_at(policy.url), observer)
    return asked_here(policy, observer)


def asking_at(url: str) -> Ask:
    """Return a function that asks the policy server at `url`, with one connection per question: a few per minute."""

    async def ask(view: View) -> PolicyAnswer:
        try:
            async with (
                aiohttp.ClientSession(trust_env=False, cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.post(
                    f"{url.rstrip('/')}{PATH}",
                    data=question_about(view).to_json(),
                    headers={"Content-Type": "application/json"},
                    allow_redirects=False,
                ) as reply,
            ):
                body = await reply.content.read(MOST_BYTES + 1)
                while len(body) <= MOST_BYTES and (more := await reply.content.read(MOST_BYTES)):
                    body += more
                return _answer(reply.status, body)
        except (aiohttp.ClientError, OSError) as error:
            raise AwayError(f"{url}: {str(error) or type(error).__name__}") from error

    return ask


def _answer(status: int, body: bytes) -> PolicyAnswer:
    if len(body) > MOST_BYTES:
        raise PolicyFileError(f"the answer has more than {MOST_BYTES} bytes")
    if status == REFUSED:
        raise PolicyFileError(_message(body))
    if status != 200:
        raise AwayError(f"it answers with code {status}: {_message(body)}")
    return answer_of(_json(body))


def _message(body: bytes) -> str:
    found = _json(body)
    message = found.get("message") if isinstance(found, dict) else None
    return (message if isinstance(message, str) else body.decode(errors="replace"))[:_LONGEST_MESSAGE]


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
