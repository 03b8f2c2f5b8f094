"""What /proc says of a process."""

from pathlib import Path


def alive(pid: int) -> bool:
    """Whether it runs; one that has ended may stay in the list, where nobody collects it."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()[0]
            != "Z"
        )
    except (FileNotFoundError, ProcessLookupError):
        return False
