"""The memory of a step serves for the next one."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest
import torch

from espalier_trainer.run.services import keep_freed

CPU = torch.device("cpu")


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's mallopt")
def test_steps_cause_no_page_faults_once_their_memory_was_used() -> None:
    code = """
        import ctypes
        import resource
        import torch
        from espalier_trainer.run.services import keep_freed

        def faults():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(3):
                gradients = [torch.zeros(1_250_000) for _ in range(8)]
                del gradients
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        # As glibc begins; what was imported may have raised them.
        ctypes.CDLL(None).mallopt(-3, 5_000_000)
        ctypes.CDLL(None).mallopt(-1, 10_000_000)
        faults()
        before = faults()
        assert keep_freed(torch.device("cpu"))
        faults()
        print(before, faults())
    """
    done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before > 10_000
    assert after < before / 100


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_the_users_settings_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1000000")
    assert not keep_freed(CPU)


def test_a_device_has_an_allocator_of_its_own() -> None:
    assert not keep_freed(torch.device("cuda"))
