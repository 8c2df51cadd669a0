"""Data sets: the splits, what is missing, and the order of the examples."""

from __future__ import annotations

import io
import os
import pathlib
import re
import sys
import tarfile
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from espalier_core.types.job import DatasetSpec
from espalier_trainer.data import load_data
from espalier_trainer.data.images import HELD_OUT_SEED
from espalier_trainer.data.source import TensorSource, channel_statistics, epoch_order, flip_batch
from espalier_trainer.errors import DatasetError

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _png(colour: int, size: int = 32, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    pixels = np.full((size, size, 3), colour, dtype=np.uint8)
    pixels[0, 0] = 255
    Image.fromarray(pixels).convert(mode).save(buffer, "PNG")
    return buffer.getvalue()


def _as(kind, pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def _folder(root, splits=("train", "test"), classes=("cat", "dog"), count=10, size=32, mode="RGB"):
    for split in splits:
        for number, name in enumerate(classes):
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                (folder / f"{index:03d}.png").write_bytes(_png(20 * number + index, size, mode))
    return root


def test_diabetes_is_scikit_learns_without_scikit_learn(monkeypatch):
    from sklearn.datasets import load_diabetes

    known = load_diabetes(scaled=False)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    data = load_data(DatasetSpec(name="diabetes"))
    order = np.random.RandomState(HELD_OUT_SEED).permutation(442)
    for values, name in ((known.data, "inputs"), (known.target[:, None], "labels")):
        wanted = torch.tensor(values[order], dtype=torch.float32)
        splits = [getattr(split, name) for split in (data.train, data.validation, data.test)]
        torch.testing.assert_close(torch.cat(splits), (wanted - wanted[:302].mean(0)) / wanted[:302].std(0))
    assert load_data(DatasetSpec(name="digits")).classes == 10


def test_digits_split_is_that_of_the_reference_workload(digits):
    from sklearn.datasets import load_digits

    known = load_digits()
    order = np.random.RandomState(0).permutation(1797)
    inputs = torch.tensor(known.images[order] / 16, dtype=torch.float32).unsqueeze(1)
    mean, std = inputs[:1297].mean(), inputs[:1297].std()
    splits = [digits.train, digits.validation, digits.test]
    assert [len(split) for split in splits] == [1097, 200, 500]
    torch.testing.assert_close(torch.cat([split.inputs for split in splits]), (inputs - mean) / std)
    assert torch.equal(torch.cat([split.labels for split in splits]), torch.tensor(known.target[order]))
    assert digits.classes == 10


def test_order_is_a_permutation_of_its_own_for_each_seed_and_epoch():
    orders = [epoch_order(100, 32, seed, epoch, CPU).indices.tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert orders[0] == epoch_order(100, 32, 0, 0, CPU).indices.tolist()


@pytest.mark.parametrize(("examples", "batches"), [(100, 3), (96, 3), (32, 1), (10, 1)])
def test_incomplete_last_batch_is_left_out(examples, batches):
    order = epoch_order(examples, 32, 0, 0, CPU)
    source = TensorSource(torch.arange(examples).float().view(-1, 1), torch.zeros(examples, dtype=torch.int64))
    assert len(order) == batches
    seen = torch.cat([order.batch(source, cursor)[0] for cursor in range(batches)])
    assert len(seen.unique()) == min(examples, 32 * batches)


def test_batch_is_the_same_whenever_it_is_asked_for():
    images = torch.rand(64, 1, 2, 2)
    source = TensorSource(images, torch.zeros(64, dtype=torch.int64), augmentation=flip_batch)
    forwards = [epoch_order(64, 8, 0, 3, CPU).batch(source, cursor)[0] for cursor in range(8)]
    backwards = [epoch_order(64, 8, 0, 3, CPU).batch(source, cursor)[0] for cursor in reversed(range(8))]
    for one, other in zip(forwards, reversed(backwards), strict=True):
        assert torch.equal(one, other)
    plain = TensorSource(images, source.labels)
    flipped = [
        not torch.equal(batch, epoch_order(64, 8, 0, 3, CPU).batch(plain, cursor)[0])
        for cursor, batch in enumerate(forwards)
    ]
    assert True in flipped
    assert False in flipped


def test_channel_statistics_match_numpy():
    images = torch.randint(0, 256, (50, 3, 5, 4), dtype=torch.uint8)
    mean, std = channel_statistics(images, chunk=7)
    pixels = images.numpy().astype(np.float64) / 255
    np.testing.assert_allclose(mean.flatten(), pixels.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(std.flatten(), pixels.std((0, 2, 3)), rtol=1e-5)


@pytest.mark.parametrize("archived", [False, True])
def test_cifar8_pools_an_image_folder_or_an_archive_of_one(tmp_path, archived):
    path = _folder(tmp_path / "images", classes=tuple("abcdefghij"), count=4)
    if archived:
        with tarfile.open(tmp_path / "images.tar.gz", "w:gz") as archive:
            archive.add(path / "test", "test")
            archive.add(path / "train", "train")
        path = tmp_path / "images.tar.gz"
    data = load_data(DatasetSpec(name="cifar8", path=str(path)))
    assert (len(data.train), len(data.validation), len(data.test)) == (36, 4, 40)
    assert data.example_input().shape == (2, 3, 8, 8)
    # Images are colour everywhere, but for the first pixel: its block's mean is (15·c + 255)/16.
    raw = data.test.inputs[0]
    assert raw[0, 1, 1] == 0
    assert raw[0, 0, 0] == pytest.approx(255 / 16 / 255)
    again = load_data(DatasetSpec(name="cifar8", path=str(path)))
    assert torch.equal(again.train.inputs, data.train.inputs)
    assert len(list((tmp_path / "cache" / "espalier").glob("*.npz"))) == 1


@pytest.fixture
def images(tmp_path):
    """A folder of images, and what reads it."""
    path = _folder(tmp_path / "images")
    return path, partial(load_data, DatasetSpec(name="imagefolder", path=str(path)))


def test_kept_copy_that_is_damaged_is_decoded_again(images, tmp_path, caplog):
    _, load = images
    first = load()
    (kept,) = (tmp_path / "cache" / "espalier").glob("*.npz")
    kept.write_bytes(kept.read_bytes()[:100])
    assert torch.equal(load().train.inputs, first.train.inputs)
    assert "damaged" in caplog.text


def test_changed_folder_is_decoded_again(images):
    path, load = images
    before = load()
    (path / "test" / "cat" / "extra.png").write_bytes(_png(99))
    assert len(load().test) == len(before.test) + 1


def test_image_overwritten_in_place_is_decoded_again(images):
    path, load = images
    before = load()
    first = sorted((path / "test" / "cat").iterdir())[0]
    times = first.parent.stat()
    first.write_bytes(_png(99))
    os.utime(first.parent, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert not torch.equal(load().test.inputs, before.test.inputs)


def test_image_folder_without_splits_is_divided(tmp_path):
    path = _folder(tmp_path, splits=("",), classes=("a", "b", "c"), count=20, size=9, mode="L")
    data = load_data(DatasetSpec(name="imagefolder", path=str(path), options={"channels": 1, "imageSize": 8}))
    assert (len(data.train), len(data.validation), len(data.test)) == (48, 6, 6)
    assert data.classes == 3
    assert data.example_input().shape == (2, 1, 8, 8)


def test_image_folder_with_its_own_validation_split(tmp_path):
    path = _folder(tmp_path, splits=("train", "val", "test"), count=5)
    data = load_data(DatasetSpec(name="imagefolder", path=str(path)))
    assert (len(data.train), len(data.validation), len(data.test)) == (10, 10, 10)


def test_images_of_16_bits_that_need_only_8_are_read(tmp_path):
    root = _folder(tmp_path / "images", mode="L")
    pixels = np.arange(1024, dtype=np.uint16).reshape(32, 32) % 256
    (root / "train/cat/000.png").write_bytes(_as("PNG", pixels))
    read = load_data(DatasetSpec(name="imagefolder", path=str(root), options={"channels": 1})).train
    assert any(torch.equal(image[0], torch.from_numpy(pixels.astype(np.uint8))) for image in read.inputs)


def test_mnist_from_an_image_folder_is_grey(tmp_path):
    path = _folder(tmp_path / "m", classes=tuple("0123456789"), count=2, size=28, mode="L")
    data = load_data(DatasetSpec(name="mnist", path=str(path)))
    assert data.example_input().shape == (2, 1, 28, 28)


@pytest.mark.parametrize("name", ["cifar10", "cifar8", "mnist"])
def test_missing_data_say_where_was_looked_and_how_to_get_them(tmp_path, name):
    place = tmp_path / "nothing"
    with pytest.raises(DatasetError) as error:
        load_data(DatasetSpec(name=name, path=str(place), options={"download": False}))
    message = str(error.value)
    assert str(place) in message
    assert "training.dataset.path" in message
    assert "download=True" in message
    assert "options.download is false" in message


def test_download_that_fails_says_so(tmp_path, monkeypatch):
    import urllib.error

    from torchvision.datasets import cifar

    def offline(*args, **options):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(cifar, "download_and_extract_archive", offline)
    with pytest.raises(DatasetError, match=r"downloading it failed \(<urlopen error no network>\)"):
        load_data(DatasetSpec(name="cifar10", path=str(tmp_path)))


def test_torchvisions_own_copy_is_read(tmp_path, monkeypatch):
    import torchvision.datasets

    class Copy:
        def __init__(self, root, train, download):
            self.data = np.zeros((40 if train else 10, 32, 32, 3), dtype=np.uint8)
            self.targets = [0] * len(self.data)

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", Copy)
    data = load_data(DatasetSpec(name="cifar10", path=str(tmp_path)))
    assert (len(data.train), len(data.validation), len(data.test)) == (36, 4, 10)


_WIDE = np.full((32, 32), 40_000, dtype=np.uint16)
_HUGE = _as("BMP", np.zeros((8, 8, 3), dtype=np.uint8))
_HUGE = _HUGE[:18] + (60_000).to_bytes(4, "little") * 2 + _HUGE[26:]


def _with(name, content):
    """Return what makes a usable folder with one more image."""
    return lambda root: (_folder(root), (root / name).write_bytes(content))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda root: None, "no such folder or archive"),
        (lambda root: root.mkdir(), "holds no images"),
        (lambda root: root.write_bytes(b"no archive"), "cannot be read"),
        (partial(_folder, splits=("train",)), "neither validation nor test"),
        (partial(_folder, splits=("test",)), "no train folder"),
        (_with("train/cat/x.png", b"no"), "train/cat/x.png: not an image"),
        (_with("test/cat/x.png", _png(0, 9)), "options.imageSize"),
        (_with("train/cat/x.ppm", b"P6 r5 5 255\n"), "train/cat/x.ppm: not an image"),
        (_with("train/cat/x.bmp", _HUGE), "train/cat/x.bmp: not an image"),
        (
            _with("train/cat/x.png", _as("PNG", _WIDE)),
            "train/cat/x.png: a pixel is 40000; pixels must be whole numbers from 0 to 255",
        ),
        (_with("train/cat/x.tif", _as("TIFF", (_WIDE / 7).astype(np.float32))), "x.tif: a pixel is 5714.29;"),
        (
            lambda root: (_folder(root), _folder(root / "train/dog", ("young",))),
            "train/dog/young/cat/000.png is in no split, and test/cat/000.png is in one",
        ),
        (_with("train/all.png", _png(0)), "train/all.png is in no split"),
        (
            partial(_folder, splits=("cat", "dog"), classes=("train", "test")),
            "its classes would be test, train, which are names of splits; place images as <split>/<class>/<image>",
        ),
    ],
)
def test_unusable_image_folders_say_what_to_do(tmp_path, build, said):
    build(tmp_path / "images")
    with pytest.raises(DatasetError) as error:
        load_data(DatasetSpec(name="imagefolder", path=str(tmp_path / "images")))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"memoryLimitGiB": 1e-5}, "options.memoryLimitGiB"),
        ({"imageSize": -1}, "imageSize: -1"),
        ({"imageSize": True}, "imageSize: True"),
        ({"channels": 2}, "channels: 2"),
        ({"memoryLimitGiB": 0}, "memoryLimitGiB: 0"),
        ({"size": 3}, "'size' is unknown; allowed: imageSize"),
    ],
)
def test_unusable_options_say_what_to_do(tmp_path, options, said):
    with pytest.raises(DatasetError, match=re.escape(said)):
        load_data(DatasetSpec(name="imagefolder", path=str(_folder(tmp_path)), options=options))


