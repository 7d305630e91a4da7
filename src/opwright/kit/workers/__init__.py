"""Processes of ours: what runs there may crash, hang or run out of memory, and the one that asked goes on.

A worker (`worker.py`) is started afresh or forked from a server that has imported everything (`forkserver.py`). There
`child.py` hands each request to the module that the worker is for. `travel.py` takes operators along.
"""
