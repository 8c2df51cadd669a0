"""Policies survive the disk, and what is not one is refused with file and reason."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from espalier_agent.data import named_architecture
from espalier_agent.evaluation.evaluate import evaluate
from espalier_agent.policies.policy import (
    READINGS,
    Policy,
    PolicyDocument,
    PolicyError,
    load_policy,
    make_policy,
    save_policy,
)
from espalier_core.files.documents import read_bounded, write_document
from espalier_core.growth.deepen import deepened
from espalier_core.types.outcomes import OutcomeTable
from waiting import PATIENCE


@pytest.fixture
def saved(policy: Policy, tmp_path: Path) -> Path:
    folder = tmp_path / "policy"
    save_policy(policy, folder)
    return folder


@pytest.fixture
def fixed(fixed_policy: Policy, tmp_path: Path) -> Path:
    folder = tmp_path / "policy"
    save_policy(fixed_policy, folder)
    return folder


def test_a_policy_comes_back_as_it_was(policy: Policy, saved: Path, tables: dict[str, OutcomeTable]) -> None:
    back = load_policy(saved)
    assert (back.name, back.version, back.lineage) == (policy.name, policy.version, policy.lineage)
    assert back.vocabulary.keys == policy.vocabulary.keys
    assert torch.equal(back.vocabulary.embeddings, policy.vocabulary.embeddings)
    assert evaluate(back, [tables["cnn2-late"]]) == evaluate(policy, [tables["cnn2-late"]])
    assert not any(parameter.requires_grad for parameter in back.network.parameters())


def test_saving_twice_writes_the_same_bytes(policy: Policy, saved: Path) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    save_policy(policy, saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_replacing_a_policy_leaves_one(policy: Policy, saved: Path) -> None:
    larger = policy.vocabulary.extended([deepened(named_architecture("cnn1"), "block0")])
    network = policy.network
    with torch.no_grad():
        changed = make_policy("other", network, larger, policy.lineage)
        next(changed.network.parameters()).add_(1.0)
    save_policy(make_policy("other", changed.network, larger, policy.lineage), saved)
    assert load_policy(saved).name == "other"
    assert len(list(saved.iterdir())) == 2


def test_of_two_writers_the_later_one_stays_whole(
    policy: Policy, fixed_policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is held up between its weights and its document, where the second would delete the weights."""
    folder = tmp_path / "made" / "by-the-first"
    first_is_at_it, second_waits, second_is_done = (threading.Event() for _ in range(3))

    def held_up(path: Path, document: PolicyDocument) -> None:
        if document.name == "fixed":
            first_is_at_it.set()
            assert second_waits.wait(PATIENCE)
            assert not second_is_done.is_set(), "the second did not wait"
        write_document(path, document)

    def second() -> None:
        assert first_is_at_it.wait(PATIENCE)
        save_policy(policy, folder)
        second_is_done.set()

    def sleep(seconds: float) -> None:
        second_waits.set()
        time.sleep(seconds)

    monkeypatch.setattr("espalier_agent.policies.policy.write_document", held_up)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr("espalier_agent.policies.policy.time", clock)
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(second)
        save_policy(fixed_policy, folder)
        later.result(PATIENCE)
    assert load_policy(folder).identity == policy.identity


