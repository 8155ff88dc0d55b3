"""How long operators take on one device: the roofline.

    t = max(launch, ramp + max(flop / (f_matmul * peak), bytes / (f_memory * bandwidth)))

Source: Williams et al., Roofline (CACM 2009), with the reachable fractions of `Device`. `launch` bounds the rate at which the host issues
operators; `ramp` is what makes small matrix products inefficient. Leaves out: the shape of a product (only its work and bytes count), tile
and wave quantisation, caches.
"""

from __future__ import annotations

from costmodels.hardware import Device


def op_s(flop: float, nbytes: float, *, dtype: str, device: Device) -> float:
    """Seconds of one operator that does `flop` in `dtype` and reads and writes `nbytes`; nothing to do (a view) costs nothing."""
    if flop <= 0 and nbytes <= 0:
        return 0.0
    work_s = flop / (device.matmul_fraction * device.peak(dtype))
    return max(device.launch_s, device.ramp_s + max(work_s, memory_s(nbytes, device=device)))


def memory_s(nbytes: float, *, device: Device) -> float:
    """Seconds to move `nbytes` through the device's memory at the reachable rate."""
    return nbytes / (device.memory_fraction * device.memory_bytes_per_s)


def mfu(flop: float, *, step_s: float, devices: int, dtype: str, device: Device) -> float:
    """Model FLOPs utilisation: `flop` of one step, without recomputation, over what `devices` could do at peak in that time."""
    return flop / (step_s * devices * device.peak(dtype))
