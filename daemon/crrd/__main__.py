"""`python -m crrd` is `crrd`."""

from crrd.cli.main import main

if __name__ == "__main__":
    main()
