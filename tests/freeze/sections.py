"""What `hack/freeze` records, by section: each yields names of items and their texts."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import importlib.metadata
import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
import traceback
import urllib.request
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

INTERNAL: Final = {
    "Story": "operator_world.history.story:Story",
    "Job": "espalier_core.types.job:AdaptiveTrainingJob",
    "Action": "espalier_core.types.advice:Action",
    "Arrival": "espalier_lab.virtual_time:ReplicaChange",
    "VirtualScheduler": "espalier_lab.virtual_time:VirtualScheduler",
    "MemoryReporter": "espalier_trainer.signals.report:MemoryReporter",
    "Scripted": "espalier_lab.virtual_time:Scripted",
    "Services": "espalier_trainer.run.services:Services",
    "Trainer": "espalier_trainer.builtin_loop.trainer:Trainer",
    "build_model": "espalier_trainer.models.zoo:build_model",
    "load_data": "espalier_trainer.data:load_data",
    "seed_everything": "espalier_trainer.net2net.randomness:seed_everything",
}
"""What no command, file or documented import reaches: a change that moves it, moves it here."""
SERVER: Final = "espalier_lab.scheduling.product"
POLICIES: Final = (
    *("fair", "fifo", "las", "tiresias", "gittins", "gavel", "gandiva", "goodput", "optimus", "soonest", "value"),
    *("las:thresholds=600/1200,lend=false", "learned:file=inputs/giving.safetensors"),
)
VALUES: Final = {"default": (), "full": ("full",), "secured": ("secured", "monitored")}
Items = Iterator[tuple[str, str]]


class Place:
    """The checkout, a folder to work in with the stored inputs, and commands run there."""

    def __init__(self, root: Path, folder: Path) -> None:
        """Make the folder."""
        self.root, self.folder = root, folder
        folder.mkdir()
        data = root / "tests" / "data"
        for archive in (root / "tests/freeze/inputs.tar.xz", data / "pollux.tar.gz", data / "gavel.tar.gz"):
            with tarfile.open(archive) as file:
                file.extractall(folder, filter="data")
        (folder / ".venv").symlink_to(root / ".venv")  # as the job of the own loop names its interpreter
        (self._espalier,) = importlib.metadata.entry_points(group="console_scripts", name="espalier")
        chart = re.search(r"^version: (\S+)", (root / "charts/espalier/Chart.yaml").read_text(), re.M)
        assert self._espalier.dist is not None
        assert chart is not None
        self._versions = {self._espalier.dist.version, chart[1]}

    def normal(self, text: str) -> str:
        """Return a text without what depends on the folder, the time or the version."""
        text = text.replace(str(self.folder), "WORK").replace(str(self.root), "ROOT")
        for version in self._versions:
            text = re.sub(rf"(?<![\d.]){re.escape(version)}(?![\d.])", "VERSION", text)
        text = re.sub(r"[\w-]+/src/espalier_[\w/]+\.py", "SOURCE", text)
        return re.sub(r'("seconds": )[\d.e+-]+', r"\g<1>0", text)

    def espalier(self, *words: object) -> str:
        """Return the exit code, the output and, where it fails, the errors of `espalier WORDS`."""
        return self._run(self._espalier.load(), "espalier", words)

    def each(self, commands: Iterable[Sequence[object]]) -> str:
        """Return the outputs of many commands, one after the other in one process."""

        def main() -> None:
            for words in commands:
                print(f"=== {shlex.join(map(str, words))}", flush=True)
                sys.argv = ["espalier", *map(str, words)]
                try:
                    self._espalier.load()()
                except SystemExit as error:
                    print(f"exit {error.code}", flush=True)

        return self._run(main, "espalier", ())

    def call(self, main: Callable[[], object]) -> str:
        """Return the same of a function that prints."""
        return self._run(main, "call", ())

    def module(self, name: str, *words: object) -> str:
        """Return the same of `python -m NAME WORDS`."""
        return self._run(lambda: runpy.run_module(name, run_name="__main__", alter_sys=True), name, words)

    def help(self, *words: str) -> str:
        """Return the help of a command. What it imports stays imported, so that no later call does it again."""
        sys.argv = ["espalier", *words, "--help"]
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
            self._espalier.load()()
        gc.freeze()
        return out.getvalue()

    def _run(self, main: Callable[[], object], name: str, words: Sequence[object]) -> str:
        """Run it in a fork, whose imports are those of this process."""
        code, out, err = forked(main, [name, *map(str, words)], self.folder)
        return f"exit {code}\n{out}" + (f"--- stderr\n{err}" if code else "")


def forked(main: Callable[[], object], words: list[str], folder: Path) -> tuple[int, str, str]:
    """Run in a fork of this process; return the exit code, the output and the errors."""
    out, err = folder / "stdout", folder / "stderr"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for path, number in ((out, 1), (err, 2)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            os.chdir(folder)
            sys.path.insert(0, "")
            sys.argv = words
            warnings.simplefilter("ignore")
            main()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), out.read_text(), err.read_text()


def internal(name: str) -> Any:
    """Return an entry of `INTERNAL`."""
    module, _, attribute = INTERNAL[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def help_texts(at: Place) -> Items:
    """The tree of `espalier --help`, the programs of the images, and the policy server."""

    def tree(words: tuple[str, ...]) -> Items:
        text = at.help(*words)
        yield " ".join(("espalier", *words)), text
        # Sections of commands follow that of the options, each with a heading.
        for block in text.partition("\nOptions:\n")[2].split("\n\n")[1:]:
            for name in re.findall(r"^  (\S+)", block, re.M) if re.match(r"\S.*:\n", block) else ():
                yield from tree((*words, name))

    yield from tree(())
    for words in re.findall(r'^ENTRYPOINT \["python", "-m", "(\S+)"\]', (at.root / "Dockerfile").read_text(), re.M):
        yield words, at.module(words, "--help")
    yield "policy server", at.module(SERVER, "--help")


def generated(at: Place) -> Items:
    """The files that `make crd dashboards docs` and hack/deploy write, written again in a copy, and the OpenAPI."""
    copy = at.folder / "copy"
    files = subprocess.run(["git", "ls-files", "-z"], cwd=at.root, check=True, capture_output=True, text=True).stdout
    for name in filter(None, files.split("\0")):
        if (at.root / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(at.root / name, copy / name)
    (copy / ".venv").symlink_to(at.root / ".venv")
    made = subprocess.run(
        ["make", "-n", "crd", "dashboards", "docs"], cwd=copy, check=True, capture_output=True, text=True
    )
    recipe = [line for line in made.stdout.splitlines() if "python" in line and "sync" not in line]
    for command in (*recipe, ".venv/bin/python hack/deploy"):
        done = subprocess.run(command, shell=True, cwd=copy, capture_output=True, text=True)
        if done.returncode:
            yield f"failed: {command}", done.stderr
    folders = ("crds", "deploy", "charts/espalier/dashboards", "charts/espalier/rules", "charts/espalier/files")
    for path in sorted(path for folder in folders for path in (copy / folder).rglob("*") if path.is_file()):
        yield str(path.relative_to(copy)), path.read_text()
    for name in ("charts/espalier/values.schema.json", "docs/reference/metrics.md"):
        yield name, (copy / name).read_text()
    pages = [f"docs/reference/{name}.md" for name in ("job", "reasons", "cli")]
    for name in (*pages, "charts/espalier/README.md"):
        text = (copy / name).read_text()
        yield name, "\n".join(re.findall(r"<!-- (?:BEGIN.*?|values) -->(.*?)<!-- (?:END|/values)", text, re.S)) or text
    yield "openapi of the agent", at.espalier("agent", "openapi")


def chart(at: Place) -> Items:
    """The chart as helm renders it."""
    helm = subprocess.run([at.root / "hack/helm"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    folder = at.root / "charts" / "espalier"
    for name, files in VALUES.items():
        values = [f"--values={at.root}/tests/unit/chart/values/{file}.yaml" for file in files]
        command = [helm, "template", "espalier", folder, "--namespace=espalier-system", "--kube-version=1.34", *values]
        done = subprocess.run(command, capture_output=True, text=True)
        for part in re.split(r"^---\n", done.stdout or done.stderr, flags=re.M):
            source = re.search(r"^# Source: (\S+)", part, re.M)
            kind = re.search(r"^kind: (\S+)(?:.*?)^  name: (\S+)", part, re.M | re.S)
            if kind:
                yield f"{name}: {source[1] if source else ''} {kind[1]} {kind[2]}", part
            elif part.strip():
                yield f"{name}: {source[1] if source else 'rest'}", part


def plans(at: Place) -> Items:
    """The decisions of every policy on every stored snapshot, and on those of audit logs."""
    at.help("plan")
    snapshots = sorted((at.folder / "inputs/snapshots").glob("*.json"))
    logged = [path for log in ("las", "fair") for path in sorted((at.folder / f"inputs/audit-{log}").glob("*.json.gz"))]
    for number, path in enumerate([*snapshots, *logged[::6]]):
        words = ("plan", "-o", "json", "--snapshot", path)
        policies = POLICIES if path.name.endswith("-0.json") else POLICIES[number % 3 :: 3]
        asked = [(*words, "--policy", each) for each in policies]
        yield str(path.relative_to(at.folder / "inputs")), at.each([*asked, (*words, "--after", 45)])
    yield "a table", at.espalier("plan", "--snapshot", snapshots[0])
    yield "unknown policy", at.espalier("plan", "--snapshot", snapshots[0], "--policy", "nobody")


def histories(at: Place) -> Items:
    """What happens in histories of a cluster, line by line."""
    sys.path.insert(0, str(at.root / "tests" / "helpers"))
    story, steps = internal("Story"), 100

    for seed in range(12):

        def play(seed: int = seed) -> None:
            import logging

            logging.disable(logging.CRITICAL)
            one = story(seed)
            try:
                one.run(steps)
            finally:
                print("\n".join(one.lines))

        yield f"seed {seed}", "exit {}\n{}{}".format(*forked(play, [], at.folder))


def simulations(at: Place) -> Items:
    """Tables of `espalier simulate` for every policy: Pollux, Gavel, jobs drawn at random, audit logs."""
    at.help("simulate")
    pollux = ("pollux/workloads/half-load-workload-6.csv", "--format", "pollux", "--profiles", "pollux/traces")
    cases: dict[str, tuple[object, ...]] = {}
    for policy in POLICIES:
        named = ("--policy", policy, "--json")
        cases[f"pollux {policy} plan"] = (*pollux, "--cluster", "16x4", "--driver", "plan", *named)
        if policy in ("goodput", "optimus", "soonest"):
            cases[f"pollux {policy} rounds"] = (*pollux, "--cluster", "16x4", *named)
        cases[f"drawn {policy} rounds"] = ("generate:poisson:jobs=40", "--cluster", "6x4", "--seeds", 2, *named)
        by = ("--driver", "plan", "--latency", "realistic", *named)
        cases[f"drawn {policy} plan"] = ("generate:diurnal:jobs=30", "--cluster", "6x4", *by)
        for log in ("las", "elastic"):
            cases[f"audit {log} {policy}"] = (f"inputs/audit-{log}", "--format", "audit", *named)
    for policy in ("gavel", "gandiva", "goodput", "fifo"):
        by = ("--format", "gavel", "--cluster", "8:16:24", "--policy", policy, "--json")
        cases[f"gavel {policy}"] = ("gavel/minimize_makespan.trace", *by)
        cases[f"gavel {policy} plan"] = ("gavel/minimize_makespan.trace", *by, "--driver", "plan")
    for policy in ("fair", "soonest"):
        cases[f"shadow {policy}"] = ("inputs/audit-las", "--format", "audit", "--shadow", policy, "--json")
    cases["a table"] = (*pollux, "--cluster", "16x4", "--policy", "fair", "--policy", "soonest")
    for name, words in cases.items():
        yield name, at.espalier("simulate", *words)


def scheduling(at: Place) -> Items:
    """Learnt scheduling: DL2's cluster, a policy file from an audit log, and placement."""
    small = ("--imitated", 300, "--decisions", 600, "--nodes", 48, "--seed", 0)
    for learner in ("ppo", "actor-critic"):
        yield learner, at.espalier("policies", "learn", "--output", f"{learner}.st", "--learner", learner, *small)
    rules = ("drf", "optimus", "optimus-by-share", "optimus-ahead", "soonest")
    judged = ("--nodes", 48, "--episodes", 1, "--json")
    yield "evaluate", at.espalier("policies", "evaluate", "ppo.st", "actor-critic.st", *rules, *judged)
    retrain = ("--output", "own.st", "--quick", "--episodes", 2, "--placement")
    yield "retrain", at.espalier("policies", "retrain", "inputs/audit-elastic", *retrain)


