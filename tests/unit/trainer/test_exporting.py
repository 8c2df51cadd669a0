"""`load` and `export`: the trained model of a run outside of it, grown in every way, and what cannot be loaded."""

from __future__ import annotations

import importlib
import json
import math
import re
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import espalier_trainer
import own_loops
from espalier_core.types.advice import Action
from espalier_lab.virtual_time import Scripted
from espalier_trainer.checkpoints.examples import known
from espalier_trainer.errors import ExportError
from espalier_trainer.exporting.program import _difference
from espalier_trainer.exporting.writing import export
from espalier_trainer.optimizers.averaging import averaged
from espalier_trainer.own import join

WIDE = {"adaptation": {"actions": ["Deepen", "Widen"]}}
TWO_BLOCKS = """
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))

    def forward(self, x):
        return x + self.mlp(x)

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sequential(Block(), Block()), nn.Linear(16, 10))
"""


@pytest.fixture
def trained(tmp_path, run, make_job):
    """Return what trains a job, growing it as advised, into the folder `run`, as `espalier run` leaves it."""

    def train(*advice: Action, stop: Any = None, **spec: Any) -> Any:
        job = make_job(timeBudgetSeconds=0.2, **spec)
        folder = tmp_path / "run"
        options = {} if stop is None else {"stop": stop}
        done = run(job, advisor=Scripted(advice), up_at=0.02, store=folder / "checkpoints", step=0.0025, **options)
        (folder / "job.yaml").write_text(json.dumps(job.to_json()))
        return done

    return train


@pytest.fixture
def blocks(users_module):
    users_module("two_blocks", TWO_BLOCKS)
    return {"adaptation": {"actions": ["Deepen", "AddBlock"]}, "training": {"model": {"entrypoint": "two_blocks:net"}}}


def assert_same(loaded: nn.Module, network: Any, data: Any) -> None:
    inputs = data.example_input()
    wanted = network.module.eval()
    assert not any(module.training for module in loaded.modules())
    assert torch.equal(loaded(inputs), wanted(inputs))
    assert loaded.state_dict().keys() == wanted.state_dict().keys()


@pytest.mark.parametrize(
    ("advice", "spec"),
    [
        ((), {}),
        ((Action.deepen("block0"), Action.deepen("block0"), Action.deepen("block2")), {}),
        ((Action.widen("block0.0"), Action.deepen("block0")), WIDE),
    ],
)
def test_a_run_and_its_export_give_the_grown_model(trained, tmp_path, digits, advice, spec):
    done = trained(*advice, **spec)
    assert len(done.trainer.network.history) == len(advice)
    state = torch.get_rng_state()
    assert_same(espalier_trainer.load(tmp_path / "run"), done.trainer.network, digits)
    assert torch.equal(state, torch.get_rng_state())
    exported = export(tmp_path / "run", tmp_path / "out")
    assert exported.checked
    shutil.rmtree(tmp_path / "run")
    assert_same(espalier_trainer.load(str(tmp_path / "out")), done.trainer.network, digits)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md",
        "config.json",
        "job.yaml",
        "model.safetensors",
    ]


def test_a_model_of_the_users_that_has_got_blocks_is_loaded(trained, tmp_path, digits, blocks):
    add = Action(kind="AddBlock", target="2.0")
    done = trained(add, add, **blocks)
    assert len(done.trainer.network.history) == 2
    assert_same(espalier_trainer.load(tmp_path / "run"), done.trainer.network, digits)
    assert "the module `two_blocks` of the model's code on `PYTHONPATH`" in readme(export_of(tmp_path))


def test_a_job_that_has_not_ended_is_loaded_and_its_folder_stays_as_it_is(trained, tmp_path, digits, stop_after):
    done = trained(Action.deepen("block0"), stop=stop_after(60))
    assert done.result.phase == "Stopped"
    checkpoints = tmp_path / "run" / "checkpoints"
    (checkpoints / "writing-00000099-1-aa").mkdir()  # a leader that is writing the next one
    (checkpoints / "checkpoint-00000098").mkdir()  # damaged
    before = sorted(path.name for path in checkpoints.iterdir())
    newest = checkpoints / next(name for name in reversed(before) if name < "checkpoint-00000098")
    for place in (tmp_path / "run", checkpoints, newest):
        assert_same(espalier_trainer.load(place), done.trainer.network, digits)
    assert sorted(path.name for path in checkpoints.iterdir()) == before
    card = readme(export_of(tmp_path))
    assert "a checkpoint of a run that has not ended" in card
    assert "| Deepen(block0) | 4 to 5 | 306 to 636 |" in card


