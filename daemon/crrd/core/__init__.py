"""The pure core: what a request means and what has to be done next. Standard library only, no I/O, no clock."""
