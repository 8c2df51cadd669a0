"""The policy server as the operator meets it: a process that may be away, a file that may be damaged or replaced."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from espalier_lab.scheduling.learned import files
from espalier_lab.scheduling.learned.files import Serves, make_policy, write_policy
from espalier_lab.scheduling.learned.network import JobScorer
from espalier_lab.scheduling.product.server import Served
from espalier_operator.kube.policy_server import MOST_BYTES, asking_at
from espalier_operator.policies.learned import Allotment, PolicyAnswer, PolicyFileError
from espalier_operator.policies.remote import AwayError
from espalier_operator.policies.view import Candidate, View
from policy_files import giving, write_giving
from policy_server_process import serving
from waiting import PATIENCE

VIEW = View(
    now=1.0,
    gpus=3,
    nodes={"n": 3},
    jobs=tuple(
        Candidate(key=key, submitted_at=0.0, min_workers=1, max_workers=2, yields=False) for key in ("ns/a", "ns/b")
    ),
    continuous=True,
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_giving(tmp_path_factory.mktemp("policy") / "policy.safetensors")


@pytest.fixture(scope="module")
def url(file: Path) -> Iterator[str]:
    with serving(file) as url:
        yield url
    with pytest.raises(AwayError, match=f"^{url}: "):
        ask(url)


def ask(url: str, view: View = VIEW) -> PolicyAnswer:
    return asyncio.run(asked(url, view))


async def asked(url: str, view: View) -> PolicyAnswer:
    return await asking_at(url)(view)


def get(url: str) -> dict[str, object]:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        found: dict[str, object] = json.load(answer)
    return found


def test_it_says_who_should_have_what(url: str) -> None:
    answer = ask(url)
    assert answer.policy == f"tiny@{giving().version}"
    # Base workers for both; then this file gives to the first job. The speed of neither is known, so more is spare.
    assert answer.allotments == (Allotment(job="ns/a", workers=2), Allotment(job="ns/b", workers=1, spare=1))
    assert get(f"{url}/v1/policy")["policy"] == answer.policy
    assert get(f"{url}/healthz") == {"status": "ok"}


def test_a_new_file_takes_the_old_ones_place_and_a_damaged_one_does_not(url: str, file: Path) -> None:
    first, whole = ask(url), file.read_bytes()
    write_giving(file, seed=7)
    second = ask(url)
    assert second.policy == f"tiny@{giving(seed=7).version}" != first.policy
    file.write_bytes(whole[:-9])
    assert ask(url).policy == second.policy
    assert "not a safetensors file" in file.with_name("log").read_text()
    file.unlink()
    assert ask(url).policy == second.policy
    file.write_bytes(whole)
    assert ask(url).policy == first.policy


def test_a_file_whose_disk_was_away_is_read_again_though_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(write_giving(tmp_path / "policy.safetensors"))

    def away(path: Path, limit: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as disk:
        disk.setattr(files, "read_bounded", away)
        with pytest.raises(PolicyFileError, match="cannot be read"):
            served.current()
    assert served.current().version.startswith("tiny@")


def test_scores_that_overflow_are_reported_and_the_next_file_is_served(url: str, file: Path) -> None:
    whole, weights = file.read_bytes(), {name: value + 1e12 for name, value in giving().network.weights.items()}
    write_policy(make_policy(JobScorer(weights), giving().lineage), file)
    with pytest.raises(PolicyFileError, match=r"tiny@\w+: its weights are so large that scores are not finite; learn"):
        ask(url)
    file.write_bytes(whole)
    assert ask(url).policy == f"tiny@{giving().version}"


def test_a_cluster_that_the_file_cannot_serve_is_refused_with_the_reason(url: str, file: Path) -> None:
    whole = file.read_bytes()
    write_giving(file, serves=Serves(min_gpus=4, max_gpus=8, max_jobs=9))
    with pytest.raises(PolicyFileError, match=r"tiny@\w+: the cluster has 3 GPUs, and the policy serves 4 to 8"):
        ask(url)
    write_giving(file, serves=Serves(min_gpus=1, max_gpus=8, max_jobs=1))
    with pytest.raises(PolicyFileError, match=r"there are 2 jobs, and the policy serves 1 at most"):
        ask(url)
    file.write_bytes(whole)


def test_what_cannot_be_read_is_an_error_of_its_own(url: str) -> None:
    for body, code in ((b"{}", 422), (b"not json", 422)):
        request = urllib.request.Request(f"{url}/v1/decision", data=body)
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(request, timeout=PATIENCE)
        assert raised.value.code == code
        assert "the question cannot be read" in json.load(raised.value)["message"]
    with pytest.raises(AwayError, match="it answers with code 404"):
        ask(f"{url}/elsewhere")


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nnonsense", PolicyFileError, "the answer cannot be read"),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", PolicyFileError, "the answer cannot be read: policy"),
        (b"HTTP/1.1 503 No\r\n\r\n" + b'{"message": "busy"}', AwayError, "it answers with code 503: busy"),
        (b"nonsense\r\n\r\n", AwayError, "http://127.0.0.1"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"1" * (MOST_BYTES + 2), PolicyFileError, "more than 16777216 bytes"),
    ],
)
def test_whatever_answers_is_survived(answer: bytes, error: type[Exception], message: str) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async def story() -> None:
        async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await asked(f"http://127.0.0.1:{port}", VIEW)

    with pytest.raises(error, match=re.escape(message)):
        asyncio.run(story())
