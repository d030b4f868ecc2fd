"""A child that was forked before gpupool was used has all that its parent has."""

import os

import gpupool
from forking import exit_code_of

child = os.fork()
if child == 0:
    os._exit(0 if gpupool.simulated.handle() else 2)
assert exit_code_of(child) == 0, "the child got no handle"
assert gpupool.simulated.handle() != 0, "the parent got no handle"