def learners(at: Place) -> Items:
    """Versions of policies by every learner, with and without a history; evaluations; what the agent answers."""
    short = {
        "expected": ("updates=6",),
        "distilled": ("updates=4",),
        "reinforce": ("episodes=24",),
        "ppo": ("episodes=48",),
        "dqn": ("episodes=48",),
        "trees": (),
        "graph-gains": ("epochs=1",),
    }
    at.help("agent", "learn")
    for name, fields in short.items():
        options = [part for field in fields for part in ("--set", field)]
        histories = [("outcomes", ())]
        if name in ("expected", "trees", "graph-gains"):
            histories.append(("history", ("--from-history", "inputs/outcomes.db", "--set", "held_out_share=.25")))
        for kind, more in histories:
            words = ("--learner", name, *options, *more, "--outcomes", "digits", "--seed", 1)
            yield f"{name} {kind}", at.espalier("agent", "learn", *words, "--output", f"{name}-{kind}")
    yield "evaluate", at.espalier("agent", "evaluate", "--json")
    yield "outcomes", at.espalier("agent", "outcomes", "--db", "inputs/outcomes.db", "--json")
    shutil.copytree(at.folder / "expected-outcomes", at.folder / "served")
    to = ("--policy", "expected-history", "--to", "served", "--json")
    yield "promote", at.espalier("agent", "promote", *to, "--from-history", "inputs/outcomes.db")
    command = [sys.executable, "-m", "espalier_agent", "serve", "--port", "0", "--url-file", "url"]
    with (
        (at.folder / "log").open("w") as log,
        subprocess.Popen(command, cwd=at.folder, stdout=log, stderr=log) as agent,
    ):
        try:
            while not (at.folder / "url").exists() and agent.poll() is None:
                time.sleep(0.1)
            url = (at.folder / "url").read_text().strip()
            answers = []
            for line in (at.folder / "inputs/advice.jsonl").read_text().splitlines():
                headers = {"content-type": "application/json"}
                asked = urllib.request.Request(f"{url}/v1/advice", line.encode(), headers)
                with urllib.request.urlopen(asked, timeout=60) as answer:
                    answers.append(json.dumps({**json.load(answer), "decision_id": ""}, indent=1, sort_keys=True))
            yield "advice over HTTP", re.sub(r'("decision_?[iI]d": )"[^"]*"', r'\1""', "\n".join(answers))
        finally:
            agent.terminate()


