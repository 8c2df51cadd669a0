"""A loop whose model grows: extra workers try a growth first, and the best copy trains on."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from espalier_trainer.own import join


def main() -> None:
    """Train until the time budget is over, then print the accuracy on held-out images."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images[:, None], dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    number = torch.arange(len(labels)) % 10
    training, validation, test = number > 1, number == 0, number == 1
    examples = TensorDataset(images[training], labels[training])
    loader = DataLoader(examples, batch_size=64, shuffle=True)

    model = nn.Sequential(
        *(nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def validate(module: nn.Module) -> torch.Tensor:
        return nn.functional.cross_entropy(module(images[validation]), labels[validation])

    loop, loader = join(model, optimizer, loader, grow=True, validate=validate)

    for _ in loop.epochs():
        for inputs, targets in loader:
            optimizer.param_groups[0]["lr"] = 0.01 * (1 - loop.fraction)
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loop.backward(loss)
            optimizer.step()

    model.eval()
    accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
    loop.report(test_accuracy=accuracy)
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{size} parameters, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