def export_of(tmp_path: Path) -> Path:
    return export(tmp_path / "run", tmp_path / "out").folder


def readme(folder: Path) -> str:
    return (folder / "README.md").read_text()


def test_a_disk_that_is_full_is_reported_and_leaves_the_export_of_before(trained, tmp_path, digits, monkeypatch):
    done = trained()
    export_of(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python would leave a cut .pyc of what is imported meanwhile
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # stands for a full disk: no file gets larger
    try:
        with pytest.raises(ExportError, match=r"out/model\.safetensors\.writing: cannot be written: File too large"):
            export_of(tmp_path)
        with pytest.raises(ExportError, match=r"out: cannot be written: File too large"):
            export(tmp_path / "run", tmp_path / "out", program=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "out" / "model.safetensors.writing").exists()
    assert_same(espalier_trainer.load(tmp_path / "out"), done.trainer.network, digits)


def test_the_lines_on_the_card_work_as_printed(trained, tmp_path):
    trained(Action.deepen("block0"))
    card = readme(export_of(tmp_path))
    code = re.findall(r"^```python\n(.*?)^```", card, re.M | re.S)[0]
    assert str(tmp_path / "out") in code
    names: dict[str, Any] = {}
    exec(code, names)
    assert tuple(names["outputs"].shape) == (2, 10)
    assert "- data set: digits" in card


NORMED = """
from torch import nn

def net():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10)
    )
"""


def test_the_captured_computation_is_the_models(trained, tmp_path, users_module, digits):
    """By the lines on the card."""
    users_module("normed", NORMED)
    done = trained(Action.deepen("0"), training={"model": {"entrypoint": "normed:net"}})
    assert done.trainer.network.history
    inputs = digits.example_input().repeat(3, 1, 1, 1)
    with torch.no_grad():
        wanted = done.trainer.network.module.eval()(inputs)
    for fold in (False, True):
        card = readme(export(tmp_path / "run", tmp_path / "out", program=True, fold=fold).folder)
        code = next(each for each in re.findall(r"^```python\n(.*?)^```", card, re.M | re.S) if "torch.export" in each)
        names: dict[str, Any] = {}
        exec(code, names)
        with torch.no_grad():
            torch.testing.assert_close(names["model"](inputs), wanted, rtol=1e-5, atol=1e-5)
        kinds = [str(node.target) for node in names["model"].graph.nodes]
        # The layer that has grown is a convolution alone; the second norm follows an activation.
        assert sum("batch_norm" in kind for kind in kinds) == (1 if fold else 2)
        assert ("1 of 2 batch norms are folded" in card) == fold
        assert "batches of any number of examples from 2" in card
    assert not (export(tmp_path / "run", tmp_path / "out").folder / "model.pt2").exists()
    with pytest.raises(ExportError, match="give --torch-export as well"):
        export(tmp_path / "run", tmp_path / "out", fold=True)


def grown_by_script(advised: Callable[..., Any], advice_body: Callable[..., bytes]) -> nn.Module:
    advised(lambda body: (200, advice_body("0")))
    model = start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop, batches = join(model, optimizer, DataLoader(own_loops.DATA, batch_size=4), grow=True)
    own_loops.trained(loop, batches, model, optimizer, 2)
    return model.eval()


@pytest.mark.parametrize("averages", [1, 0, 2])
def test_the_average_of_a_loop_of_the_users_grows_with_the_model_and_is_loaded(
    advised, advice_body, tmp_path, averages
):
    advised(lambda body: (200, advice_body("0")))
    model = start()
    model.add_module("norm", nn.BatchNorm1d(2))
    average, shadow = AveragedModel(model, use_buffers=True), own_loops.Shadow(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    data = TensorDataset(torch.rand(12, 2), torch.arange(12) % 2)
    given = [scheduler, *(average, shadow)[:averages]]
    loop, batches = join(model, optimizer, DataLoader(data, batch_size=4), *given, grow=True)
    own_loops.trained(loop, batches, model, optimizer, 2, after=lambda: averages and average.update_parameters(model))
    inputs, first = torch.rand(3, 2), start()
    first.add_module("norm", nn.BatchNorm1d(2))
    if averages != 1:
        with pytest.raises(ExportError, match="holds no average" if averages == 0 else "holds 2 averages"):
            espalier_trainer.load(tmp_path, first, average=True)
        return
    assert len(average.module.state_dict()) > 11, "it has not grown"
    wanted = average.module.eval()(inputs)
    assert not torch.equal(wanted, model.eval()(inputs))
    assert torch.equal(espalier_trainer.load(tmp_path, first)(inputs), model(inputs))
    assert torch.equal(espalier_trainer.load(tmp_path, first, average=True)(inputs), wanted)
    folder = export(tmp_path, tmp_path / "out", average=True).folder
    assert torch.equal(espalier_trainer.load(folder, first)(inputs), wanted)
    assert "The weights are the average" in readme(folder)
    with pytest.raises(ExportError, match="espalier export"):
        espalier_trainer.load(export(tmp_path, tmp_path / "own").folder, first, average=True)


TIED = """
from torch import nn

def net():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 10))
    model[4].weight = model[2].weight
    return model
"""


def test_the_average_of_a_tied_weight_is_loaded_under_each_of_its_names(trained, tmp_path, digits, users_module):
    users_module("tied_net", TIED)
    done = trained(training={"model": {"entrypoint": "tied_net:net"}, "weightAveraging": 0.99})
    network, inputs = done.trainer.network, digits.example_input()
    raw = network.module.eval()(inputs)
    with averaged(network.optimizer):
        wanted = network.module(inputs)
    assert not torch.allclose(raw, wanted)
    assert torch.equal(espalier_trainer.load(tmp_path / "run")(inputs), wanted)
    assert torch.equal(espalier_trainer.load(export_of(tmp_path))(inputs), wanted)


def tied() -> nn.Module:
    """Return a starting model in which two layers share a weight, and a third begins with its values."""
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 4))
    model[4].weight = model[2].weight
    model[5].load_state_dict(model[2].state_dict())
    return model


