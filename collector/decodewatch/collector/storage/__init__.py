"""From a message to committed rows.

`arrivals` reads a message strictly; `store` writes a group of them in one transaction: the
delivery ledger (`streams`, on the arithmetic of `ledger`), the place in time (`boots`, on that
of `placement`), the records (`rows`), what is known of each device now (`devices`, on `state`), and
what shows that two devices use one id (`clones`). `sql` is what SQLite and PostgreSQL say
differently.
"""
