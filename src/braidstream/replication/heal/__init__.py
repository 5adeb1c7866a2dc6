"""Finds what a region lost, and restores it."""
