"""Maskable PPO on outcome tables: the smallest run gives the table of the report, with legal sequences alone."""

from __future__ import annotations

import json
from pathlib import Path

from bench.cases import masked_ppo
from bench.command import main


def test_the_smallest_run_compares_learners_with_constant_sequences(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    main(["masked-ppo", "--seeds", "1", "--steps", "768", "--work-dir", str(tmp_path), "--json", str(found)])
    (table,) = json.loads(found.read_text())["tables"]
    best, *learnt, most = table["rows"]
    assert best == ["best on average, [1, 0, 2]", "0.5399", "1", ""]
    assert most == ["best of each table", "0.5593", "6", ""]
    assert [name for name, *_ in learnt] == list(masked_ppo.LEARNERS)
    for _, accuracy, _, better in learnt:
        assert 0.3 < float(accuracy) <= 0.5593
        assert better in ("0 of 1", "1 of 1")
