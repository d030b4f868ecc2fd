"""Calls of a driver or a library that cannot be right, at each of which its double aborts."""

import ctypes
import sys

import gpupool
from double import driver
from library_double import LibraryDouble

at = ctypes.c_void_p

one = gpupool.Stream(1)
scope = gpupool.stream(gpupool.Stream(0))
scope.__enter__()


def made(function, *arguments):
    """Return what a function of the driver makes."""
    place = ctypes.c_void_p()
    assert driver[function](ctypes.byref(place), *arguments) == 0, f"{function} failed"
    return place


def a_driver_s(function, *arguments):
    """Call a function with addresses at which no memory, stream, event or context is."""
    driver[function](*(at(int(argument)) for argument in arguments))


def an_event_of_another_device(create, record):
    event = made(create, 2)
    driver[record](event, at(one.ptr))


def hips_memory_of_another_device():
    memory = made("hipMalloc", 64)
    driver.hipSetDevice(1)
    driver.hipFree(memory)


def a_second_handler_of_cudss():
    library = LibraryDouble("cudss")
    handle = at(library.pool.handle())
    for _ in range(2):
        library.file.cudssSetDeviceMemHandler(handle, at(gpupool.c_api.handler))


def a_handler_of_cudss_that_is_not_whole():
    library = LibraryDouble("cudss")
    library.file.cudssSetDeviceMemHandler(at(library.pool.handle()), (ctypes.c_char * 88)())


class Handle:
    """A handle of a library on device 0, and what can be done with it."""

    def __init__(self, name):
        self.library = LibraryDouble(name)
        self.handle = self.library.pool.handle(device=0)

    def destroy(self):
        self.library.file[self.library.told.destroy](at(self.handle))

    def set_stream(self, stream):
        self.library.file[self.library.told.symbols["SET_STREAM"]](at(self.handle), at(stream))


def a_handle_destroyed_twice(name):
    handle = Handle(name)
    handle.destroy()
    handle.destroy()


def a_destroyed_handle_set_to_a_stream(name):
    handle = Handle(name)
    handle.destroy()
    handle.set_stream(0)


def a_handle_set_to_a_stream_of_another_device(name):
    Handle(name).set_stream(one.ptr)


def a_handle_set_to_no_stream(name):
    Handle(name).set_stream(4096)


def a_handle_destroyed_with_another_device_current(name):
    handle = Handle(name)
    gpupool.stream(one).__enter__()
    handle.destroy()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