MODULE = """
import numpy
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

def _pair(n):
    return torch.rand(n, 1, 8, 8), torch.arange(n) % 3

def tensors(path="none", count=30):
    return _pair(count), TensorDataset(*_pair(6)), [part.numpy() for part in _pair(9)]

class Squares(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.full((1, 8, 8), float(index)), index % 2

def mapped(): return Squares(), Squares(), Squares()
mapped.classes = 2
def unlabelled(): return Squares(), Squares(), Squares()
def two(): return _pair(3), _pair(3)
def floats(): return [(torch.rand(3, 1), torch.rand(3))] * 3
def uneven(): return [(torch.rand(3, 1), torch.arange(2))] * 3
def empty(): return _pair(3), _pair(0), _pair(3)
def bare(): return (([], []), ([], []), ([], []))
def negative(): return _pair(3), (torch.rand(3, 1), torch.tensor([0, -1, 1])), _pair(3)
def beyond(): return _pair(3), _pair(3), _pair(6)
beyond.classes = 2
def wrong_classes(): return _pair(3), _pair(3), _pair(6)
wrong_classes.classes = "two"
class Ignored(Squares):
    def __getitem__(self, index): return torch.full((1, 8, 8), float(index)), index - 100
class Floats(Squares):
    def __getitem__(self, index): return torch.full((1, 8, 8), float(index)), 0.5
def ignored(): return Ignored(), Ignored(), Ignored()
ignored.classes = 2
def mapped_floats(): return Floats(), Floats(), Floats()
mapped_floats.classes = 2
class Stream(IterableDataset):
    def __iter__(self): return iter([])
def stream(): return Stream(), Stream(), Stream()
stream.classes = 2
class Ends(IterableDataset):
    def __iter__(self): return ((torch.full((2,), float(index)), index % 2) for index in range(5))
def ends(): return Ends(), Ends(), Ends()
ends.classes = 2
def named(): return [(torch.rand(3, 1), numpy.array(["cat", "dog", "cat"]))] * 3
def turned(): return [(torch.rand(3, 1), numpy.arange(3)[::-1])] * 3
class Typed(Squares):
    def __init__(self, kind): self.kind = kind
    def __getitem__(self, index): return torch.full((1, 8, 8), float(index)), self.kind(index % 2)
def typed(kind):
    kind = getattr(numpy, kind)
    return (torch.rand(3, 1), numpy.arange(3).astype(kind)), Typed(kind), Typed(kind)
def numbers(kind): return [(numpy.array([[1, 0], [255, 1]]).astype(kind), numpy.arange(2))] * 3
def failing(): raise ValueError("no such city")
"""


