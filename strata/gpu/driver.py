"""PyCUDA and the driver beneath it, or what to do where they are missing.  Knows nothing of what they are for."""

from __future__ import annotations

from typing import Any

from strata.errors import DeviceMissing


def load_driver() -> Any:
    """The module `pycuda.driver`.  Raises DeviceMissing, which says what is missing and how to get it."""
    try:
        import pycuda
    except ImportError:
        raise DeviceMissing("PyCUDA is not installed: `pip install '.[cuda]'` in the project's folder") from None
    try:
        import pycuda.driver
    except ImportError as error:
        if "undefined symbol" in str(error):
            raise DeviceMissing(
                f"PyCUDA was built for a newer CUDA than the driver's ({error}): update the driver, or build PyCUDA "
                "with its toolkit (`pip install --force-reinstall --no-cache-dir pycuda`)"
            ) from error
        raise DeviceMissing(
            f"PyCUDA can't be loaded ({error}): libcuda.so.1 comes with NVIDIA's driver, which belongs on this machine"
        ) from error
    return pycuda.driver


def begin(driver: Any) -> tuple[int, int]:
    """CUDA's version that it knows, from now on to be used; a second time does no harm.  Raises DeviceMissing."""
    try:
        driver.init()
        major, minor = divmod(driver.get_driver_version() // 10, 100)
        return major, minor
    except driver.Error as error:
        raise no_card(error) from error


def no_card(error: Exception) -> DeviceMissing:
    return DeviceMissing(f"there is no CUDA card that can be used ({error}): see `nvidia-smi`")
