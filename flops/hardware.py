"""Devices that a study may be costed for: peak speed and memory. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from arch.errors import InputError, choice

FILLED = 0.9  # of a device's memory, at most: temporary results, fragmentation and CUDA's own are in no model of it


@dataclass(frozen=True)
class Device:
    """`peak_flops_per_s`: dense matrix products in `precision`, without sparsity; `memory_bytes`: None where the
    machine decides; `source`: whose figures these are."""

    name: str
    unit: str
    precision: str
    peak_flops_per_s: float
    memory_bytes: float | None
    source: str


# The data sheets print the bf16 figures of H100 and H200 with sparsity, 1,979 TFLOP/s: dense is half of it. That of the
# A100 prints both, 312 and 624.
DEVICES = {
    "h100": Device("H100 SXM", "GPU", "bf16", 989.5e12, 80e9, "NVIDIA H100 data sheet, half of 1,979 TFLOP/s sparse"),
    "h200": Device("H200 SXM", "GPU", "bf16", 989.5e12, 141e9, "NVIDIA H200 data sheet, half of 1,979 TFLOP/s sparse"),
    "a100": Device("A100 SXM 80 GB", "GPU", "bf16", 312e12, 80e9, "NVIDIA A100 data sheet, 312 TFLOP/s dense"),
    "cpu": Device(
        "one core with AVX2", "core", "fp32", 96e9, None, "own figure: 2 FMA units x 8 fp32 lanes x 2 FLOP x 3 GHz"
    ),
}


def device_of(name: str) -> Device:
    """The device of that name. Raises InputError for an unknown one, naming the nearest."""
    key = name.lower()
    if key not in DEVICES:
        raise InputError(f"--device: unknown device {name!r}{choice(key, list(DEVICES))}")
    return DEVICES[key]
