"""The loop of plain.py for one or many workers of a job: a small network learns to read handwritten digits."""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from espalier_trainer.own import join

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 20


def main() -> None:
    """Train, then print the accuracy on the fifth of the images that was held out."""
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
    held_out = torch.arange(len(labels)) % 5 == 0
    loader = DataLoader(TensorDataset(images[~held_out], labels[~held_out]), batch_size=64, shuffle=True)

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    loop, loader = join(model, optimizer, loader)

    for epoch in loop.epochs(EPOCHS):
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loop.backward(loss)
            optimizer.step()
        size = sum(parameter.square().sum().item() for parameter in model.parameters())
        print(f"epoch {epoch}: parameters of length {size**0.5:.9f}", flush=True)

    accuracy = (model(images[held_out]).argmax(1) == labels[held_out]).float().mean()
    print(f"accuracy {accuracy:.3f}")
    torch.save(model.state_dict(), "digits.pt")


if __name__ == "__main__":
    main()
