"""A package behind a serving engine: requests are checked, padded, batched and run by workers; see docs/serving.md.

`service.py` is all that an engine sees; `mlserver_adapter.py` stands between it and MLServer.
"""
