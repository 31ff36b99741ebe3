"""A CUDA card as a device: kernels of `cuda/`, compiled at the start and launched by PyCUDA from the engine's thread.

Knows weights, rows and pages; no architecture, no sequence, no request.  PyCUDA is imported here alone, and only when a
device is opened.
"""
