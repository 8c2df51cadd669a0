"""Accelerate, Lightning and the Trainer of Hugging Face: what they count, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from espalier_trainer.own import OwnLoopError
from own_scripts import another_process

pytestmark = pytest.mark.slow

BATCHES = DataLoader(TensorDataset(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)), batch_size=2)


QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
"""Arguments of a `Trainer` of Lightning that saves and prints nothing."""


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


def test_what_would_go_wrong_is_refused_with_the_remedy(tmp_path):
    import lightning
    import transformers
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    from espalier_trainer.integrations.accelerate import join
    from espalier_trainer.integrations.lightning import ElasticWorker
    from espalier_trainer.integrations.transformers import ElasticTrainer

    class Two(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    with pytest.raises(OwnLoopError, match="its batches are for `fit` of a Trainer that has it among its callbacks"):
        next(iter(ElasticWorker(BATCHES).batches))
    elastic = ElasticWorker(BATCHES)
    assert elastic._trained(both := Two()) is both
    assert ElasticWorker(BATCHES, network="second")._trained(two := Two()) is two.second
    with pytest.raises(OwnLoopError, match="Two has no module 'third'"):
        ElasticWorker(BATCHES, network="third")._trained(Two())
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    AcceleratorState._reset_state(reset_partial_state=True)  # which another test of this process may have set
    accelerator = Accelerator(mixed_precision="bf16", cpu=True)
    with pytest.raises(OwnLoopError, match="changes the model's forward, which would be lost when the model grows"):
        join(accelerator, model, accelerator.prepare(optimizer), BATCHES, grow=True)
    _, batches = join(accelerator, *accelerator.prepare(model, optimizer), BATCHES)
    assert len(list(batches)) == len(batches) == 2
    assert len(batches.dataset) == 4
    arguments = transformers.TrainingArguments(str(tmp_path), gradient_accumulation_steps=2, report_to="none")
    with pytest.raises(OwnLoopError, match="gradient_accumulation_steps must be 1"):
        ElasticTrainer(model, arguments)
    arguments = transformers.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    with pytest.raises(OwnLoopError, match="auto_find_batch_size=True would restart with smaller batches"):
        ElasticTrainer(model, dataclasses.replace(arguments, auto_find_batch_size=True))
    with pytest.raises(OwnLoopError, match=r"the train_dataset is iterable \(Endless\), .* give a map-style one"):
        ElasticTrainer(model, dataclasses.replace(arguments, max_steps=9), train_dataset=Endless())
    with pytest.raises(OwnLoopError, match=r"resume_from_checkpoint=True\): the job resumes from its own checkpoints"):
        ElasticTrainer(model, arguments).train(resume_from_checkpoint=True)
    for order in ("group_by_length", "batch_rebalance"):
        with pytest.raises(OwnLoopError, match=f"train_sampling_strategy='{order}' would .* one of random, sequential"):
            ElasticTrainer(model, dataclasses.replace(arguments, train_sampling_strategy=order))
    with pytest.raises(OwnLoopError, match="data_seed=7: .* spec.training.seed decides it; leave data_seed out"):
        ElasticTrainer(model, dataclasses.replace(arguments, data_seed=7))
    arguments.load_best_model_at_end, arguments.metric_for_best_model = True, "loss"
    with pytest.raises(OwnLoopError, match="load_best_model_at_end=True would load weights from before a growth"):
        ElasticTrainer(model, arguments, grow=True)


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"features": torch.ones(2) * index, "labels": torch.tensor(index % 2)}


class Model(nn.Linear):
    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> Any:
        return (nn.functional.cross_entropy(super().forward(features), labels),)


def quiet_arguments(folder: Path, **options: Any) -> Any:
    """Return arguments of a `Trainer` of Hugging Face on a CPU that saves and prints nothing."""
    import transformers

    return transformers.TrainingArguments(
        str(folder), max_steps=1000, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True, **options
    )


@pytest.mark.filterwarnings("ignore")  # those of the libraries
def test_a_trainer_of_hugging_face_makes_batches_as_it_was_told(tmp_path):
    from espalier_trainer.integrations.transformers import ElasticTrainer

    class Own(ElasticTrainer):
        order: torch.utils.data.Sampler[int] | None = None

        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return self.order or super()._get_train_sampler(train_dataset)

    def trainer(**options: Any) -> tuple[Own, list[list[int]]]:
        arguments = quiet_arguments(tmp_path, per_device_train_batch_size=4, **options)
        model, seen = Model(2, 2), []
        model.register_forward_pre_hook(
            lambda _, given, named: seen.append(named["features"][:, 0].int().tolist()), with_kwargs=True
        )
        return Own(model, arguments, train_dataset=Rows(), epochs=1), seen

    own, seen = trainer(train_sampling_strategy="sequential", dataloader_drop_last=True)
    own.train()
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]]
    own, seen = trainer()
    own.train()
    assert [len(batch) for batch in seen] == [4, 4, 2]
    drawn = [number for batch in seen for number in batch]
    assert drawn != sorted(drawn) == list(range(10))
    own, _ = trainer()
    own.order = torch.utils.data.WeightedRandomSampler([1.0] * 10, 10)
    with pytest.raises(OwnLoopError, match="_get_train_sampler returns a WeightedRandomSampler, .*; return a Random"):
        own.train()


@pytest.mark.filterwarnings("ignore")  # those of the libraries
def test_schedulers_count_steps_of_the_optimizer_and_epochs_are_passes_over_the_data(tmp_path):
    """Five batches are two steps of two batches, and one."""
    import lightning
    import transformers

    from espalier_trainer.integrations import lightning as lightning_module
    from espalier_trainer.integrations import transformers as transformers_module
    from espalier_trainer.integrations.lightning import ElasticWorker
    from espalier_trainer.integrations.transformers import ElasticTrainer

    torch.manual_seed(0)
    start = Model(2, 2).state_dict()

    def parts() -> tuple[Any, Any, Any, list[torch.Tensor]]:
        model = Model(2, 2)
        model.load_state_dict(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen: list[torch.Tensor] = []
        optimizer.register_step_post_hook(lambda *_: seen.append(model.weight.detach().clone()))
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), seen

    evaluated: list[tuple[int, float]] = []

    class Told(transformers.TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            evaluated.append((state.global_step, state.epoch))

    model, optimizer, scheduler, _ = parts()
    arguments = quiet_arguments(tmp_path, per_device_train_batch_size=2, eval_strategy="epoch")
    data = {"train_dataset": Rows(), "eval_dataset": Rows()}
    how = {"optimizers": (optimizer, scheduler), "callbacks": [Told()], "accumulate": 2, "epochs": 2}
    own = ElasticTrainer(model, arguments, **data, **how)
    own.train()
    assert scheduler.last_epoch == 6
    assert evaluated == [(5, 1.0), (10, 2.0)]  # the steps are batches
    assert (own.state.global_step, own._globalstep_last_logged) == (10, 0)
    transformers_module._TransformersProgress(own).load_state_dict({"global_step": 30})
    assert (own.state.global_step, own._globalstep_last_logged) == (30, 20)  # as many steps are not logged yet

    module, configured = lightning.LightningModule(), parts()
    module.net = configured[0]
    module.training_step = lambda batch, batch_idx: module.net(**batch)[0]
    module.configure_optimizers = lambda: {
        "optimizer": configured[1],
        "lr_scheduler": {"scheduler": configured[2], "interval": "step"},
    }
    elastic = ElasticWorker(DataLoader(Rows(), batch_size=2), accumulate=2, epochs=2)
    trainer = lightning.Trainer(max_epochs=1, callbacks=[elastic], accelerator="cpu", **QUIET)
    trainer.fit(module, elastic.batches)
    assert (configured[2].last_epoch, trainer.global_step, len(configured[3])) == (6, 6, 6)
    counted = lightning_module._LightningProgress(trainer.fit_loop.epoch_loop)
    assert counted.state_dict() == {"batches": 10, "steps": 6}
    counted.load_state_dict(later := {"batches": 40, "steps": 20})
    assert counted.state_dict() == later
    assert (trainer.global_step, trainer.fit_loop.epoch_loop.batch_idx) == (20, 39)
    # The same by hand.
    model, optimizer, scheduler, _ = parts()
    for _ in range(2):
        for numbers in ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9)):
            optimizer.zero_grad()
            batch = torch.utils.data.default_collate([Rows()[number] for number in numbers])
            model(**batch)[0].backward()
            optimizer.step()
            scheduler.step()
    torch.testing.assert_close(configured[0].state_dict(), model.state_dict())


def test_averages_of_lightning_and_its_other_ways_to_resume_are_refused():
    from lightning.pytorch.callbacks import EMAWeightAveraging

    from espalier_trainer.integrations.lightning import ElasticWorker

    elastic, module = ElasticWorker(BATCHES), SimpleNamespace(automatic_optimization=True)
    trainer = SimpleNamespace(
        world_size=1,
        max_epochs=1,
        accumulate_grad_batches=1,
        ckpt_path=None,
        lr_scheduler_configs=[],
        callbacks=[EMAWeightAveraging()],
    )
    with pytest.raises(
        OwnLoopError, match=r"average of EMAWeightAveraging would neither grow .*AveragedModel of the network"
    ):
        elastic.on_fit_start(trainer, module)
    with pytest.raises(OwnLoopError, match="automatic_optimization=False"):
        elastic.on_fit_start(trainer, SimpleNamespace(automatic_optimization=False))
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    config = SimpleNamespace(scheduler=plateau, interval="epoch", reduce_on_plateau=True)
    trainer.lr_scheduler_configs.append(config)
    with pytest.raises(OwnLoopError, match=r"ReduceLROnPlateau has the interval 'epoch'.* set interval='step'"):
        elastic.on_fit_start(trainer, module)
    trainer.max_epochs = 1000  # of a Trainer of whom nobody has said
    with pytest.raises(OwnLoopError, match=r"max_epochs=1000, and would join the job again for each; set max_epochs=1"):
        elastic.on_fit_start(trainer, module)
    trainer.max_epochs, trainer.ckpt_path = 1, "last.ckpt"
    with pytest.raises(OwnLoopError, match=r"fit\(ckpt_path='last.ckpt'\): the job resumes"):
        elastic.on_fit_start(trainer, module)


def test_schedulers_of_lightning_by_epochs_follow_passes_over_the_data():
    from espalier_trainer.integrations.lightning import ElasticWorker

    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    by_epoch, by_two, by_step = (torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) for _ in range(3))
    configs = [
        SimpleNamespace(scheduler=by_epoch, interval="epoch", frequency=1, reduce_on_plateau=False),
        SimpleNamespace(scheduler=by_two, interval="epoch", frequency=2, reduce_on_plateau=False),
        SimpleNamespace(scheduler=by_step, interval="step", frequency=1, reduce_on_plateau=False),
    ]
    elastic = ElasticWorker(BATCHES)
    elastic._trainer = SimpleNamespace(lr_scheduler_configs=configs)
    elastic._module = SimpleNamespace(lr_scheduler_step=lambda scheduler, metric: scheduler.step())
    optimizer.step()
    for elastic.batches.stream.passes in (1, 2, 3, 4):
        elastic._epoch_ended()
    assert (by_epoch.last_epoch, by_two.last_epoch, by_step.last_epoch) == (4, 2, 0)


def test_a_worker_that_does_not_lead_saves_nothing_and_ends_no_training(leader, monkeypatch, tmp_path):
    import transformers
    from lightning.fabric.utilities.rank_zero import rank_zero_only as fabric_rank_zero_only
    from lightning.pytorch.loggers import CSVLogger
    from lightning.pytorch.utilities import rank_zero_only

    from espalier_trainer.integrations.lightning import ElasticWorker
    from espalier_trainer.integrations.transformers import ElasticTrainer

    arguments = transformers.TrainingArguments(str(tmp_path / "saved"), report_to="none", use_cpu=True)

    def saved() -> tuple[bool, bool, bool]:
        trainer = ElasticTrainer(Model(2, 2), arguments)
        trainer.create_optimizer_and_scheduler(1)
        trainer.control.should_training_stop = trainer.control.should_save = True
        trainer._maybe_log_save_evaluate(0.0, None, trainer.model, None, 0, None, None)
        folders = [path.name for path in (tmp_path / "saved").iterdir()]
        return trainer.is_world_process_zero(), trainer.control.should_training_stop, "checkpoint-0" in folders

    monkeypatch.setenv("ESPALIER_WORKER_ROLE", "extra")
    assert saved() == (False, False, False)
    for told in (rank_zero_only, fabric_rank_zero_only):
        monkeypatch.setattr(told, "rank", 0)
    trainer = SimpleNamespace(strategy=SimpleNamespace(checkpoint_io="a disk"))
    ElasticWorker(BATCHES).setup(trainer, None, "fit")
    logger = CSVLogger(tmp_path / "logged")
    logger.log_metrics({"loss": 1.0}, 1)
    logger.save()
    assert not (tmp_path / "logged").exists()
    trainer.strategy.checkpoint_io.save_checkpoint({}, path := tmp_path / "last.ckpt")
    assert not path.exists()
    monkeypatch.delenv("ESPALIER_WORKER_ROLE")
    assert saved() == (True, True, True)


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_a_lightning_module_with_several_parts_grows_itself(advised, advice_body):
    import lightning

    from espalier_trainer.integrations.lightning import ElasticWorker

    class Parts(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.act, self.head = nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)

        def forward(self, inputs: torch.Tensor) -> Any:
            return self.head(self.act(self.encoder(inputs)))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            assert self.trainer.global_step == batch_idx
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    another_process()
    agent = advised(lambda body: (200, advice_body("encoder")))
    module, elastic = Parts(), ElasticWorker(BATCHES, grow=True, epochs=3)
    names = set(module.state_dict())
    trainer = lightning.Trainer(max_epochs=1, callbacks=[elastic], accelerator="cpu", **QUIET)
    trainer.fit(module, elastic.batches)
    assert agent.requests
    assert {name for name in module.state_dict() if ".grown." in name}
    assert names < set(module.state_dict()), "the names of old checkpoints stay"
