"""`python -m redrive`: the same as the `redrive` command."""

from redrive.doors.cli import main

if __name__ == "__main__":
    main()
