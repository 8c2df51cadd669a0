"""What a run came to: result, comparison, picture, and what a person sees meanwhile."""

from __future__ import annotations

import io
import itertools
import re
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from espalier_cli.compare import read_run, table_of, verdict
from espalier_cli.display import JobRow, LiveDisplay, PlainDisplay, progress_table, updated
from espalier_cli.main import cli
from espalier_cli.picture import Curve, Trial, draw_comparison, draw_training, labels_of, trials_of
from espalier_cli.run import write_results
from espalier_cli.tables import table_for
from espalier_core.files.documents import DocumentError
from espalier_core.types.event_lines import line_for
from espalier_core.types.events import (
    NOT_GROWABLE,
    AdaptationFinished,
    AnyEvent,
    BatchSizeChanged,
    EpochFinished,
    JobChanged,
    ProgressRead,
    TrainerStarted,
    Warned,
)
from espalier_core.types.job import API_VERSION, KIND, AdaptiveTrainingJob
from espalier_core.types.reasons import Reason
from espalier_core.types.report import AdaptationResult, Arm, Metric, Report
from espalier_core.types.result import RunResult, read_history, summarize
from espalier_core.types.status import JobPhase
from espalier_core.types.task import Score, accuracy_of, accuracy_score
from espalier_core.validation.reading import with_spec
from espalier_operator.local import LocalOutcome, run_lock
from espalier_operator.local.backend import mark
from operator_world.kube_objects import adaptation

JOB_OF_TEN_SECONDS = AdaptiveTrainingJob.model_validate(
    {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "a"}, "spec": {"timeBudgetSeconds": 10}}
)
OUTCOME = LocalOutcome(
    **{"job": "a", "phase": JobPhase.COMPLETE, "reason": Reason.BUDGET_EXHAUSTED, "message": "", "exit_code": 0},
    **{"used_seconds": 10.0, "gpu_seconds_used": 10.0, "restarts": 0, "failures": 0, "preemptions": 0, "report": None},
)


def result_of(**scores: Any) -> RunResult:
    ended = {"phase": "Complete", "reason": "BudgetExhausted", "time_budget_seconds": 10, "used_seconds": 10}
    return RunResult(job="default/a", seed=0, **ended, **scores)


def test_a_result_says_what_the_events_say(result: RunResult) -> None:
    assert (result.depth_before, result.depth_after) == (4, 5)
    assert (result.parameters_before, result.parameters_after) == (100, 150)
    assert (result.test_accuracy, result.validation_accuracy) == (0.81, 0.8)
    assert (result.epochs, result.steps) == (2, 47)
    assert result.max_step_gap_seconds == pytest.approx(0.2)
    assert [record.allocation.generation for record in result.allocations] == [1, 2]
    assert [record.acknowledged_after_seconds for record in result.allocations] == [None, 0.1]
    assert [(adaptation.decision_id, adaptation.accuracy_after) for adaptation in result.adaptations] == [("d1", 0.8)]


def test_a_result_says_why_the_model_could_not_grow(events: tuple[AnyEvent, ...]) -> None:
    said = Warned(time=events[0].time, used_seconds=0, reason=NOT_GROWABLE, message="no growth point")
    result = summarize(
        JOB_OF_TEN_SECONDS, (said, *events), seed=3, phase="Complete", reason="", used_seconds=1, gpu_seconds_used=1
    )
    assert result.cannot_grow == "no growth point"


def test_a_result_says_how_far_a_killed_run_came_and_forgets_growths_that_a_restart_undid(
    events: tuple[AnyEvent, ...],
) -> None:
    """A loop that reports no validation has no events of epochs; only the report knows its steps."""
    told = [event for event in events if event.type not in ("EpochFinished", "TrainerFinished")]
    (grown,) = (event.adaptation for event in told if event.type == "AdaptationFinished")
    for kept in ((), (grown,)):
        came = {"epoch": 7, "step": 99, "depth": 4 + len(kept), "parameters": 100, "used_seconds": 4.0}
        report = Report(job="one", incarnation="i", updated_time=events[0].time, adaptations=kept, **came)
        ended = {"phase": "Failed", "reason": "", "used_seconds": 4.0, "gpu_seconds_used": 4.0}
        result = summarize(JOB_OF_TEN_SECONDS, told, seed=3, report=report, **ended)
        assert (result.epochs, result.steps, result.depth_after) == (7, 99, 4 + len(kept))
        assert result.adaptations == kept


