"""Rows of float32 on the card, seen through a pointer.  Knows no driver, and owns nothing."""

from __future__ import annotations

from attrs import frozen


@frozen
class DeviceArray:
    """(rows, columns); a row begins `stride` numbers after the one before."""

    pointer: int
    rows: int
    columns: int
    stride: int

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, key: slice | tuple[slice, slice]) -> DeviceArray:
        """A view of some rows, and of some of their columns: `x[a:b]`, `x[:, a:b]`."""
        rows, columns = key if isinstance(key, tuple) else (key, slice(None))
        top, bottom, _ = rows.indices(self.rows)
        left, right, _ = columns.indices(self.columns)
        pointer = self.pointer + 4 * (top * self.stride + left)
        return DeviceArray(pointer, max(0, bottom - top), max(0, right - left), self.stride)