def training(at: Place) -> Items:
    """Losses bit for bit: digits and a small GPT in virtual time, judged and collected growths, an own loop."""
    gpt = {
        "task": "LanguageModel",
        "model": {"name": "gpt", "options": {"width": 16}},
        "dataset": {"name": "text", "path": str(at.folder / "corpus.txt"), "options": {"context": 16, "windows": 80}},
        "batchSize": 8,
        "optimizer": {"name": "AdamW", "learningRate": 0.01, "weightDecay": 0.1, "decayMatricesOnly": True},
    }
    for name in INTERNAL:
        if name != "Story":
            internal(name)  # imported before, so that no fork does it again
    yield "digits", at.call(lambda: virtual({}, "Deepen", "block0"))
    yield "digits, plain", at.call(lambda: virtual({"optimizer": {"name": "SGD"}}))
    yield "gpt", at.call(lambda: virtual(gpt, "AddBlock", "blocks.0"))
    digits = ("--start-at", "30%", "--decisions", 1, "--time", "virtual", "--step-cost", "2,0.6,0.5,0.2")
    more = ("--time-budget", 0.4, "--work-dir", "w", "--output", "table.json")
    yield "collect", at.espalier("agent", "collect", "digits.yaml", *digits, *more)
    yield "table", (at.folder / "table.json").read_text()
    judged = ("--budget", 40, "--seeds", 1, "--most", 2, "--parallel", 1, "--work-dir", "judged", "--json")
    yield "judge", at.espalier("agent", "judge", "--model", "digits", "--dataset", "digits", *judged)
    for number, path in enumerate(sorted((at.folder / "judged").rglob("*.json"))):
        yield f"judged {number}", path.read_text()
    ran = at.espalier("run", "job.yaml", "--simulate", "--gpus", 1, "--no-agent", "--output", "run", "--json")
    yield "own loop", next(iter([*at.folder.rglob("losses.txt")]), at.folder / "stderr").read_text()
    yield (
        "own loop, keys of its results",
        ran.partition("\n")[0] + "\n" + "\n".join(sorted(set(re.findall(r'"\w+":', ran)))),
    )


