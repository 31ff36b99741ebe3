#!/usr/bin/env python3
"""llama.cpp's server as the `xllamacpp` wheel has it, for compare_llama.py, which runs this with the peer's own Python.

    llama_server.py MODEL PORT THREADS SLOTS CONTEXT

All settings but these are its own defaults.  `CONTEXT` is that of each slot.  Knows nothing of Strata.
"""

import sys
import threading

import xllamacpp


def main() -> None:
    model, port, threads, slots, context = sys.argv[1], *(int(word) for word in sys.argv[2:])
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.cpuparams.n_threads = threads
    parameters.cpuparams_batch.n_threads = threads
    parameters.n_parallel = slots
    # It is shared out among the slots.
    parameters.n_ctx = slots * context
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
