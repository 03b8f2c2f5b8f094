"""`python -m scaling` is the `scaling` command."""

from .cli.main import main

if __name__ == "__main__":
    main()
