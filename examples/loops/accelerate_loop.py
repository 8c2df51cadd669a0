"""A loop with Accelerate for one or many workers of a job: a network reads handwritten digits."""

import sys

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from espalier_trainer.integrations.accelerate import join

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 20


def main() -> None:
    """Train, then print the accuracy on the fifth of the images that was held out."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    held_out = torch.arange(len(labels)) % 5 == 0
    examples = TensorDataset(images[~held_out], labels[~held_out])
    loader = DataLoader(examples, batch_size=32, shuffle=True)

    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    model, optimizer = accelerator.prepare(model, optimizer)  # not the loader
    loop, loader = join(accelerator, model, optimizer, loader, grow=True)

    for epoch in loop.epochs(EPOCHS):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        if loop.leads:
            print(f"epoch {epoch}: {len(list(model.parameters()))} parameters", flush=True)

    with torch.no_grad():
        answers = model(images[held_out].to(accelerator.device)).argmax(1).cpu()
        accuracy = (answers == labels[held_out]).float().mean()
    print(f"accuracy {accuracy:.3f}")
    loop.report(test_accuracy=accuracy.item())


if __name__ == "__main__":
    main()
