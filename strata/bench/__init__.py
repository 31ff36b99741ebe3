"""What this machine can do with a model: how fast it reads and writes, who waits, and what the runtime itself costs.

Measures in this process, with nothing of a network in between; knows no terminal and no server.
"""
