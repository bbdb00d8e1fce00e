"""The capture cache: results of captures in the disk cache, so that another process need not capture again."""
