"""The checks of `crrd doctor`: objects of the API in, findings out."""
