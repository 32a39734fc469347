"""Carries out ContainerRecreatePolicies, in the leading manager."""
