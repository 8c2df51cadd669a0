"""What `espalier watch` says of a job: its changes of status and its Events, each once, whichever comes first."""

from __future__ import annotations

import io
import json

import pytest
from cluster_objects import NOW, Object, acted, adaptation, admitted, job, looked_at, report, time, worker
from rich.console import Console

from espalier_cli.cluster.narration import Line, Narrator, row_of, verdict
from espalier_cli.cluster.watch_command import JsonWatch, LiveWatch, PlainWatch
from espalier_core.k8s.jobs import Event, event_of, job_of
from espalier_core.types.reasons import Reason
from espalier_operator.kube.objects.events import events
from espalier_operator.model.actions import Finish, GrantExtra


def trained(*adaptations: object, at: float = NOW, used: float = 50.0, lent: int = 1) -> Object:
    """A job at a moment of its training."""
    raw = admitted(job("a", maxReplicas=3), extra=lent, at=NOW - 90)
    leader = worker(raw, "n", age=80)
    return looked_at(raw, [leader], report(raw, leader, used_seconds=used, adaptations=adaptations), at=at)


def event(line: Line, *, uid: str = "e1", times: int = 1) -> Event:
    """The Event that the operator tells of the same thing."""
    return event_of(
        {
            "metadata": {"uid": uid, "creationTimestamp": time()},
            "involvedObject": {"name": "a"},
            "reason": line.reason,
            "message": line.message,
            "type": "Warning" if line.warning else "Normal",
            "count": times,
        }
    )


def test_first_it_says_where_the_job_stands() -> None:
    (line,) = Narrator().of_status(None, job_of(acted(job("a"), refusal=Reason.TOO_LARGE)))
    assert str(line).startswith("Pending, TooLarge: it requests more GPUs than there are in total")
    (line,) = Narrator().of_status(None, job_of(job("a")))
    assert str(line) == "Pending: no operator has seen it yet"


def test_a_change_of_status_is_reported_in_the_words_of_its_events() -> None:
    before, after = job_of(trained()), job_of(trained(adaptation()))
    said = Narrator().of_status(before.status, after)
    assert [(line.reason, line.message) for line in said] == [
        (note.reason, note.message) for note in events(before.status, after.status)
    ]
    assert said[0].reason == "AdaptationGrown"
    assert Narrator().of_status(after.status, after) == []


@pytest.mark.parametrize("first", ["status", "event"])
def test_what_comes_as_status_and_as_event_is_reported_once(first: str) -> None:
    before, after = job_of(trained()), job_of(trained(adaptation()))
    (line,) = Narrator().of_status(before.status, after)
    narrator = Narrator()
    told = [lambda: narrator.of_status(before.status, after), lambda: narrator.of_event(event(line))]
    if first == "event":
        told.reverse()
    assert [told[0](), told[1]()] == [[line], []]


def test_what_happens_twice_is_reported_twice() -> None:
    line = Line(reason="R", message="again")
    narrator = Narrator()
    assert narrator.of_event(event(line)) == [line]
    assert narrator.of_event(event(line)) == []  # the same Event, seen again after a gap
    assert narrator.of_event(event(line, times=2)) == [line]
    assert narrator.of_event(event(line, uid="e2")) == [line]


def test_old_events_are_old_news() -> None:
    old = Line(reason="R", message="long ago")
    narrator = Narrator([event(old, times=3)])
    assert narrator.of_event(event(old, times=3)) == []
    assert narrator.of_event(event(old, times=4)) == [old]


def test_an_event_alone_is_reported_and_marked_where_it_warns() -> None:
    line = Line(reason="BackOff", message="x", warning=True)
    assert [str(said) for said in Narrator().of_event(event(line))] == ["warning: BackOff: x"]


def test_the_row_counts_on_from_what_was_last_counted_but_not_for_ever() -> None:
    watched = job_of(trained(used=85.0))
    assert row_of(watched, NOW).used_seconds == 85.0
    assert row_of(watched, NOW + 4).used_seconds == 89.0
    assert row_of(watched, NOW + 3600).used_seconds == 100.0
    waiting = job_of(acted(job("a"), refusal=Reason.NO_FREE_GPU))
    assert row_of(waiting, NOW + 4).used_seconds == 0.0


def test_the_row_shows_what_matters() -> None:
    row = row_of(job_of(trained(adaptation())), NOW)
    assert (row.name, row.phase, row.epoch, row.score.value, row.depth, row.gpus) == ("a", "Running", 3, 0.81, 4, 2)
    assert row.decision == "Deepen(block0) (Grown), grown 1 time"


def test_progress_is_reported_once_in_a_tenth_of_the_budget() -> None:
    narrator = Narrator()
    said = [narrator.progress(row_of(job_of(trained(used=used)), NOW)) for used in (81, 90, 100, 125)]
    assert [text is not None for text in said] == [True, False, False, True]
    assert said[0] == "epoch 3, accuracy 0.810, depth 4"


def test_the_verdict_sums_up() -> None:
    over = acted(trained(adaptation(), used=400.0), Finish(job="default/a", reason=Reason.BUDGET_EXHAUSTED))
    assert verdict(job_of(over)) == (
        "Complete: accuracy 0.8100, depth 4, 306 parameters, grown 1 time, 6 min 40 s of 6 min 40 s used"
    )
    assert verdict(job_of(job("a"))) == "Pending: not grown, 0 s of 6 min 40 s used"


def test_plain_lines_go_to_stdout_and_connection_troubles_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainWatch(row_of(job_of(trained(used=100.0)), NOW))
    with display:
        display.show(Line(reason="R", message="m", warning=True))
        display.progress("epoch 3")
        display.note("away")
    caught = capsys.readouterr()
    assert caught.out == "a    300.0 s left  warning: R: m\na    300.0 s left  epoch 3\n"
    assert caught.err == "away\n"


def test_json_lines_hold_how_the_job_is(capsys: pytest.CaptureFixture[str]) -> None:
    display = JsonWatch(row_of(job_of(trained(used=100.0)), NOW))
    display.show(Line(reason="R", message="m"))
    display.progress("epoch 3")
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["job"], first["phase"], first["usedSeconds"], first["reason"]) == ("a", "Running", 100.0, "R")
    assert (second["reason"], second["message"]) == ("Progress", "epoch 3")


def test_on_a_terminal_a_table_stands_under_the_lines() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=140, color_system=None)
    display = LiveWatch(row_of(job_of(trained(adaptation(), used=100.0)), NOW), console)
    with display:
        display.show(Line(reason="NeededByOtherJob", message="another job needs the GPUs"))
        display.progress("not shown")
    text = out.getvalue()
    assert "NeededByOtherJob: another job needs the GPUs" in text
    assert "300 s" in text
    assert "Deepen(block0) (Grown), grown 1 time" in text
    assert "not shown" not in text


def test_a_second_grant_after_a_first_is_reported_again() -> None:
    first = job_of(trained(lent=1))
    again = acted(trained(lent=1), GrantExtra(job="default/a", extra=2))
    said = Narrator().of_status(first.status, job_of(again))
    assert "ExtraGPUsGranted" in [line.reason for line in said]