def virtual(spec: dict[str, Any], kind: str = "Deepen", target: str = "") -> None:
    """Train in virtual time with one growth, and print losses and a digest of the weights."""
    made = {
        "apiVersion": "espalier.dev/v1alpha1",
        "kind": "AdaptiveTrainingJob",
        "metadata": {"name": "t"},
        "spec": {"timeBudgetSeconds": 0.3, "maxReplicas": 2, "training": spec, "adaptation": {"actions": [kind]}},
    }
    job = internal("Job").model_validate(made)
    data = internal("load_data")(job.spec.training.dataset, job.spec.training.task)
    internal("seed_everything")(0)
    model = internal("build_model")(job.spec.training.model, data.classes, data.example_input(), data.task)
    scheduler = internal("VirtualScheduler")(0.3, lambda architecture: 0.004, (internal("Arrival")(0.05, 2),))
    reporter = internal("MemoryReporter")()
    advisor = internal("Scripted")((internal("Action")(kind=kind, target=target),) if target else ())
    trainer = internal("Trainer")(job, model, data, internal("Services")(scheduler, reporter, advisor, None))
    result = trainer.run()
    for event in reporter.events:
        fields = {key: each for key, each in vars(event).items() if not re.search("second|time|inca|decision", key)}
        fields.pop("adaptation", None)
        print(
            type(event).__name__,
            {key: each.hex() if isinstance(each, float) else str(each) for key, each in fields.items()},
        )
    print(result.phase, result.steps, result.test_accuracy, [str(each.result) for each in result.adaptations])
    for name, tensor in trainer.network.module.state_dict().items():
        print(name, tuple(tensor.shape), hashlib.sha256(tensor.numpy().tobytes()).hexdigest()[:16])


