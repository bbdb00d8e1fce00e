"""Random programs: compiled, they return, raise, print and change what they do in plain Python.

`python -m tests.fuzz --count 1000 --start 0` runs a range of seeds.
"""
