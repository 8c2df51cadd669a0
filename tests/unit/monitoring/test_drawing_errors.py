"""What goes wrong when dashboards are drawn is said with what to do."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from espalier_monitoring.__main__ import main
from espalier_monitoring.outputs import outputs
from espalier_monitoring.reading import Prometheus, PrometheusError, Window
from http_answers import answering


def draw(url: str, folder: Path, *more: str) -> int:
    """Run the command."""
    return main(["draw", "--prometheus", url, "--output", str(folder), *more])


def test_a_prometheus_that_is_not_there_is_named_with_what_was_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    assert draw(url, tmp_path, "--dashboard", "agent") == 1
    said = capsys.readouterr().err
    assert said.startswith("error: Espalier: agent: panel 'Policy in service': query count by (policy, version)")
    assert f"{url} cannot be reached (" in said
    assert "is --prometheus right?" in said
    assert draw(url, tmp_path, "--dashboard", "job") == 1
    said = capsys.readouterr().err
    assert "Espalier: job: variable namespace: label_values(espalier_job_info, namespace): " in said
    assert list(tmp_path.iterdir()) == []


def test_somebody_who_is_no_prometheus() -> None:
    """It has a page of its own where a Prometheus answers queries, and nothing else."""
    pages = {"/api/v1/query": (200, b'["no", "Prometheus"]')}
    with (
        answering(lambda path: pages.get(path.partition("?")[0], (404, b"<html>"))) as somebody_else,
        Prometheus(somebody_else) as prometheus,
    ):
        with pytest.raises(PrometheusError, match=r"it answered 404 and no JSON; is --prometheus right\?"):
            prometheus.values("up", "job", Window(0, 60, 15))
        with pytest.raises(PrometheusError, match=r"is not a Prometheus: it answered '\[\"no\", "):
            prometheus.now("up", 0)


@pytest.mark.parametrize("url", ["localhost:9090", "ftp://host", "http://", "http://a:b"])
def test_a_url_that_is_none(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert draw(url, tmp_path) == 1
    assert "write it as http://127.0.0.1:9090" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert draw("http://127.0.0.1:9", tmp_path / "file") == 1
    assert "error: --output: " in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--last", "soon"), ("--dashboard", "cluster"), ("--scrape-interval", "15")])
def test_options_that_cannot_be(option: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        draw("http://127.0.0.1:9", tmp_path, *option)
    assert ended.value.code == 2
    assert option[1] in capsys.readouterr().err


def test_files_are_written_by_a_command_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["write", str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == list(outputs())
    assert {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*.*")} == outputs()
