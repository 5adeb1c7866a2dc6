"""Reads live regions for people: what the command line prints and the console shows. It changes nothing."""
