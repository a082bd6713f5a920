"""Ahead-of-time compiler for NPU models written in PyPTO."""

__version__ = "0.1.0"
