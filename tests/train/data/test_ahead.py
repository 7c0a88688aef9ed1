"""Items made in advance by a thread: the same ones, and no thread left behind."""

from __future__ import annotations

import threading
import time
from itertools import count, islice

import pytest

from paceline.train.data.ahead import ahead


def threads():
    return [t for t in threading.enumerate() if t.name == "ahead"]


def test_the_same_items_in_the_same_order():
    assert list(ahead(iter(range(100)), 7)) == list(range(100))
    assert list(ahead(iter([None, 1]), 2)) == [None, 1]
    assert list(ahead(iter(()), 2)) == []
    assert not threads()


def test_no_more_than_so_many_in_advance():
    made = []
    items = ahead((made.append(i) or i for i in count()), 5)
    assert next(items) == 0
    deadline = time.monotonic() + 5
    while len(made) < 7 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert made == list(range(7))  # one used, five waiting, one in hand
    items.close()
    assert not threads()


def test_an_error_comes_where_its_item_would():
    def failing():
        yield 1
        raise ValueError("no more")

    items = ahead(failing(), 3)
    assert next(items) == 1
    with pytest.raises(ValueError, match="no more"):
        next(items)
    assert not threads()


def test_leaving_early_ends_the_thread():
    assert list(islice(ahead(count(), 3), 4)) == [0, 1, 2, 3]
    time.sleep(0.3)
    assert not threads()
