"""cuda.core's device 0, current, and one stream as gpupool's and as its own."""

import gpupool
from cuda.core import Device

device = Device(0)
device.set_current()
own = gpupool.Stream()
stream = device.create_stream(own)
