"""Tasks side by side: their processes end with the command, at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from importlib.machinery import PathFinder
from multiprocessing import active_children
from pathlib import Path

import pytest

from espalier_lab.growth.judge.case import CaseFile
from espalier_lab.growth.judge.running import Runner
from lasting_tasks import Lasting
from waiting import until

MODELS = CaseFile(str(Path(__file__).parent / "models.py"))
PARENT = """
import sys, time
from multiprocessing import get_context
from espalier_lab.growth.children import led_by_parent

def child():
    led_by_parent()
    print(flush=True)
    time.sleep(600)

if __name__ == "__main__":
    get_context("fork").Process(target=child).start()
    time.sleep(600)
"""


def test_an_interrupt_waits_for_no_task(tmp_path: Path) -> None:
    began = tmp_path / "began"

    def interrupt() -> None:
        until(began.exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    # A task lasts for longer than pytest lets a test run.
    with pytest.raises(KeyboardInterrupt), Runner(MODELS, MODELS(), tmp_path, 2) as runner:
        runner.run([Lasting(0, began), Lasting(1, began)], lambda *_: None, time.monotonic)
    thread.join()
    assert not active_children()


def test_a_process_ends_with_its_parent_however_that_ends(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout.read(1) == b"\n"
        parent.kill()
        assert parent.stdout.read() == b""  # until the child has closed its end, too


def test_a_file_beside_the_cases_hides_no_module_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("colorsys", "beside_the_cases"):
        (tmp_path / f"{name}.py").write_text("")
    cases = tmp_path / "cases.py"
    cases.write_text(
        f"import sys, beside_the_cases\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from models import cases\nsys.path.pop(0)\n"
    )
    assert CaseFile(str(cases))()
    found = PathFinder.find_spec("colorsys")
    assert found.origin != str(tmp_path / "colorsys.py")
