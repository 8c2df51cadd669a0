"""Collecting a corpus: which ways and which part, and the file that comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from espalier_cli.errors import InputError
from espalier_core.types.outcomes import read_corpus
from espalier_lab.growth.collect.command import collect
from espalier_lab.growth.collect.corpus import CorpusOptions, Way

MODELS = Path(__file__).parent / "models.py"


def options(moments: tuple[float, ...], *ways: Way, part: tuple[int, int] = (1, 1)) -> CorpusOptions:
    return CorpusOptions("growth", moments, 3, ways, 1.8, range(2), part)


def test_one_moment_leaves_no_second_decision() -> None:
    assert options((0.2, 0.5)).chosen() == [Way.PLAIN, Way.GROWN, Way.FASTER]
    assert options((0.2,), Way.INSERTED).chosen() == [Way.INSERTED]
    assert options((0.2,)).chosen() == [Way.PLAIN, Way.FASTER]
    assert options((0.2, 0.5), Way.FASTER, Way.PLAIN).chosen() == [Way.PLAIN, Way.FASTER]
    for way in (Way.GROWN, Way.AGAIN):
        with pytest.raises(InputError, match=f"--way {way}"):
            options((0.2,), way).chosen()


def test_a_corpus_says_how_it_is_made_again() -> None:
    assert options((0.125, 0.5), Way.PLAIN, part=(2, 8)).source() == (
        "espalier agent collect --corpus growth --moments 12.5%,50% --most 3 --way plain --throughput 1.8 --part 2/8"
    )


def test_a_part_is_collected_in_all_ways_and_one_that_cannot_grow_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "corpus.json.xz"

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(
            collect, ["--corpus", str(MODELS), "--output", str(file), *arguments], standalone_mode=False
        )
        return result.exit_code, str(result.exception or result.output)

    code, said = run("--part", "4/4", "--most", "1")
    assert code == 0, said
    records = read_corpus(file).cases
    assert {record.case for record in records} == {"values"}
    assert [(bool(record.grown), record.speed) for record in records] == [(False, 1.0), (True, 1.0), (False, 1.8)]
    assert "no model in it can grow" in run("--part", "2/4", "--way", "grown")[1]
    assert "there are 4 cases" in run("--part", "5/5")[1]
    assert "write 2/8" in run("--part", "5/4")[1]


CASES = """
import torch
from torch import nn

def cases():
    data = torch.randn(16, 4), torch.arange(16) % 2
    yield {
        "name": "one", "family": "f", "module": lambda seed: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
        "train": data, "validation": data, "test": data, "steps": 4, "batchSize": 4,
        "optimizer": {"name": "Adam", "learningRate": 0.01},
    }
"""


def test_a_changed_file_is_collected_again_and_restart_forgets(tmp_path: Path) -> None:
    cases, file = tmp_path / "cases.py", tmp_path / "corpus.json.xz"
    plain = ["--corpus", str(cases), "--output", str(file), "--moments", "50%", "--way", "plain", "--most", "1"]

    def collected(*more: str) -> list[int]:
        result = CliRunner().invoke(collect, [*plain, *more])
        assert result.exit_code == 0, result.output
        return [one.architecture.parameters for one in read_corpus(file).cases if one.architecture is not None]

    cases.write_text(CASES)
    assert collected() == [58]
    (record,) = (tmp_path / "corpus.json.xz.work").rglob("*.json")
    record.write_text(record.read_text().replace('"steps": 4', '"steps": 5'))
    assert collected() == [58]
    assert read_corpus(file).cases[0].steps == 5
    assert collected("--restart") == [58]
    assert read_corpus(file).cases[0].steps == 4
    cases.write_text(CASES.replace("8", "16"))
    assert collected() == [114]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--corpus", "growth", "--device", "cuda"), "--device is for a JOB, not for --corpus"),
        (("--corpus", "growth", "--start-at", "30%"), "--start-at is for a JOB, not for --corpus"),
        (("job.yaml", "--start-at", "30%", "--part", "1/2"), "--part is for --corpus, not for a JOB"),
        (("--corpus", "nowhere.py"), "nowhere.py: cannot be read (No such file or directory)"),
    ],
)
def test_options_that_would_be_left_aside_are_refused(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(collect, [*arguments, "--output", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert told in result.output
