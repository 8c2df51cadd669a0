"""Options of a run, and when GPUs come and go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from espalier_cli.main import cli
from espalier_cli.run import TimelineError, parse_arrival, parse_departure, parse_moment, require_in_time
from espalier_core.types.job import API_VERSION, KIND
from espalier_operator.local.settings import GpuChange

Run = Callable[..., Result]
BUDGET = 1
THEIRS = {
    "job.yaml": f"apiVersion: {API_VERSION}\nkind: {KIND}\nmetadata: {{name: a}}\n"
    f"spec: {{timeBudgetSeconds: {BUDGET}}}\n",
    "result.json": '{"mine": 1}',
    "state.json": '{"mine": 1}',
    "trainer.log": "mine",
    "checkpoints/checkpoint-00000001/model.safetensors": "mine",
    "checkpoints/notes.txt": "mine",
}
"""Files of a user's, with the names that a run uses."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return what runs a job with options; nothing that it is given here gets as far as a trainer."""
    (tmp_path / "a.yaml").write_text(THEIRS["job.yaml"])

    def invoke(*options: str | Path) -> Result:
        return CliRunner().invoke(cli, ["run", str(tmp_path / "a.yaml"), "--simulate", *map(str, options)])

    return invoke


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--arrive", "soon:1"), "'soon' is not a moment; write 20s"),
        (("--gpus", "1", "--depart", "1s:2"), "2 GPUs depart at 1 s, when fewer are left"),
        (("--time-budget", "-1"), "spec.timeBudgetSeconds: is -1"),
        (("--submit", "other:1s"), "where JOB is one of: a"),
        (("--arrive", "2s:1"), "error: --arrive: the arrival at 2 s never comes: the time budget ends at 1 s"),
        (("--no-agent", "--agent-url", "http://localhost:1"), "error: --no-agent and --agent-url exclude each other"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_starts(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    refused = run("--output", tmp_path / "out", *arguments)
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("restart", [(), ("--restart",)])
@pytest.mark.parametrize("name", THEIRS)
def test_files_that_no_run_wrote_are_left_alone(run: Run, tmp_path: Path, name: str, restart: tuple[str, ...]) -> None:
    folder = tmp_path / "theirs"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text(THEIRS[name])
    before = sorted(folder.rglob("*"))
    outcome = run("--output", folder, *restart)
    first = folder / name.partition("/")[0]
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith(f"error: {first}: no run has written it")
    assert "choose another --output folder, or move it away" in outcome.stderr
    assert (folder / name).read_text() == THEIRS[name]
    assert sorted(folder.rglob("*")) == before


def test_files_in_the_folder_of_one_of_several_jobs_are_left_alone(run: Run, tmp_path: Path) -> None:
    second = tmp_path / "b.yaml"
    second.write_text(THEIRS["job.yaml"].replace("name: a", "name: b"))
    theirs = tmp_path / "out" / "b" / "job.yaml"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    outcome = run(second, "--output", tmp_path / "out", "--restart")
    assert outcome.exit_code == 2
    assert f"error: {theirs}: no run has written it" in outcome.stderr
    assert theirs.read_text() == "mine"


@pytest.mark.parametrize("restart", [(), ("--restart",)])
def test_an_output_folder_whose_name_is_too_long_is_an_error_of_one_line(
    run: Run, tmp_path: Path, restart: tuple[str, ...]
) -> None:
    outcome = run("--output", tmp_path / ("x" * 256), *restart)
    assert outcome.exit_code == 2
    assert outcome.stderr.endswith("File name too long\n")
    assert outcome.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20s", 20), ("20", 20), ("1m30s", 90), ("500ms", 0.5), ("2h", 7200), ("30%", 12), ("0.5m", 30), ("12.5%", 5)],
)
def test_moments(text: str, seconds: float) -> None:
    assert parse_moment(text, budget_seconds=40) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "20 s", "20x", "1s1", "%", "nan", "1e3", "٣s"])
def test_what_is_no_moment_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(TimelineError, match=r"is not a moment; write 20s, 1m30s, 500ms or 30%"):
        parse_moment(text, budget_seconds=40)


def test_changes() -> None:
    assert parse_arrival("20s:1", 40) == GpuChange(at_seconds=20, change=1)
    assert parse_departure("50%:2", 40, notice_seconds=3) == GpuChange(at_seconds=20, change=-2, notice_seconds=3)


def test_a_departure_cannot_be_announced_before_the_run() -> None:
    assert parse_departure("1s:1", 40, notice_seconds=30).notice_seconds == 1


@pytest.mark.parametrize("text", ["20s", "20s:", "20s:0", "20s:-1", "20s:1.5", ":"])
def test_what_is_no_change_is_refused(text: str) -> None:
    with pytest.raises(TimelineError, match="write MOMENT:COUNT"):
        parse_arrival(text, 40)


def test_what_comes_after_the_end_is_refused() -> None:
    with pytest.raises(TimelineError, match=r"'300%:1' is after the end of the time budget; write at most 100%"):
        parse_arrival("300%:1", 40)
    with pytest.raises(TimelineError, match=r"--depart: the departure at 50 s never comes: the time budget ends at 40"):
        require_in_time([parse_departure("50s:1", 40, 1)], [40], {})
    # A second job may train after the first, and a third may be submitted after both.
    require_in_time([parse_arrival("100%:1", 40), parse_arrival("75s:1", 40)], [40, 40], {})
    require_in_time([parse_arrival("99s:1", 40)], [40, 40], {"c": 30})
