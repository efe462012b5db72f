"""``python -m latentia``: the command line."""

from latentia.cli import main

if __name__ == "__main__":
    main()
