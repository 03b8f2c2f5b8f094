"""In place of flash-linear-attention: layers that run on CPUs, under its names and with its calls."""