@pytest.fixture
def _user_module(users_module):
    users_module("user_data", MODULE)


@pytest.mark.usefixtures("_user_module")
@pytest.mark.parametrize("kind", ["int32", "uint8", "uint16", "bool_"])
def test_labels_may_be_integers_of_any_size(kind):
    data = load_data(DatasetSpec(entrypoint="user_data:typed", options={"kind": kind}))
    for source in (data.train, data.validation):
        assert source.batch(torch.arange(2), None)[1].tolist() == [0, 1]
        assert source.batch(torch.arange(2), None)[1].dtype is torch.int64


@pytest.mark.usefixtures("_user_module")
@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("int64", torch.tensor([[1, 0], [255, 1]])),
        ("int16", torch.tensor([[1, 0], [255, 1]])),
        ("uint8", torch.tensor([[1 / 255, 0.0], [1.0, 1 / 255]])),
        ("bool_", torch.tensor([[1.0, 0.0], [1.0, 1.0]])),
        ("float64", torch.tensor([[1.0, 0.0], [255.0, 1.0]])),
    ],
)
def test_only_inputs_of_8_bits_are_pixels(kind, given):
    """Token ids and columns of integers were divided by 255."""
    data = load_data(DatasetSpec(entrypoint="user_data:numbers", options={"kind": kind}))
    torch.testing.assert_close(data.train.batch(torch.arange(2), None)[0], given)


