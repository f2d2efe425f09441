"""The order of the samples of each epoch: a permutation of which any place is computed by itself.

A shuffled list of a billion numbers takes gigabytes, and must be made at each start. Here a place is enciphered: a
balanced Feistel network over the next even number of bits, repeated until the result is a sample (cycle walking). The
keys come from the seed and the epoch, so each epoch has an order of its own, the same on every rank of every world.

Sources: M. Luby, C. Rackoff, "How to construct pseudorandom permutations from pseudorandom functions" (SIAM Journal on
Computing, 1988); J. Black, P. Rogaway, "Ciphers with arbitrary finite domains" (CT-RSA 2002); the round function is the
32-bit finalizer of MurmurHash3 (A. Appleby). It shuffles; it hides nothing.
"""

import hashlib
from typing import Any, Final

import torch

ROUNDS: Final = 8
SIZE_MAX: Final = 1 << 60
"""Most samples of a data set: places of several epochs must fit into 64 bits."""

_LOW: Final = 0xFFFF_FFFF


class SampleOrder:
    """The order of the samples, epoch after epoch.

    Args:
        size: number of samples of the data set.
        seed: of the order.
        shuffle: False: the samples in their own order in each epoch.

    Raises:
        ValueError: there is no sample, or too many.
    """

    def __init__(self, size: int, seed: int = 0, *, shuffle: bool = True) -> None:
        if not 0 < size <= SIZE_MAX:
            raise ValueError(f"a data set has 1 to {SIZE_MAX} samples; found {size}")
        self.size, self.seed, self.shuffle = size, seed, shuffle
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)
        self._keys: dict[int, tuple[int, ...]] = {}

    def at(self, places: Any) -> Any:
        """Return the samples at places.

        Args:
            places: a tensor of 64-bit integers of any shape, from 0; place ``size`` is the first of the second epoch.

        Returns:
            The numbers of the samples, from 0, in the same shape.
        """
        epochs = torch.div(places, self.size, rounding_mode="floor")
        within = places - epochs * self.size
        if not self.shuffle or self.size == 1:
            return within
        samples = torch.empty_like(within)
        for epoch in torch.unique(epochs).tolist():
            chosen = epochs == epoch
            samples[chosen] = self._permuted(within[chosen], epoch)
        return samples

    def _permuted(self, numbers: Any, epoch: int) -> Any:
        keys = self._keys_of(epoch)
        found = self._enciphered(numbers, keys)
        while bool((outside := found >= self.size).any()):
            found[outside] = self._enciphered(found[outside], keys)
        return found

    def _enciphered(self, numbers: Any, keys: tuple[int, ...]) -> Any:
        mask = (1 << self._half) - 1
        left, right = numbers >> self._half, numbers & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        return (left << self._half) | right

    def _keys_of(self, epoch: int) -> tuple[int, ...]:
        if epoch not in self._keys:
            made = hashlib.blake2b(f"{self.seed} {epoch}".encode(), digest_size=4 * ROUNDS).digest()
            self._keys.clear()
            self._keys[epoch] = tuple(int.from_bytes(made[at : at + 4], "little") for at in range(0, len(made), 4))
        return self._keys[epoch]


def _mixed(x: Any) -> Any:
    """A hash of numbers below 2^32. Products wrap in 64 bits, which leaves their low 32 bits as they are."""
    x = x ^ (x >> 16)
    x = (x * 0x85EB_CA6B) & _LOW
    x = x ^ (x >> 13)
    x = (x * 0xC2B2_AE35) & _LOW
    return x ^ (x >> 16)
