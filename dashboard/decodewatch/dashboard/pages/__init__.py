"""The pages, one file each: a `page()` that asks `queries`, and lays out what comes back."""