def test_a_history_cut_short_by_a_kill_is_read_without_its_last_line(finished_run: Callable[..., Path]) -> None:
    path = finished_run("a") / "history.jsonl"
    whole = read_history(path)
    path.write_text(path.read_text()[:-40])
    assert read_history(path) == whole[:-1]


def test_damage_in_the_middle_of_a_history_is_named(finished_run: Callable[..., Path]) -> None:
    path = finished_run("a") / "history.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], '{"type": "Nonsense"}', *lines[1:]]))
    with pytest.raises(DocumentError, match=r"history.jsonl:2: not an event of this version"):
        read_history(path)


def test_a_damaged_history_is_reported_before_the_budget_is_spent(
    finished_run: Callable[..., Path], tmp_path: Path
) -> None:
    """It was said at the end, in place of the result."""
    folder, job = finished_run("a"), tmp_path / "a.yaml"
    mark(folder, ["a"])
    (folder / "history.jsonl").write_text('{"type": "Nonsense"}\n{"type": "Nonsense"}\n')
    job.write_text(f"apiVersion: {API_VERSION}\nkind: {KIND}\nmetadata: {{name: a}}\nspec: {{timeBudgetSeconds: 1}}\n")
    outcome = CliRunner().invoke(cli, ["run", str(job), "--simulate", "--no-agent", "--output", str(folder)])
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith(f"error: {folder}/history.jsonl:1: not an event of this version")
    assert "remove the line, or the file: runs go on without it" in outcome.stderr
    assert not (folder / "allocation.json").exists()


def test_compare_puts_runs_side_by_side_and_says_what_one_seed_is_worth(finished_run: Callable[..., Path]) -> None:
    folders = [finished_run("not-grown", 0.70), finished_run("grown", 0.81)]
    outcome = CliRunner().invoke(cli, ["compare", *map(str, folders)])
    assert outcome.exit_code == 0
    assert "0.7000" in outcome.stdout
    assert "0.8100" in outcome.stdout
    assert "grown has 0.1100 more accuracy than not-grown (seed 0, one run each: an anecdote" in outcome.stdout


def test_compare_of_runs_on_different_data_says_that_they_cannot_be_compared(finished_run: Callable[..., Path]) -> None:
    folders = [finished_run("digits", 0.70), finished_run("cifar", 0.81)]
    for folder, dataset in zip(folders, ("digits", "cifar10 (path=/data)"), strict=True):
        result = RunResult.model_validate_json((folder / "result.json").read_text())
        (folder / "result.json").write_text(result.model_copy(update={"dataset": dataset}).model_dump_json())
    outcome = CliRunner().invoke(cli, ["compare", *map(str, folders)])
    assert outcome.exit_code == 0
    assert "digits was trained on digits, cifar on cifar10 (path=/data)" in outcome.stdout
    assert "cannot be compared" in outcome.stdout
    assert "more accuracy" not in outcome.stdout


def test_a_result_names_its_data_but_for_programs_that_load_their_own(result: RunResult) -> None:
    def of(**training: object) -> str:
        job = with_spec(JOB_OF_TEN_SECONDS, training=training)
        return summarize(job, (), seed=0, phase="", reason="", used_seconds=0, gpu_seconds_used=0).dataset

    assert result.dataset == of() == "digits"
    assert of(dataset={"name": "imagefolder", "path": "/x"}) == "imagefolder (path=/x)"
    container = {"command": ["python", "x.py"], "resources": {"limits": {"nvidia.com/gpu": 1}}}
    own = with_spec(JOB_OF_TEN_SECONDS, template={"spec": {"containers": [container]}})
    assert summarize(own, (), seed=0, phase="", reason="", used_seconds=0, gpu_seconds_used=0).dataset == ""


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
@pytest.mark.parametrize("runs", [1, 2, 5])
def test_tables_break_no_words(finished_run: Callable[..., Path], width: int, runs: int) -> None:
    curves = [read_run(finished_run(f"run-{number}")) for number in range(runs)]
    console = Console(file=io.StringIO(), width=width)
    console.print(table_of(curves, width))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("BudgetExhausted") == runs, text
    assert "…" not in text
    if width >= 80 and runs <= 2:
        assert "│" in text, "there is room for a table"


