"""Benchmarks run to their end, at their smallest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench.command import main
from bench.paying.arms import Arm
from bench.paying.runs import Head, Runs

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
BENCH = ("env", f"PYTHONPATH={BENCHMARKS}", sys.executable, "-m", "bench")


def test_what_changes_of_the_workers_cost(tmp_path: Path) -> None:
    command = [*BENCH, "elastic", "--quick", "--markdown"]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=280, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert result.returncode == 0, result.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.stdout.splitlines() if "|" in line]
    (changes,) = [row for row in rows if row[:2] == ["digits", "306"]]
    assert all(float(cell) > 0 for cell in changes[2:])
    throughputs = {tuple(row[:2]): row[2:] for row in rows if row[0] == "digits, keepGlobal"}
    assert sorted(world for _, world in throughputs) == ["1", "2"]
    assert all(float(cell.replace(",", "").split()[0]) > 0 for row in throughputs.values() for cell in row)
    assert list(tmp_path.iterdir()) == [], "nothing is left"


@pytest.mark.timeout(800)
def test_what_growth_into_extra_gpus_pays(tmp_path: Path) -> None:
    """Two real workers, all arms, one seed and a budget of two seconds; a second call finds all runs done.

    The GPU stays for long: on a busy machine a join is measured to cost half a second, and is charged.
    """
    runs, picture = tmp_path / "digits.jsonl", tmp_path / "pays-digits.png"
    command = [*BENCH, "pays", "--quick", "--work-dir", str(tmp_path), "--picture", str(tmp_path / "pays.png")]
    for missing in (5, 0):
        temporary = tmp_path / f"temporary-{missing}"
        temporary.mkdir()
        environment = {**os.environ, "TMPDIR": str(temporary)}
        result = subprocess.run(command, capture_output=True, text=True, timeout=380, env=environment)
        assert result.returncode == 0, result.stderr
        assert result.stderr.count("seed 0, ") == missing
        assert [each.name for each in temporary.iterdir() if each.name.startswith("espalier")] == [], "nothing is left"
    found = {each.arm: each for each in Runs(Head.model_validate_json(runs.read_text().splitlines()[0]), runs)}
    assert set(found) == set(Arm)
    assert found[Arm.ALONE].joint_steps == 0
    assert all(each.joint_steps > 0 for arm, each in found.items() if arm is not Arm.ALONE)
    assert found[Arm.FIXED].actions == ("Deepen(block0)",) * len(found[Arm.FIXED].actions) != ()
    assert found[Arm.ELASTIC].depth == found[Arm.ALONE].depth < found[Arm.SCRATCH].depth
    assert picture.stat().st_size > 10_000


def test_what_rewrites_of_the_computation_gain() -> None:
    """The quick form. It fails where an execution computes something else than its model."""
    command = [*BENCH, "rewrites", "--quick", "--markdown"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.stdout.splitlines() if "|" in line]
    gains = {row[0]: row for row in rows if ", " in row[0] and row[0] != "net, how"}
    for method in ("random", "greedy", "best-first", "beam"):
        assert "ChainedLinears" in gains[f"handwritten, {method}"][2]
        assert float(gains[f"handwritten, {method}"][3]) > 1.2, "the table sees the chain of linear layers"
    assert all(float(row[-1]) <= 1e-9 for row in gains.values())


def test_the_shipped_policy_is_judged_on_families_that_it_has_not_met(tmp_path: Path) -> None:
    """The quick form: a few families, one seed. It fails where the advice is worse than never and always growing."""
    command = [*BENCH, "advice-unseen", "--quick", "--work-dir", str(tmp_path)]
    command += ["--parallel", "1"]  # other tests have the other cores
    result = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "\n5 cases of 5 families, 10 decisions\n" in result.stdout
    advisors = ("none", "advice", "confirm", "race")
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("  ")]
    regret = {row[0]: float(row[1]) for row in rows if row[0] in advisors}
    assert set(regret) == set(advisors)
    assert regret["race"] < regret["none"]


def test_learned_allocation_is_compared_with_rules(tmp_path: Path) -> None:
    """The quick form. It fails where what is learnt is worse than the rule that the source imitates."""
    command = [*BENCH, "learned", "--quick", "--work-dir", str(tmp_path), "--markdown"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.stdout.splitlines() if "|" in line]
    slots = {row[0]: float(row[1].split()[0]) for row in rows[2:]}
    assert slots["learned"] < slots["drf"]
    assert [path.name for path in tmp_path.iterdir()] == ["learned-0.safetensors"]


def test_a_residual_net_is_compared_with_fixed_depths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The quick form, in this process and on images that are made here; the second call finds all runs done."""
    chance = np.random.default_rng(0)
    for split, count in (("train", 60), ("test", 10)):
        for name in range(10):
            folder = tmp_path / "data" / split / f"class{name}"
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = chance.integers(0, 90, (32, 32, 3))
                pixels[:, :, name % 3] += 15 * name
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    runs, page = tmp_path / "runs.jsonl", tmp_path / "page.md"
    page.write_text("<!-- BEGIN figures (make bench-cifar) -->\nold\n<!-- END figures -->\nafter\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = ["--quick", "--data", str(tmp_path / "data"), "--work-dir", str(tmp_path), "--page", str(page)]
    for made in (2, 0):
        main(["cifar", *options])
        told = capsys.readouterr()
        assert told.err.count(" error (") == made
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in told.out.splitlines() if "|" in line]
    errors = {row[0]: float(row[3].split()[0]) for row in rows[2:]}
    assert set(errors) == {"1 block", "1 → 4, unfolded copies at 20%"}
    assert max(errors.values()) < 0.9, "nine of ten images are wrong by chance"
    found = [json.loads(line) for line in runs.read_text().splitlines()[1:]]
    assert sorted(run["blocks"] for run in found) == [3, 12]
    text = page.read_text()
    assert text.endswith("<!-- END figures -->\nafter\n")
    assert "| 1 → 4, exact at 20% | 0.004 | 0 | not run |" in text


