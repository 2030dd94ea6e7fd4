"""What the device keeps until the collector has it.

`spool` is the whole to its callers. `batching` makes batches of records, `database` and `files`
are the disk, `room` keeps both within their bound, `eviction` and `thinning` decide what goes
when it is full, and `losses` keeps the account of what went.
"""