def test_a_dictionary_of_averages_counts_for_each_name_of_a_tied_weight(advised, tmp_path):
    advised(lambda body: (200, b""))
    model, first = tied(), tied()
    average = own_loops.Shadow(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    data = TensorDataset(torch.rand(12, 2), torch.arange(12) % 2)
    loop, batches = join(model, optimizer, DataLoader(data, batch_size=4), average)
    own_loops.trained(loop, batches, model, optimizer, 2, after=lambda: average.update(model))
    loaded = espalier_trainer.load(tmp_path, first, average=True)
    for name, parameter in loaded.named_parameters(remove_duplicate=False):
        assert torch.equal(parameter, average.shadow["2.weight" if name == "4.weight" else name]), name


def start() -> nn.Module:
    """Return the starting model of the script."""
    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))


def test_the_model_of_a_loop_of_the_users_is_loaded_into_its_starting_model(
    advised, advice_body, tmp_path, users_module
):
    model = grown_by_script(advised, advice_body)
    inputs = torch.rand(3, 2)
    assert len(model.state_dict()) > 4
    for folder in (tmp_path, export(tmp_path, tmp_path / "out").folder):
        assert torch.equal(espalier_trainer.load(folder, start())(inputs), model(inputs))
        with pytest.raises(ExportError, match=r"it is needed: load\(path, model=\.\.\.\)"):
            espalier_trainer.load(folder)
        with pytest.raises(ExportError, match="was trained from the model Sequential [0-9a-f]+, this one is Linear"):
            espalier_trainer.load(folder, nn.Linear(2, 2))
    assert 'model = espalier_trainer.load("' in readme(tmp_path / "out")
    size = sum(tensor.numel() for tensor in model.state_dict().values())
    assert f"A model of {size} parameters and buffers, trained" in readme(tmp_path / "out")
    job, kept = tmp_path / "job.yaml", tmp_path / "out" / "job.yaml"
    assert job.is_file() == kept.is_file() == ("is the job" in readme(tmp_path / "out"))
    job.unlink(missing_ok=True)
    kept.write_text("of the run that was exported here before")
    export(tmp_path, tmp_path / "out")
    assert not kept.exists()
    assert "is the job" not in readme(tmp_path / "out")
    text = "from torch import nn\ndef net(): return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))\n"
    users_module("their_net", text)
    export(tmp_path, tmp_path / "out", "their_net:net")
    assert f"A model of {size} parameters, trained" in readme(tmp_path / "out")
    assert torch.equal(espalier_trainer.load(tmp_path / "out")(inputs), model(inputs))


SEVERAL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)

    def forward(self, inputs, *, mask, scale=1.0):
        given = inputs["values"] * mask[:, None]
        return {"scores": self.last(self.act(self.first(given))) * scale}

