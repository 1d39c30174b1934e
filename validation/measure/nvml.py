"""Clocks, watts and temperature of a GPU from NVML, by ctypes. What NVML does not say is left out.

Leaves: `read(bus_id)` -> a dict with any of sm_mhz, mem_mhz, watts, temperature_c; `limits(bus_id)`, the
highest clocks and the power limit. Never raises. Nothing is set.
"""

from __future__ import annotations

import ctypes
import functools

CLOCK_SM, CLOCK_MEM = 1, 2
POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT, mW; nvmlDeviceGetPowerUsage is a mean over one second


class FieldValue(ctypes.Structure):
    """nvmlFieldValue_t; the value is read as unsigned int."""

    _fields_ = [
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("kind", ctypes.c_uint),
        ("code", ctypes.c_uint),
        ("value", ctypes.c_ulonglong),
    ]


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return None if library.nvmlInit_v2() else library
    except (OSError, AttributeError):
        return None


@functools.cache
def _handle(bus_id: str) -> ctypes.c_void_p | None:
    library = _library()
    handle = ctypes.c_void_p()
    if library is None or library.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(handle)):
        return None
    return handle


def read(bus_id: str) -> dict[str, int | float]:
    """What the card says right now."""
    library, handle = _library(), _handle(bus_id)
    if library is None or handle is None:
        return {}
    said: dict[str, int | float] = {}
    number = ctypes.c_uint()
    for name, clock in (("sm_mhz", CLOCK_SM), ("mem_mhz", CLOCK_MEM)):
        if not library.nvmlDeviceGetClockInfo(handle, clock, ctypes.byref(number)):
            said[name] = number.value
    watts = _watts(library, handle)
    if watts is not None:
        said["watts"] = watts
    if not library.nvmlDeviceGetTemperature(handle, 0, ctypes.byref(number)):
        said["temperature_c"] = number.value
    return said


def _watts(library: ctypes.CDLL, handle: ctypes.c_void_p) -> float | None:
    value = FieldValue(field=POWER_INSTANT)
    if not library.nvmlDeviceGetFieldValues(handle, 1, ctypes.byref(value)) and not value.code:
        milliwatts = value.value & 0xFFFFFFFF
        if 0 < milliwatts < 10_000_000:
            return round(milliwatts / 1000, 1)
    number = ctypes.c_uint()
    if not library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(number)):
        return round(number.value / 1000, 1)
    return None


def limits(bus_id: str) -> dict[str, int | float]:
    """Highest clocks and the power limit."""
    library, handle = _library(), _handle(bus_id)
    if library is None or handle is None:
        return {}
    said: dict[str, int | float] = {}
    number = ctypes.c_uint()
    for name, clock in (("max_sm_mhz", CLOCK_SM), ("max_mem_mhz", CLOCK_MEM)):
        if not library.nvmlDeviceGetMaxClockInfo(handle, clock, ctypes.byref(number)):
            said[name] = number.value
    if not library.nvmlDeviceGetEnforcedPowerLimit(handle, ctypes.byref(number)):
        said["power_limit_watts"] = number.value / 1000
    return said


def driver_version() -> str:
    library = _library()
    text = ctypes.create_string_buffer(96)
    if library is None or library.nvmlSystemGetDriverVersion(text, 96):
        return ""
    return text.value.decode()
