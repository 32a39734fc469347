"""`python -m daemon` is `crrd`."""

from daemon.cli.main import main

if __name__ == "__main__":
    main()
