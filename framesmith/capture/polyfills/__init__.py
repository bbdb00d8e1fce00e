"""Python implementations of functions written in C, which capture inlines in their place. Nothing here depends on
capture."""
