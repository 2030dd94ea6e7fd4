"""The processes that decode, as the agent follows them.

`runtimes` hears of them and notices their ends, `live` is one of them, with its open `turns`,
`windows` and `floors`; `process` and `cgroup` read the kernel's files of it, `oom` says whether
it was killed.
"""