def test_a_writer_does_not_wait_for_ever(policy: Policy, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("espalier_agent.policies.policy.LOCK_SECONDS", 0.1)
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    holder = os.open(saved, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(
            PolicyError, match=r"policy: another process has been writing .* 0\.1 s; wait for that"
        ) as caught:
            save_policy(policy, saved)
    finally:
        os.close(holder)
    assert str(saved) in str(caught.value)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    save_policy(policy, saved)


def test_a_policy_replaces_only_the_one_it_was_judged_against(
    policy: Policy, fixed_policy: Policy, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(folder: Path) -> Policy:
        other = os.open(folder, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(other)
        return load_policy(folder)

    monkeypatch.setattr("espalier_agent.policies.policy.load_policy", locked)
    save_policy(fixed_policy, saved, instead_of=policy.identity)
    assert load_policy(saved).identity == fixed_policy.identity
    with pytest.raises(PolicyError, match="policy: another policy came into service meanwhile; judge again"):
        save_policy(policy, saved, instead_of=policy.identity)
    assert load_policy(saved).identity == fixed_policy.identity


@pytest.mark.parametrize("times", [1, READINGS - 1, READINGS])
def test_a_policy_that_is_replaced_while_it_is_read_is_read_again(
    policy: Policy, fixed_policy: Policy, saved: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A writer comes between document and weights, so many times."""
    coming = [fixed_policy, policy] * times

    def overtaken(path: Path, limit: int) -> bytes:
        if len(coming) > times:
            save_policy(coming.pop(0), saved)
        return read_bounded(path, limit)

    monkeypatch.setattr("espalier_agent.policies.policy.read_bounded", overtaken)
    if times < READINGS:
        assert load_policy(saved).identity == (fixed_policy if times % 2 else policy).identity
    else:
        with pytest.raises(PolicyError, match=r"\.safetensors: cannot be read \(No such file"):
            load_policy(saved)


Damage = Callable[[Path], object]


def edit(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Return what changes the document of a policy."""

    def damage(folder: Path) -> None:
        path = folder / "policy.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return damage


def edit_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    """Return what changes tensors, and makes the digest fit, so that only the tensors are wrong."""

    def damage(folder: Path) -> None:
        tensors = load_file(weights(folder))
        change(tensors)
        save_file(tensors, weights(folder))
        overwrite_weights(folder, weights(folder).read_bytes())

    return damage


def overwrite_weights(folder: Path, content: bytes) -> None:
    weights(folder).write_bytes(content)
    edit(lambda document: document.update(weightsSha256=hashlib.sha256(content).hexdigest()))(folder)


def typed_weights(folder: Path, kind: str) -> None:
    """Write a file of one tensor of a type that torch may not have."""
    header = json.dumps({BIAS: {"dtype": kind, "shape": [4], "data_offsets": [0, 4]}}).encode()
    overwrite_weights(folder, struct.pack("<Q", len(header)) + header + bytes(4))


def pickled() -> bytes:
    written = io.BytesIO()
    torch.save({BIAS: torch.zeros(4)}, written)
    return written.getvalue()


def weights(folder: Path) -> Path:
    return next(folder.glob("*.safetensors"))


BIAS = "network.decider.4.bias"
BROKEN: dict[str, tuple[Damage, str]] = {
    "no document": (lambda f: (f / "policy.json").unlink(), r"policy\.json: cannot be read \(No such file"),
    "a folder in its place": (
        lambda f: ((f / "policy.json").unlink(), (f / "policy.json").mkdir()),
        r"policy\.json: cannot be read \(Is a directory",
    ),
    "half a document": (
        lambda f: (f / "policy.json").write_text((f / "policy.json").read_text()[:100]),
        r"policy\.json: not complete JSON",
    ),
    "a list": (lambda f: (f / "policy.json").write_text("[]"), r"policy\.json: holds list"),
    "a name of half a character": (
        edit(lambda d: d.update(name="\ud800")),
        r"policy\.json: name: Input should be a valid string",
    ),
    "a setting that is no number": (
        edit(lambda d: d["lineage"]["config"].update(entropy=float("nan"))),
        r"policy\.json: lineage\.config\.entropy\.int: Input should be a finite number",
    ),
    "a future version": (edit(lambda d: d.update(version=99)), "version 99 comes from a newer Espalier"),
    "a missing field": (edit(lambda d: d.pop("lineage")), r"policy\.json: lineage: Field required"),
    "an unknown encoder": (edit(lambda d: d["network"].update(encoder="gnn")), r"policy\.json: network\.encoder"),
    "weights elsewhere": (
        edit(lambda d: d.update(weights="../weights.safetensors")),
        r"policy\.json: weights: String should match",
    ),
    "weights gone": (
        lambda f: next(f.glob("*.safetensors")).unlink(),
        r"\.safetensors: cannot be read \(No such file.*policy\.json names it",
    ),
    "weights damaged": (
        lambda f: next(f.glob("*.safetensors")).write_bytes(b"\0" * 100),
        r"\.safetensors: is not the file that .*policy\.json was written with",
    ),
    "weights not safetensors": (
        lambda f: overwrite_weights(f, b"not tensors at all"),
        r"\.safetensors: not a safetensors file",
    ),
    "a pickle": (lambda f: overwrite_weights(f, pickled()), r"\.safetensors: not a safetensors file"),
    "truncated weights": (
        lambda f: overwrite_weights(f, weights(f).read_bytes()[:-100]),
        r"\.safetensors: not a safetensors file",
    ),
    "a terabyte of weights": (lambda f: os.truncate(weights(f), 2**40), r"\.safetensors: is larger than 256 MiB"),
    "a folder of weights": (
        lambda f: (path := weights(f), path.unlink(), path.mkdir()),
        r"\.safetensors: cannot be read \(Is a directory",
    ),
    "a type that torch does not have": (
        lambda f: typed_weights(f, "F8_E8M0"),
        r"\.safetensors: holds tensors of type 'F8_E8M0', where torch\.float32 is expected",
    ),
    "empty weights": (lambda f: overwrite_weights(f, b""), r"\.safetensors: not a safetensors file"),
    "a tensor missing": (edit_weights(lambda t: t.pop(BIAS)), r"tensor 'network\.decider\.4\.bias' is missing"),
    "a tensor of another shape": (
        edit_weights(lambda t: t.update({BIAS: torch.zeros(7)})),
        r"tensor 'network\.decider\.4\.bias' has shape \[7\], where \[4\] is expected",
    ),
    "a tensor of another type": (
        edit_weights(lambda t: t.update({BIAS: torch.zeros(4, dtype=torch.float64)})),
        r"is torch\.float64, where torch\.float32 is expected",
    ),
    "not a number": (
        edit_weights(lambda t: t.update({BIAS: torch.full((4,), torch.nan)})),
        "holds values that are not finite",
    ),
    "infinite": (
        edit_weights(lambda t: t.update({BIAS: torch.full((4,), -torch.inf)})),
        "tensor 'network\\.decider\\.4\\.bias' holds values that are not finite",
    ),
    "embeddings that are no numbers": (
        edit_weights(lambda t: t["vocabulary.embeddings"].fill_(torch.nan)),
        "tensor 'vocabulary\\.embeddings' holds values that are not finite",
    ),
    "a tensor of a type of which torch does not know whether it is finite": (
        edit_weights(lambda t: t.update({BIAS: t[BIAS].to(torch.float8_e4m3fn)})),
        r"is torch\.float8_e4m3fn, where torch\.float32 is expected",
    ),
    "a tensor too many": (
        edit_weights(lambda t: t.update(extra=torch.zeros(1))),
        "tensor 'extra' does not belong to this network",
    ),
    "a head of another size": (
        edit(lambda d: d["network"].update(growthPoints=5)),
        r"tensor 'network\.decider\.4\.weight' has shape \[4, 128\], where \[6, 128\] is expected",
    ),
    "a word twice": (
        edit(lambda d: d["vocabulary"].__setitem__(1, d["vocabulary"][0])),
        r"policy\.json: the vocabulary names a layer twice",
    ),
    "words in another order": (
        edit(lambda d: d["vocabulary"].reverse()),
        r"policy\.json: policyVersion is '[0-9a-f]{12}', where the contents have version '[0-9a-f]{12}'",
    ),
    "the version of another": (
        edit(lambda d: d.update(policyVersion="1a2e67411c2c")),
        r"policy\.json: policyVersion is '1a2e67411c2c', where the contents have version",
    ),
    "other weights": (
        edit_weights(lambda t: t[BIAS].add_(1)),
        r"policy\.json: policyVersion is .*: copy the policy again, or learn it again",
    ),
    "a word missing": (edit(lambda d: d["vocabulary"].pop()), r"tensor 'vocabulary\.embeddings' has shape"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_policy_is_refused(fixed: Path, case: str) -> None:
    damage, expected = BROKEN[case]
    damage(fixed)
    with pytest.raises(PolicyError, match=expected) as caught:
        load_policy(fixed)
    assert str(fixed) in str(caught.value)


def test_a_policy_that_was_changed_since_it_was_made_is_not_written(policy: Policy, saved: Path) -> None:
    changed = make_policy("changed", policy.network, policy.vocabulary, policy.lineage)
    next(changed.network.parameters()).add_(1.0)
    with pytest.raises(PolicyError, match=rf"changed@{policy.version} is not written, for its contents are those of"):
        save_policy(changed, saved)
    assert load_policy(saved).identity == policy.identity


def test_version_follows_contents(policy: Policy) -> None:
    same = make_policy("renamed", policy.network, policy.vocabulary, policy.lineage)
    assert same.version == policy.version
    with_more = policy.vocabulary.extended([deepened(deepened(named_architecture("cnn1"), "block2"), "block0")])
    changed = make_policy(policy.name, policy.network, with_more, policy.lineage)
    assert (changed.version != policy.version) == (len(with_more) != len(policy.vocabulary))
