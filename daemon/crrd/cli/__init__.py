"""The command line. Each command has its own module."""
