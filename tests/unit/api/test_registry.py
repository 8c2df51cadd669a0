"""Names of parts, and counts in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.base import number_of, repeated
from espalier_core.registry import Registry, RegistryError


@pytest.fixture
def registry() -> Registry[type]:
    return Registry("shape", "espalier.test_shapes", {"path": "pathlib:Path", "gone": "pathlib:Gone"})


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "shapes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shapes\nVersion: 1.0\n", encoding="utf-8")
    lines = ["[espalier.test_shapes]", "own = shapes_of_a_user:Own", "path = shapes_of_a_user:Own", "bad = no_such:It"]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "shapes_of_a_user.py").write_text("class Own: ...\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_built_in_name_is_imported_when_it_is_asked_for(registry: Registry[type]) -> None:
    assert registry.load("path") is Path
    assert registry.names() == ("path", "gone")


@pytest.mark.usefixtures("installed")
def test_an_installed_package_adds_names_and_replaces_none(registry: Registry[type]) -> None:
    assert registry.names() == ("path", "gone", "bad", "own")
    assert registry.load("own").__module__ == "shapes_of_a_user"
    assert registry.load("path") is Path


def test_an_unknown_name_is_answered_with_the_known_ones(registry: Registry[type]) -> None:
    with pytest.raises(RegistryError, match=r"unknown shape 'x'; known: path, gone\. .*'espalier\.test_shapes'"):
        registry.load("x")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "text"),
    [("gone", "shape 'gone': pathlib:Gone cannot"), ("bad", "shape 'bad' of the package shapes: no_such:It cannot")],
)
def test_what_cannot_be_imported_is_named_with_its_package(registry: Registry[type], name: str, text: str) -> None:
    with pytest.raises(RegistryError, match=text):
        registry.load(name)


@pytest.mark.parametrize(("number", "words"), [(0, "0 GPUs"), (1, "1 GPU"), (2, "2 GPUs")])
def test_one_is_one_and_all_others_are_several(number: int, words: str) -> None:
    assert number_of(number, "GPU") == words


@given(st.lists(st.sampled_from("abc")))
def test_what_is_repeated_is_counted(items: list[str]) -> None:
    found = repeated(items)
    assert found == {item: items.count(item) for item in items if items.count(item) > 1}
    assert list(found) == sorted(found, key=items.index)