@pytest.mark.usefixtures("_user_module")
def test_users_function_gives_the_splits():
    data = load_data(DatasetSpec(entrypoint="user_data:tensors", path="/data", options={"count": 12}))
    assert (len(data.train), len(data.validation), len(data.test), data.classes) == (12, 6, 9, 3)
    streamed = load_data(DatasetSpec(entrypoint="user_data:ends")).train
    assert (len(streamed), streamed.batch(torch.tensor([3, 1]), None)[0][:, 0].tolist()) == (5, [3.0, 1.0])
    mapped = load_data(DatasetSpec(entrypoint="user_data:mapped"))
    inputs, labels = mapped.train.batch(torch.tensor([3, 1]), None)
    assert (inputs[:, 0, 0, 0].tolist(), labels.tolist(), mapped.classes) == ([3.0, 1.0], [1, 1], 2)


@pytest.mark.usefixtures("_user_module")
@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("tensor", "has no function 'tensor'"),
        ("failing", "no such city"),
        ("two", "must return (train, validation, test)"),
        ("floats", "labels are torch.float32"),
        ("uneven", "user_data:uneven: train: 3 inputs, but 2 labels"),
        ("empty", "validation split is empty"),
        ("bare", "bare: train split is empty; it must hold at least one example"),
        ("negative", "negative: validation: a label is -1; labels must be class numbers from 0"),
        ("beyond", "beyond: train: a label is 2; labels must be class numbers from 0 to 1, as there are 2"),
        ("wrong_classes", "its attribute classes is 'two'; it must be a whole number from 1"),
        ("stream", "the train split is empty"),
        ("named", "user_data:named: train: ndarray cannot be a tensor (can't convert np.ndarray of type"),
        ("turned", "user_data:turned: train: ndarray cannot be a tensor (At least one stride"),
        ("unlabelled", "unlabelled.classes = 10"),
    ],
)
def test_unusable_functions_say_what_they_must_do(function, said):
    with pytest.raises(DatasetError, match=re.escape(said)):
        load_data(DatasetSpec(entrypoint=f"user_data:{function}"))


