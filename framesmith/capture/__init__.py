"""Python frames to graphs: interpreter, trackers, sources and guards, residual code."""
