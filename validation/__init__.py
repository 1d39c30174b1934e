"""Measurements of real machines, and what they say about the simulator.

Nothing has been measured yet; DEVIATIONS.md lists what is known to be off or unchecked.
"""
