"""Attention kernels in torch that run for real, and write down what they touch as a trace."""
