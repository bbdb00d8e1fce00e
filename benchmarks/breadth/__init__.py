"""How many architectures compile whole and agree with eager; one file a suite, `python -m benchmarks.breadth SUITE`."""