net = Net
"""


def test_a_model_of_several_inputs_that_has_grown_is_loaded_by_its_checkpoint_alone(
    advised, advice_body, tmp_path, users_module
):
    users_module("several", SEVERAL)
    several = importlib.import_module("several")
    advised(lambda body: (200, advice_body("first")))
    model = several.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.rand(12, 2), torch.zeros(12, dtype=torch.int64))
    example = {"inputs": {"values": torch.rand(2, 2)}, "mask": torch.tensor([True, True]), "scale": 0.5}
    loop, batches = join(model, optimizer, DataLoader(data, batch_size=4), grow=True, example=example)
    for _ in loop.epochs(2):
        for values, labels in batches:
            optimizer.zero_grad()
            scores = model({"values": values}, mask=torch.ones(len(labels), dtype=torch.bool))["scores"]
            loop.backward(nn.functional.cross_entropy(scores, labels))
            optimizer.step()
    assert len(model.state_dict()) > 4, "it has not grown"
    card = readme(export(tmp_path, tmp_path / "out", "several:net", program=True).folder)
    wanted = model.eval()(**example)["scores"]
    torch.testing.assert_close(espalier_trainer.load(tmp_path, several.net())(**example)["scores"], wanted)
    lines = "inputs={'values': torch.rand(2, 2)}, mask=torch.full((2,), True, dtype=torch.bool), scale=0.5"
    assert card.count(f"outputs = model({lines})") == 2
    for code in re.findall(r"^```python\n(.*?)^```", card, re.M | re.S):
        names: dict[str, Any] = {}
        exec(code, names)
        torch.testing.assert_close(names["model"](**example)["scores"], wanted)
    assert "batches of any number of examples from 2" in card


def test_an_example_is_kept_by_shapes_and_by_the_greatest_of_its_integers():
    lengths, state = torch.tensor([3, 5]), (torch.rand(2, 4, dtype=torch.float64), None)
    kept = known((torch.rand(2, 3).bfloat16(), lengths, {"state": state, "flag": True, "name": "x"}))
    again = type(kept).model_validate_json(kept.model_dump_json())
    assert again == kept
    first, second, third = again.of_rows(7).make()
    assert (first.shape, first.dtype) == ((7, 3), torch.bfloat16)
    assert second.tolist() == [5] * 7
    assert (third["state"][0].shape, third["state"][0].dtype) == ((7, 4), torch.float64)
    assert (third["state"][1], third["flag"], third["name"]) == (None, True, "x")
    assert type(third["state"]) is tuple
    assert known((torch.rand(2, 3), object())) is None
    for alone in (torch.tensor([[7, 2], [0, 1]]), torch.tensor([[7, 2], [0, 1]], dtype=torch.uint16)):
        assert known(alone).make().tolist() == [[7, 7], [7, 7]]
    assert known(torch.tensor(3)) is None
    assert known({"scale": 1.0}) is None


def test_what_cannot_be_loaded_names_file_and_remedy(trained, tmp_path):
    with pytest.raises(ExportError, match=r"nowhere: is not a folder; give that of a run"):
        espalier_trainer.load(tmp_path / "nowhere")
    with pytest.raises(
        ExportError, match=r"holds no checkpoint and no export; a job writes its first checkpoint after"
    ):
        espalier_trainer.load(tmp_path)
    trained()
    with pytest.raises(ExportError, match="holds several jobs; give the folder of one of them: run"):
        espalier_trainer.load(tmp_path)
    out = export_of(tmp_path)
    with pytest.raises(ExportError, match="run: exists and is not an export; give --output another folder"):
        export(tmp_path / "run", tmp_path / "run")
    with pytest.raises(ExportError, match="--model: .* was trained by the ready trainer"):
        export(tmp_path / "run", out, "a:b")
    (out / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ExportError, match="model.safetensors: cannot be used .*; export the run again"):
        espalier_trainer.load(out)
    (out / "model.safetensors").unlink()
    with pytest.raises(ExportError, match="model.safetensors: is missing; export the run again"):
        espalier_trainer.load(out)
    (tmp_path / "run" / "job.yaml").unlink()
    with pytest.raises(ExportError, match=r"there is no job.yaml .*; put the job's file there under this name"):
        espalier_trainer.load(tmp_path / "run")


@pytest.mark.parametrize(
    ("found", "wanted", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, math.nan], [1.0, 2.0], math.inf),
        ([1.0, math.inf], [1.0, math.inf], 0.0),
        ([0.5, 2.0], [1.0, 2.0], 0.25),
    ],
)
def test_each_output_of_a_captured_computation_is_judged_by_itself(found, wanted, error):
    class Two(nn.Module):
        def __init__(self, small: list[float]) -> None:
            super().__init__()
            self.small = small

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return 1e6 * x, torch.tensor(self.small)

    assert _difference(Two(found), Two(wanted), torch.ones(2)) == error