@pytest.mark.usefixtures("_user_module")
def test_a_module_or_an_option_that_is_not_there_is_named():
    with pytest.raises(DatasetError, match="cannot import 'user_dat'"):
        load_data(DatasetSpec(entrypoint="user_dat:tensors"))
    with pytest.raises(DatasetError, match="unexpected keyword argument 'rows'"):
        load_data(DatasetSpec(entrypoint="user_data:tensors", options={"rows": 1}))


@pytest.mark.usefixtures("_user_module")
@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("ignored", "user_data:ignored: train: a label is -97; labels must be class numbers from 0 to 1"),
        ("mapped_floats", "user_data:mapped_floats: train: labels are torch.float64 of shape (2,)"),
    ],
)
def test_labels_of_a_data_set_that_is_read_one_by_one_are_checked_with_their_batch(function, said):
    """Label -100 and its like would be left out of the loss silently; others would end a CUDA process."""
    data = load_data(DatasetSpec(entrypoint=f"user_data:{function}")).to(CPU)
    with pytest.raises(DatasetError, match=re.escape(said)):
        data.train.batch(torch.tensor([3, 1]), None)


def test_loading_warns_about_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_data(DatasetSpec(name="imagefolder", path=str(_folder(tmp_path / "i", mode="P"))))


def _installed(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package that adds the data sets `stripes` and `broken`."""
    (folder / "striped.py").write_text(
        "import torch\n"
        "from espalier_trainer.data import Data, TensorSource\n"
        "def load(spec):\n"
        "    split = TensorSource(torch.zeros(4, 1, 8, 8), torch.arange(4))\n"
        "    return Data('stripes', split, split, split, spec.options.get('classes', 4))\n"
        "def broken(spec):\n"
        "    return 1\n"
    )
    info = folder / "striped-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: striped\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[espalier.datasets]\nstripes = striped:load\nbroken = striped:broken\n")
    monkeypatch.syspath_prepend(str(folder))


def test_a_package_adds_a_data_set_of_its_own(tmp_path, monkeypatch):
    _installed(tmp_path, monkeypatch)
    data = load_data(DatasetSpec(name="stripes", options={"classes": 7}))
    assert (data.name, data.classes, len(data.train)) == ("stripes", 7, 4)
    with pytest.raises(DatasetError, match="'broken' returned int; it must return espalier_trainer.data.Data"):
        load_data(DatasetSpec(name="broken"))
