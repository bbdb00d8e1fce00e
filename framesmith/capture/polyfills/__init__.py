"""Plain Python that states what functions written in C do; capture inlines it in their place.  Nothing here knows of
capture."""
