"""A queue that finds the first one that fits.  Knows keys and sizes; not what is ordered by them, nor why.

A treap (Seidel and Aragon, "Randomized search trees", 1996): in order by key, a heap by weight.  The weight is the
hash of the key, so that the same keys make the same tree and nothing is drawn.  Each node carries the least size below
it, so that whoever is first among those that fit is found without looking at those that don't.
"""

from __future__ import annotations

from collections.abc import Iterator

Key = tuple[float, ...]
"""Static while it is in the queue; compared as a tuple, so its last part should be unique."""


class _Node:
    __slots__ = ("count", "key", "least", "left", "right", "size", "weight")

    def __init__(self, key: Key, size: int) -> None:
        self.key = key
        self.weight = hash(key)
        self.size = size
        self.least = size
        """The least size of this one and all below it."""
        self.count = 1
        self.left: _Node | None = None
        self.right: _Node | None = None

    def measure(self) -> _Node:
        """Itself, after what is below it has changed."""
        least, count = self.size, 1
        for below in (self.left, self.right):
            if below is not None:
                count += below.count
                if below.least < least:
                    least = below.least
        self.least, self.count = least, count
        return self


class Ordered:
    """Keys in order, each with a size.  All takes O(log n), but iteration."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node | None = None

    def __len__(self) -> int:
        return 0 if self._root is None else self._root.count

    def __iter__(self) -> Iterator[Key]:
        return _walk(self._root)

    def __repr__(self) -> str:
        return f"<Ordered {len(self)} keys>"

    def add(self, key: Key, size: int) -> None:
        """Put in a key that is not there yet."""
        self._root = _insert(self._root, _Node(key, size))

    def remove(self, key: Key) -> None:
        """Raises KeyError if it is not there."""
        self._root = _delete(self._root, key)

    def first(self, room: float) -> Key | None:
        """The first key whose size is at most `room`."""
        node = self._root
        if node is None or node.least > room:
            return None
        while True:
            left = node.left
            if left is not None and left.least <= room:
                node = left
            elif node.size <= room:
                return node.key
            else:
                assert node.right is not None, "the least size below is that of a node below"
                node = node.right

    def all_within(self, room: float) -> Iterator[Key]:
        """The keys whose size is at most `room`, in order; each costs O(log n)."""
        return _walk_within(self._root, room)

    def before(self, key: Key) -> int:
        """How many keys are less than this one, which need not be there."""
        found = 0
        node = self._root
        while node is not None:
            if node.key < key:
                found += 1 if node.left is None else node.left.count + 1
                node = node.right
            else:
                node = node.left
        return found


def _walk(node: _Node | None) -> Iterator[Key]:
    if node is not None:
        yield from _walk(node.left)
        yield node.key
        yield from _walk(node.right)


def _walk_within(node: _Node | None, room: float) -> Iterator[Key]:
    if node is not None and node.least <= room:
        yield from _walk_within(node.left, room)
        if node.size <= room:
            yield node.key
        yield from _walk_within(node.right, room)


def _insert(node: _Node | None, new: _Node) -> _Node:
    if node is None:
        return new
    if new.weight > node.weight:
        new.left, new.right = _split(node, new.key)
        return new.measure()
    if new.key < node.key:
        node.left = _insert(node.left, new)
    else:
        node.right = _insert(node.right, new)
    node.count += 1
    if new.size < node.least:
        node.least = new.size
    return node


def _split(node: _Node | None, key: Key) -> tuple[_Node | None, _Node | None]:
    """What is less than the key, and the rest."""
    if node is None:
        return None, None
    if node.key < key:
        node.right, rest = _split(node.right, key)
        return node.measure(), rest
    less, node.left = _split(node.left, key)
    return less, node.measure()


def _delete(node: _Node | None, key: Key) -> _Node | None:
    if node is None:
        raise KeyError(key)
    if node.key == key:
        return _merge(node.left, node.right)
    if key < node.key:
        node.left = _delete(node.left, key)
    else:
        node.right = _delete(node.right, key)
    return node.measure()


def _merge(left: _Node | None, right: _Node | None) -> _Node | None:
    """One tree of two, all of the first before all of the second."""
    if left is None:
        return right
    if right is None:
        return left
    if left.weight > right.weight:
        left.right = _merge(left.right, right)
        return left.measure()
    right.left = _merge(left, right.left)
    return right.measure()
