"""The capture cache: what captures gave, in the disk cache, so that another process need not capture again."""
