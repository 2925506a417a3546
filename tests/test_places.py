"""Whether elements of tensors share places, against a list of all their bytes."""

import itertools
import random

import pytest
import torch

from rooftile.core import places

BUFFER = torch.zeros(4000, dtype=torch.uint8)


def drawn(pick):
    """A view of the buffer: dense in some order of its axes, or of whatever strides."""
    shape = [pick.choice([0, 1, 2, 3, 4, 4]) for _ in range(pick.randint(0, 3))]
    strides = [pick.choice([0, 1, 2, 3, 4, 5, 8, 12, 16, 20]) for _ in shape]
    if pick.random() < 0.5:
        step = 1
        for axis in pick.sample(range(len(shape)), len(shape)):
            strides[axis], step = step, max(1, step * (shape[axis] + pick.randint(0, 1)))
    return BUFFER.view(pick.choice([torch.float32, torch.bfloat16, torch.int8])).as_strided(shape, strides, pick.randint(0, 60))


def bytes_of(t):
    size, first = t.element_size(), t.data_ptr() - BUFFER.data_ptr()
    begins = (first + size * sum(map(int.__mul__, at, t.stride())) for at in itertools.product(*map(range, t.shape)))
    return [byte for begin in begins for byte in range(begin, begin + size)]


@pytest.mark.parametrize("seed", range(4))
def test_against_all_bytes(seed):
    pick, seen = random.Random(seed), set()
    for _ in range(500):
        a, b = drawn(pick), drawn(pick)
        mine, others = bytes_of(a), bytes_of(b)
        crowded, shared = len(set(mine)) < len(mine), not set(mine).isdisjoint(others)
        assert places.crowded(a) is crowded and places.shared(a, b) is shared, (a.shape, a.stride(), b.shape, b.stride())
        seen |= {crowded, 2 + shared}
    assert seen == {False, True, 2, 3}


def test_which_two_of_many():
    """Against all pairs: neighbours that reach past each other without sharing, and what begins beside its own end."""
    pick, seen = random.Random(0), set()
    for _ in range(300):
        many = [drawn(pick) for _ in range(pick.randint(0, 4))]
        pairs = {(i, j) for i, j in itertools.permutations(range(len(many)), 2) if places.shared(many[i], many[j])}
        found = places.meeting(many)
        assert found in pairs if pairs else found is None
        seen.add(found is None)
    assert seen == {True, False}
    columns = torch.zeros(8, 8)
    assert places.meeting(columns.split(1, 1)) is None and places.meeting([*columns.split(1, 1), columns[3]]) is not None


def test_large_tensors_take_no_longer():
    """Heads of queries and keys side by side, a cache's keys and values, halves of a gate."""
    packed = torch.empty(8, 4096, 48, 128, dtype=torch.bfloat16, device="cpu")
    assert not places.shared(packed[:, :, :32], packed[:, :, 32:]) and places.shared(packed[:, :, :33], packed[:, :, 32:])
    assert places.shared(packed, packed.transpose(1, 2)) and not places.crowded(packed.transpose(0, 3))
    assert not places.shared(packed[..., :64], packed[..., 64:]) and not places.shared(packed[..., ::2], packed[..., 1::2])
