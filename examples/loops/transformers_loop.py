"""Hugging Face's Trainer for one or many workers of a job: a tiny ViT reads handwritten digits."""

import sys
import tempfile

import torch
import transformers
from sklearn.datasets import load_digits
from torch.utils.data import Dataset

from espalier_trainer.integrations.transformers import ElasticTrainer

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 20


class Digits(Dataset):
    """Images of 8 x 8 pixels, and their labels."""

    def __init__(self, held_out: bool) -> None:
        digits = load_digits()
        chosen = (torch.arange(len(digits.target)) % 5 == 0) == held_out
        self.images = torch.tensor(digits.images, dtype=torch.float32)[chosen, None] / 16
        self.labels = torch.tensor(digits.target)[chosen]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index):
        return {"pixel_values": self.images[index], "labels": self.labels[index]}


def main() -> None:
    """Train, then print the accuracy on the fifth of the images that was held out."""
    transformers.set_seed(0)
    config = transformers.ViTConfig(
        image_size=8,
        patch_size=4,
        num_channels=1,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=10,
        attn_implementation="eager",
    )
    arguments = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=64,
        learning_rate=0.003,
        max_steps=1_000_000_000,  # the job's budget ends it
        save_strategy="no",  # the job has its own checkpoints
        eval_strategy="steps",
        eval_steps=100,
        report_to="none",
        logging_strategy="no",
        disable_tqdm=True,
    )
    trainer = ElasticTrainer(
        transformers.ViTForImageClassification(config),
        arguments,
        train_dataset=Digits(held_out=False),
        eval_dataset=Digits(held_out=True),
        compute_metrics=lambda found: {"accuracy": (found.predictions.argmax(1) == found.label_ids).mean()},
        grow=True,
        epochs=EPOCHS,
    )
    trainer.train()

    figures = trainer.evaluate()
    layers = trainer.model.config.num_hidden_layers
    print(f"accuracy {figures['eval_accuracy']:.3f}, {layers} layers", flush=True)
    trainer.loop.report(test_accuracy=figures["eval_accuracy"])


if __name__ == "__main__":
    main()
