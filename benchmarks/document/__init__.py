"""The figures in README.md and docs/benchmarks/, made from benchmarks/results/*.json without a measurement."""
