"""The command: options that all benchmarks share, what figures depend on, and tables as text, Markdown and JSON."""

from __future__ import annotations

import argparse
import ast
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from bench.printing import Table, about, described
from espalier_lab.run_store import RunStoreError

CASES: Final = Path(__file__).with_name("cases")
ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "cifar8": ("digits", "--job", "examples/cifar8.yaml", "--arrive", "20%", "--seeds", "5"),
    "operator-latency": ("operator", "--nodes", "5000", "10000", "--idle-pods", "20000", "--apart"),
}
"""Names for a benchmark with some of its options."""


class BenchError(Exception):
    """The benchmark cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a benchmark; the type of its value is that of the default, a list takes several values."""

    default: Any
    help: str = ""
    choices: Sequence[Any] | None = None
    type: Callable[[str], Any] | None = None
    """Where the default does not say it."""


PICTURE: Final = Option(None, "draw into this PNG file (default: runs/NAME.png; none with --quick)", type=Path)
DATA: Final = Option(None, "folder or archive of the data; default: where the job has them", type=str)


def cases() -> list[str]:
    """Return the names of all benchmarks."""
    return sorted(path.stem.replace("_", "-") for path in CASES.glob("[a-z]*.py"))


def parsed(name: str, arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a benchmark."""
    case = import_module(f"bench.cases.{name.replace('-', '_')}")
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {name}", description=case.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    quick: dict[str, Any] = getattr(case, "QUICK", {})
    for option, known in case.OPTIONS.items():
        parser.add_argument(f"--{option.replace('_', '-')}", **_described(known))
    small = ", ".join(f"{option.replace('_', ' ')} {_text(value)}" for option, value in quick.items())
    parser.add_argument("--quick", action="store_true", help=f"to see that it runs: {small or 'as without'}")
    place = Path("runs") / name if getattr(case, "KEEPS", False) and "--quick" not in arguments else None
    shown = place or "a folder that goes at the end"
    parser.add_argument("--work-dir", type=Path, default=place, help=f"go on with what is here (default: {shown})")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    if "--quick" in arguments:
        parser.set_defaults(**quick)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a benchmark, or list them."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print("python -m bench NAME [--help]\n")
        for name in cases():
            doc = ast.get_docstring(ast.parse((CASES / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")))
            print(f"{name:20}{(doc or '').partition(chr(10))[0]}")
        return
    name, *rest = *ALIASES.get(given[0], given[:1]), *given[1:]
    if name not in cases():
        raise SystemExit(f"error: {name!r} is no benchmark; `python -m bench` lists them")
    options = parsed(name, rest)
    facts, began = about(given), time.monotonic()
    print(described(facts), end="\n\n", flush=True)
    document: dict[str, Any] = {**facts, "tables": []}
    with ExitStack() as stack:
        if options.work_dir is None:
            options.work_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="espalier-bench-")))
        options.work_dir.mkdir(parents=True, exist_ok=True)
        if "picture" in options and options.picture is None and not options.quick:
            options.picture = Path("runs") / f"{given[0]}.png"
            options.picture.parent.mkdir(exist_ok=True)
        try:
            for part in import_module(f"bench.cases.{name.replace('-', '_')}").run(options):
                if isinstance(part, Table):
                    print(part.text(markdown=options.markdown), flush=True)
                    document["tables"].append(part.to_json())
                elif isinstance(part, str):
                    print(part, flush=True)
                else:
                    document |= part
                if options.json:  # after each part: a later one may fail
                    document["minutes"] = (time.monotonic() - began) / 60
                    options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        except (BenchError, RunStoreError) as error:
            raise SystemExit(f"error: {error}") from error
        except KeyboardInterrupt:
            raise SystemExit(128 + signal.SIGINT) from None
    print(f"{(time.monotonic() - began) / 60:.1f} minutes")


def _described(option: Option) -> dict[str, Any]:
    default = option.default
    shown = "" if default is None or default is False else f" (default: {_text(default)})"
    about = {"default": default, "help": f"{option.help}{shown}".strip().replace("%", "%%")}
    if isinstance(default, bool):
        return {**about, "action": "store_true"}
    several = isinstance(default, list | tuple)
    example = default[0] if several and default else default
    kind = option.type or (str if example is None else type(example))
    many = {"nargs": "*", "action": "store" if default else "extend"} if several else {}  # given twice: both count
    return {**about, "type": kind, "choices": option.choices, **many}


def _text(value: Any) -> str:
    return " ".join(map(_text, value)) if isinstance(value, list | tuple) else f"{value}"
