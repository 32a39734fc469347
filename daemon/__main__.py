"""`python -m daemon` is `crrd`."""

from daemon.cli import main

if __name__ == "__main__":
    main()
