"""llama.cpp's server, of PyPI's `xllamacpp`: `FILE THREADS STREAMS`. Says where it listens, and lives until its input ends.

It imports nothing else, so that the seconds of its start are its own.
"""

import sys

import xllamacpp

file, threads, streams = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params = xllamacpp.CommonParams()
params.model.path, params.port, params.n_parallel, params.warmup = file, 0, streams, True
params.n_ctx = 1024 if streams == 1 else streams * 128
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
server = xllamacpp.Server(params)
# In one write: the server writes its log between others.
print(f"\n{server.listening_address}\n", end="", flush=True)
sys.stdin.read()
