"""Recorded selections of a real model, as data; README.md says where they come from."""
