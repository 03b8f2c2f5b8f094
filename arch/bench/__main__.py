"""`python -m arch.bench` is the command of command.py."""

from ..arguments import run
from .command import main

if __name__ == "__main__":
    run(main)
