"""The calculation of a device's check, with torch as it is and with one that computes wrong."""

import pytest
import torch

from ftcore.runtime.checks import device


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device.DTYPES, "cpu", ("float32", "float64", "bfloat16"))
    monkeypatch.setitem(device.SIZES, "cpu", 64)
    monkeypatch.setitem(device.REPEATS, "cpu", 2)


def test_every_type_gives_the_exact_product() -> None:
    """Whole numbers come out exact in every type that is used for training, bfloat16 included."""
    wrong, seconds, figures = device.calculate(torch, "cpu", torch.device("cpu"))
    assert wrong == "" and seconds > 0 and figures == {}


@pytest.mark.parametrize(
    ("off", "word"), [(1.0, "wrong values"), (float("nan"), "no numbers"), (float("inf"), "no numbers")]
)
def test_one_wrong_value_is_found(off: float, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry of the product that is off by one, or no number, fails the device."""
    right = torch.Tensor.__matmul__

    def wrong(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        product = right(self, other)
        if product.is_floating_point() and product.ndim == 2:
            product[3, 5] += off
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", wrong)
    found, _, _ = device.calculate(torch, "cpu", torch.device("cpu"))
    assert word in found
