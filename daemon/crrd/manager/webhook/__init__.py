"""Admission: the API server's questions over HTTPS, and their answers."""
