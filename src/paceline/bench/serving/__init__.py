"""The server's figures: a load of every kind of request, decode rate and latency against the offline engine.

The client speaks HTTP itself (`http`), because a client's library may cost more than the server. The server
and the offline engine run in processes of their own, with the same threads (`process`, `offline`).
"""
