"""The processor as a device: float32 arithmetic on NumPy, with bits that depend on a row alone.

Knows weights, rows and pages; no architecture, no sequence, no request.
"""