def test_the_live_table_leaves_the_bars_out_where_there_is_little_room() -> None:
    row = JobRow("digits", 10, decision="Deepen(block0) (Grown)", phase="Evaluating", score=accuracy_score(0.5))
    for width, bars in ((80, False), (120, True)):
        console = Console(file=io.StringIO(), width=width)
        console.print(progress_table([row], width))
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert ("time budget" in text) is bars
        assert "Deepen(block0) (Grown)" in text


def test_compare_of_a_folder_without_a_run_says_how_to_make_one(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(cli, ["compare", str(tmp_path)])
    assert outcome.exit_code == 2
    assert "holds no finished run (result.json is missing); make one with: espalier run JOB --output" in outcome.stderr


@pytest.mark.parametrize(
    ("content", "fault"), [(b'{"job": "default', "Invalid JSON"), (b"[]", "should be an object"), (b"\xff{}", "JSON")]
)
def test_a_damaged_result_is_one_line_with_what_to_do(
    finished_run: Callable[..., Path], content: bytes, fault: str
) -> None:
    path = finished_run("a") / "result.json"
    path.write_bytes(content)
    outcome = CliRunner().invoke(cli, ["compare", str(path.parent)])
    assert outcome.exit_code == 2
    (line,) = outcome.stderr.splitlines()
    assert line.startswith(f"error: {path}: is not the result of a run (")
    assert fault in line
    assert line.endswith("; the same `espalier run` writes it again")


def test_validate_prints_problems_to_stdout_and_exits_2(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"apiVersion: {API_VERSION}\nkind: {KIND}\nmetadata: {{name: a}}\nspec: {{timeBudgetSeconds: 0}}\n")
    outcome = CliRunner().invoke(cli, ["validate", str(path)])
    assert outcome.exit_code == 2
    assert outcome.stdout == f"{path}:4: spec.timeBudgetSeconds: is 0; must be greater than 0\n"
    path.write_text(path.read_text().replace("Seconds: 0", "Seconds: 1"))
    assert CliRunner().invoke(cli, ["validate", str(path)]).exit_code == 0


def test_validate_checks_queues_too(tmp_path: Path) -> None:
    path = tmp_path / "queues.yaml"
    queue = f"apiVersion: {API_VERSION}\nkind: Queue\nmetadata: {{name: a}}\n"
    path.write_text(f"{queue}spec:\n  quotas:\n  - nominal: -1\n  weight: 0\n")
    outcome = CliRunner().invoke(cli, ["validate", str(path)])
    assert outcome.exit_code == 2
    assert [line.removeprefix(f"{path}:").split(": is")[0] for line in outcome.stdout.splitlines()] == [
        "6: spec.quotas[0].nominal",
        "7: spec.weight",
    ]
    path.write_text(f"{queue}---\n" * 2)
    outcome = CliRunner().invoke(cli, ["validate", str(path)])
    assert "metadata.name: 'a' is used by 2 queues; names must differ" in outcome.stdout
    teams = Path(__file__).parents[3] / "examples" / "queues" / "two-teams.yaml"
    outcome = CliRunner().invoke(cli, ["validate", str(teams)])
    assert (outcome.exit_code, outcome.stdout) == (0, ""), outcome.output
    assert CliRunner().invoke(cli, ["run", str(teams)]).exit_code == 2, "there is no job in it"


def test_the_pictures_are_pngs_of_a_useful_size(
    tmp_path: Path, result: RunResult, events: tuple[AnyEvent, ...]
) -> None:
    curve = Curve("grown", result, events)
    draw_training(curve, tmp_path / "training.png")
    draw_comparison([curve, curve], tmp_path / "both.png")
    for name in ("training.png", "both.png"):
        header = (tmp_path / name).read_bytes()[:24]
        assert header.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", header[16:])
        assert width > 800
        assert height > 400


def test_a_comparison_draws_each_of_many_runs(tmp_path: Path, result: RunResult, events: tuple[AnyEvent, ...]) -> None:
    names = [f"run {number}" for number in range(18)]
    draw_comparison([Curve(name, result, events) for name in names], tmp_path / "many.svg")
    text = (tmp_path / "many.svg").read_text()
    assert [name for name in names if f"<!-- {name}: 0.810 on the test split -->" not in text] == []


def test_a_run_that_never_trained_is_drawn_too(tmp_path: Path, result: RunResult) -> None:
    draw_training(Curve("empty", result, ()), tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 1000


def test_the_view_follows_the_events(events: tuple[AnyEvent, ...]) -> None:
    view = JobRow("default/a", budget_seconds=10)
    for event in events:
        view = updated(view, event)
    assert (view.epoch, accuracy_of(view.score), view.depth, view.gpus) == (2, 0.81, 5, 2)
    assert view.decision == "Deepen(block0) (Grown)"
    assert view.used_share == 1.0


def test_lines_tell_the_story(events: tuple[AnyEvent, ...]) -> None:
    lines = [line for event in events if (line := line_for(event))]
    assert lines == [
        "allocation 1: 1 GPU, none",
        "training starts on cpu: depth 4, 100 parameters",
        "allocation 2: 2 GPUs, up, ExtraGPUsGranted: spare GPUs were lent to it",
        "allocation 2 acknowledged after 0.10 s",
        "default@1 says Deepen(block0): Grown, depth 4 -> 5, parameters 100 -> 150, in 20 ms",
        "accuracy on the test split: 0.8100",
    ]


def shown(terminal: bool, *events: AnyEvent) -> str:
    """What the display on a terminal, or in a pipe, shows of a job's events."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=140)
    with (LiveDisplay if terminal else PlainDisplay)([JobRow("default/a", 10)], console) as display:
        for event in events:
            display.show("default/a", event)
        display.tick({"default/a": 9.0})
    return stream.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_both_displays_show_the_job_its_decision_and_the_progress_of_a_program(
    events: tuple[AnyEvent, ...], terminal: bool
) -> None:
    text = shown(terminal, *events)
    assert "Deepen(block0)" in text
    assert "default/a" in text
    figures = (Metric(name="loss", value=0.25),)
    read = ProgressRead(time=datetime.now(UTC), used_seconds=2, step=1200, epoch=0, done=0.6, metrics=figures)
    assert "step 1,200, 60 % done, loss 0.25" in shown(terminal, read)


@pytest.mark.parametrize("terminal", [False, True])
def test_brackets_in_messages_are_no_markup(terminal: bool) -> None:
    """Such as the error of a program, of which rich would make tags, or an exception that ended the run."""
    words = "KeyError: '[/INST]' of [a, b]"
    warned = Warned(time=datetime.now(UTC), used_seconds=2, reason="TrainerFailed", message=words)
    assert words in shown(terminal, warned)


def test_restart_does_not_touch_a_folder_in_which_a_run_goes_on(
    tmp_path: Path, finished_run: Callable[..., Path]
) -> None:
    folder, job = finished_run("a"), tmp_path / "a.yaml"
    mark(folder, ["a"])
    job.write_text(f"apiVersion: {API_VERSION}\nkind: {KIND}\nmetadata: {{name: a}}\nspec: {{timeBudgetSeconds: 1}}\n")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with run_lock(folder):
        for restart in (["--restart"], []):
            outcome = CliRunner().invoke(cli, ["run", str(job), "--simulate", *restart, "--output", str(folder)])
            assert outcome.exit_code == 2
            assert "another run uses this folder" in outcome.stderr
            assert "hint" not in outcome.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"} == before


def test_the_live_table_is_drawn_before_anything_is_printed_above_it() -> None:
    stream = io.StringIO()
    with LiveDisplay([JobRow("a", 10)], Console(file=stream, force_terminal=True, width=140)):
        assert "time budget" in stream.getvalue()


def test_a_full_disk_does_not_keep_a_run_from_saying_what_it_came_to(
    tmp_path: Path, finished_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finished_run("a")
    (folder / "training.png").symlink_to("/dev/full")
    assert write_results(folder, JOB_OF_TEN_SECONDS, OUTCOME, draw=True).test_accuracy == 0.81
    assert "results cannot be kept: No space left on device" in capsys.readouterr().err
    assert Path("/dev/full").is_char_device()


def test_a_picture_that_cannot_be_written_is_reported_in_a_line(
    tmp_path: Path, finished_run: Callable[..., Path]
) -> None:
    place = tmp_path / "x.png"
    place.symlink_to("/dev/full")
    outcome = CliRunner().invoke(cli, ["compare", str(finished_run("a")), "--picture", str(place)])
    assert outcome.exit_code == 2
    assert "0.810" in outcome.stdout, "the comparison is printed first"
    assert f"error: --picture: {place}: cannot be written: No space left on device" in outcome.stderr


def test_the_file_of_a_picture_is_checked_first(tmp_path: Path) -> None:
    for name, words in (
        ("x.foo", "must end with .png or .svg"),
        ("x", "must end with .png or .svg"),
        ("missing/x.png", f"there is no folder {tmp_path / 'missing'}"),
    ):
        outcome = CliRunner().invoke(cli, ["compare", str(tmp_path / "no-run"), "--picture", str(tmp_path / name)])
        assert outcome.exit_code == 2
        assert words in outcome.stderr


def test_no_picture_is_drawn_of_a_run_that_never_trained(finished_run: Callable[..., Path]) -> None:
    folder = finished_run("a")
    lines = (folder / "history.jsonl").read_text().splitlines(keepends=True)
    (folder / "history.jsonl").write_text("".join(line for line in lines if "EpochFinished" not in line))
    write_results(folder, JOB_OF_TEN_SECONDS, OUTCOME, draw=True)
    assert (folder / "result.json").exists()
    assert not (folder / "training.png").exists()


@pytest.mark.parametrize(
    ("measure", "values", "said"),
    [
        ("bits_per_character", (2.2, 2.1), "grown has 0.100 less bits per character, which is better, than not-grown"),
        ("bits_per_character", (2.1, 2.2), "grown has 0.100 more bits per character, which is worse, than not-grown"),
        ("r2", (0.2, 0.5), "grown has 0.3000 more R² than not-grown"),
        ("accuracy", (0.9, 0.8), "grown has 0.1000 less accuracy than not-grown"),
    ],
)
def test_compare_knows_which_value_of_a_measure_is_better(measure: str, values: tuple[float, float], said: str) -> None:
    curves = [
        Curve(name, result_of(test_accuracy=None, test_score=Score(measure=measure, value=value)), ())
        for name, value in zip(("not-grown", "grown"), values, strict=True)
    ]
    assert verdict(curves).startswith(said)
    shown = Console(file=io.StringIO(), width=200)
    shown.print(table_of(curves, 200))
    assert f"test {Score(measure=measure, value=0).by.title}" in shown.file.getvalue()  # type: ignore[attr-defined]


def test_runs_of_two_tasks_are_not_compared() -> None:
    bits = Score(measure="bits_per_character", value=2.0)
    curves = [Curve("a", result_of(test_accuracy=0.5), ()), Curve("b", result_of(test_score=bits), ())]
    assert verdict(curves) == "a is judged by accuracy, b by bits per character: they cannot be compared."


def test_the_picture_of_a_language_model_is_named_after_its_measure(
    tmp_path: Path, events: tuple[AnyEvent, ...]
) -> None:
    bits = Score(measure="bits_per_character", value=2.5)
    trained = [event for event in events if isinstance(event, EpochFinished)]
    epochs = [event.model_copy(update={"validation_accuracy": None, "validation_score": bits}) for event in trained]
    curve = Curve("a", result_of(test_accuracy=None, test_score=bits), tuple(epochs))
    draw_training(curve, tmp_path / "one.png")
    draw_comparison([curve, curve], tmp_path / "two.png")
    assert (tmp_path / "one.png").stat().st_size > 5000
    assert (tmp_path / "two.png").stat().st_size > 5000


@given(
    st.lists(st.tuples(st.floats(0, 10), st.sampled_from(["Deepen(a)", "Widen(b, 24)", "AddBlock(" + "x" * 40 + ")"])))
)
def test_no_label_covers_another_and_all_growths_are_counted(growths: list[tuple[float, str]]) -> None:
    growths.sort(key=lambda each: each[0])
    once = adaptation()
    events = [
        AdaptationFinished(time=once.time, used_seconds=at, adaptation=once.model_copy(update={"action": action}))
        for at, action in growths
    ]
    labels = labels_of(events, 10)
    assert all(later.at - earlier.at >= 0.2 for earlier, later in itertools.pairwise(labels))
    assert all(len(label.text) <= 22 for label in labels)
    counted = 0
    for label in labels:
        many, more = re.match(r"(\d+)x ", label.text), re.search(r" \+(\d+)$", label.text)
        counted += (int(many[1]) if many else 1) + (int(more[1]) if more else 0)
    assert counted == len(growths)


def test_a_faster_computation_is_marked_as_growths_are() -> None:
    once = adaptation()
    kinds = ((AdaptationResult.REWRITTEN, "Rewrite(3)"), (AdaptationResult.REVERTED, "ChannelsLast"))
    events = [
        AdaptationFinished(
            time=once.time, used_seconds=at, adaptation=once.model_copy(update={"result": result, "action": action})
        )
        for at, (result, action) in enumerate(kinds)
    ]
    assert [label.text for label in labels_of(events, 10.0)] == ["Rewrite(3)"]


def test_a_picture_shows_what_was_tried(finished_run: Callable[..., Path], tmp_path: Path) -> None:
    curve, once = read_run(finished_run("a")), adaptation()
    arms = (Arm(action="Deepen(a)", loss=0.5), Arm(action="Nothing", loss=0.7), Arm(action="Deepen(b)", message="gone"))
    tried = once.model_copy(update={"arms": arms, "used_seconds": 3.0})
    events = [
        AdaptationFinished(time=once.time, used_seconds=at, adaptation=what) for at, what in ((2, once), (5, tried))
    ]
    assert trials_of(events) == (Trial(3.0, 5.0, (("Deepen(a)", 0.5), ("Nothing", 0.7))),)
    draw_training(Curve(curve.label, curve.result, (*curve.events, *events)), tmp_path / "tried.png")
    assert (tmp_path / "tried.png").stat().st_size > 5000


def test_a_picture_with_twenty_growths_restarts_and_batch_sizes_is_drawn(
    finished_run: Callable[..., Path], tmp_path: Path
) -> None:
    curve = read_run(finished_run("a"))
    now, once = curve.events[0].time, adaptation()
    started = next(event for event in curve.events if isinstance(event, TrainerStarted))
    more: list[AnyEvent] = [AdaptationFinished(time=now, used_seconds=each / 2, adaptation=once) for each in range(20)]
    more.append(started.model_copy(update={"resumed": True, "used_seconds": 4.0}))
    sizes = {"before": 64, "batch_size": 128, "passes": 1, "workers": 2, "learning_rate_factor": 1.4}
    more.append(BatchSizeChanged(time=now, used_seconds=5, **sizes))
    plain, full = tmp_path / "plain.png", tmp_path / "full.png"
    draw_training(curve, plain)
    draw_training(Curve(curve.label, curve.result, (*curve.events, *more)), full)
    heights = [struct.unpack(">II", path.read_bytes()[16:24])[1] for path in (plain, full)]
    assert heights[1] > heights[0]  # room for the batch sizes


@pytest.mark.parametrize("width", range(40, 130, 7))
def test_tables_fit_and_break_no_word(width: int) -> None:
    columns = ("job", "ended", "test accuracy", "depth", "parameters", "budget used", "longest pause")
    row = ("digits", "Complete, BudgetExhausted", "0.9260", "4 -> 7", "306 -> 1,296", "8.11 of 8 s", "0.77 s")
    stream = io.StringIO()
    Console(file=stream, width=width).print(table_for(width, columns, [row]))
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert all(word in text for cell in (*columns[1:], *row) for word in cell.split())
    assert "4 -> 7" in text, "a change of a figure stays on a line"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_and_a_pipe_have_the_same_clock(terminal: bool) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=60)
    row = JobRow("a", 10, used_seconds=4.0)
    with (LiveDisplay if terminal else PlainDisplay)([row], console) as display:
        display.print(row, "one two three four five six seven eight nine ten eleven twelve")
    said = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", stream.getvalue())
    (begins,) = (line for line in said.splitlines() if "one two" in line)
    assert begins.startswith("a      6.0 s left  one two")
    if terminal:
        (continued,) = (line for line in said.splitlines() if "twelve" in line)
        assert continued.startswith(" " * len("a      6.0 s left  ")), "under the beginning of the text"


def test_a_phase_that_is_its_own_reason_is_told_once() -> None:
    event = JobChanged(time=datetime.now(UTC), used_seconds=0, phase="Running", reason="Running", message="")
    assert line_for(event) == "Running: it is training"
