"""A LightningModule for one or many workers of a job: a network reads handwritten digits."""

import sys

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from espalier_trainer.integrations.lightning import ElasticWorker

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 20


class Reader(lightning.LightningModule):
    """Reads a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch, batch_idx):
        """Return the loss of a batch."""
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        """Log the accuracy and the loss."""
        logits = self.net(batch[0])
        self.log("val_acc", (logits.argmax(1) == batch[1]).float().mean())
        self.log("val_loss", nn.functional.cross_entropy(logits, batch[1]))

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=0.003)


def main() -> None:
    """Train, then print the accuracy on the fifth of the images that was held out."""
    lightning.seed_everything(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    held_out = torch.arange(len(labels)) % 5 == 0
    examples = TensorDataset(images[~held_out], labels[~held_out])
    loader = DataLoader(examples, batch_size=64, shuffle=True)
    held = DataLoader(TensorDataset(images[held_out], labels[held_out]), batch_size=1000)

    module = Reader()
    names = {"val_acc": "validation_accuracy", "val_loss": "validation_loss"}
    elastic = ElasticWorker(loader, grow=True, epochs=EPOCHS, report=names)
    trainer = lightning.Trainer(
        max_epochs=1,  # of Lightning: the stream of batches, as long as the budget
        callbacks=[elastic],
        val_check_interval=46,  # batches
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,  # the job has its own
        enable_progress_bar=False,
    )
    trainer.fit(module, elastic.batches, held)

    (figures,) = trainer.validate(module, held, verbose=False)
    tensors = len(list(module.parameters()))
    print(f"accuracy {figures['val_acc']:.3f}, {tensors} parameters", flush=True)
    elastic.loop.report(test_accuracy=figures["val_acc"])


if __name__ == "__main__":
    main()
