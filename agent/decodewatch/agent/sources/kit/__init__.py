"""What sources are made of.

`base` has measurements and readings, `common` the measurements that several sources have, `kernel`
what is asked of the operating system, `files` and `commands` what is read again and again, `text`
the numbers in it, and `recorded` a device that was recorded. `child` keeps a program running and
reads its lines; a `helper` is one that loads a library which the agent does not.
"""