def zoo(at: Place) -> Items:
    """Growth points, and by how much growing changes what models of others compute."""
    named = {"net": ("freeze_nets:net", "batch"), "resnet18": ("torchvision.models:resnet18", "pictures")}
    named["mobilenet"] = ("torchvision.models:mobilenet_v3_small", "pictures")
    for name, (model, example) in named.items():
        words = ("--model", model, "--example", f"freeze_nets:{example}", "--pairs", 0, "--json")
        yield f"points of {name}", at.espalier("points", *words)
    small = ("test_vit2", "test_resnet", "test_convnext2", "gpt2", "nn: Conv2d", "LSTM", "TransformerEncoder, causal")
    command = [sys.executable, "-m", "bench", "growth-zoo", "--work-dir", at.folder, "--only", *small]
    environment = {**os.environ, "PYTHONPATH": str(at.root / "benchmarks")}
    subprocess.run(command, cwd=at.root, check=True, capture_output=True, env=environment)
    for row in map(json.loads, (at.folder / "rows.jsonl").read_text().splitlines()):
        yield f"{row['library']}: {row['model']}", json.dumps({**row, "seconds": 0}, indent=1)


SECTIONS: Final[dict[str, Callable[[Place], Items]]] = {
    "help": help_texts,
    "generated": generated,
    "chart": chart,
    "plans": plans,
    "histories": histories,
    "simulations": simulations,
    "scheduling": scheduling,
    "learners": learners,
    "training": training,
    "zoo": zoo,
}
