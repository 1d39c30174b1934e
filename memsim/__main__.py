"""`python -m memsim`: the same as the command `memsim`."""

from memsim.cli import main

if __name__ == "__main__":
    main()
