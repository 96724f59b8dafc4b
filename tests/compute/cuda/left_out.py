"""Test modules that a GPU does not run: what stands in for one says nothing where there is one."""

STAND_INS = ("test_cuda_compiled.py", "test_cuda_graphs.py", "test_cuda_interpreter.py", "test_cuda_launches.py")