def test_a_language_model_is_compared_with_fixed_depths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The quick form, twice, in this process: the second call finds all runs done, and writes what there is."""
    page = tmp_path / "page.md"
    other = "**Budget 160 virtual seconds**\n\n| arm | of another budget |\n\n"
    old = f"old\n\n**Budget 2 virtual seconds**\n\n| arm | measured before |\n\n{other}"
    page.write_text(f"before\n<!-- BEGIN figures (make bench-gpt) -->\n{old}<!-- END figures -->\nafter\n")
    for made in (3, 0):
        main(["gpt", "--quick", "--work-dir", str(tmp_path), "--page", str(page)])
        told = capsys.readouterr()
        assert told.err.count(" bits (") == made
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in told.out.splitlines() if "|" in line]
    bits = {row[0]: float(row[3].split()[0]) for row in rows[2:]}
    assert set(bits) == {"1 block", "4 blocks", "1 → 4, scaled copies at 20%"}
    # To call all 128 tokens alike takes 7 bits. So early the large net is far behind, and the grown one is less so.
    assert bits["1 block"] < bits["1 → 4, scaled copies at 20%"] < bits["4 blocks"] < 6
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"|\n\n{other}<!-- END figures -->\nafter\n"), "the table of another budget stays"
    assert "| 2 blocks | 0.004 | 0 | not run |" in text
    assert "\nold\n" not in text
    assert "measured before" not in text


def test_what_a_batch_size_that_follows_goodput_pays() -> None:
    """On the assumed device, where 64 examples are few, it grows."""
    result = subprocess.run([*BENCH, "batch", "--quick", "--markdown"], capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.stdout.splitlines() if "|" in line]
    fixed, goodput = (next(row for row in rows if row[:2] == ["device, 1", arm]) for arm in ("Fixed", "Goodput"))
    assert fixed[5:7] == ["64", "0.0"]
    assert float(goodput[5]) > 64
    assert all(0 < float(row[2]) <= 1 for row in (fixed, goodput))


def test_what_is_learnt_in_a_dream_of_rewrites() -> None:
    command = [*BENCH, "rewrites-dreamt", "--quick", "--markdown"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.stdout.splitlines() if "|" in line]
    found = {row[0]: row for row in rows if row[0].startswith("repvgg-like, ")}
    assert {"repvgg-like, PPO", "repvgg-like, awake", "repvgg-like, dream 1", "repvgg-like, dreamt"} <= set(found)
    assert float(found["repvgg-like, beam 8"][4]) == 1, "all shares are of beam's gain"
