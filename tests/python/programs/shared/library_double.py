"""The double of a library: gpupool's pool of its handles, and what the double knows of them."""

import ctypes

import gpupool
from double import calls
from libraries import LIBRARIES, Setting


class LibraryDouble:
    """A library by its name in gpupool."""

    def __init__(self, name: str) -> None:
        self.pool = getattr(gpupool, name)
        self.told = LIBRARIES[name]
        self.file = ctypes.CDLL(self.pool.path)
        for function in (self.file.double_stream_of, self.file.double_workspace_of):
            function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_void_p
        self.file.double_is_destroyed.argtypes = [ctypes.c_void_p]
        self.file.double_changed.argtypes, self.file.double_changed.restype = [ctypes.c_void_p], ctypes.c_char_p

    @property
    def created(self) -> int:
        """How often its function was called that creates a handle."""
        return calls(self.told.create, self.file)

    @property
    def destroyed(self) -> int:
        """How often its function was called that destroys a handle."""
        return calls(self.told.destroy, self.file)

    def stream_of(self, handle: int) -> int:
        """Return the address of a handle's stream."""
        return self.file.double_stream_of(int(handle)) or 0

    def set_stream(self, handle: int, stream: int) -> None:
        """Set a handle's stream behind gpupool's back."""
        function = getattr(self.file, self.told.symbols["SET_STREAM"])
        assert function(ctypes.c_void_p(int(handle)), ctypes.c_void_p(stream)) == 0, "the double refused a stream"

    def workspace_of(self, handle: int) -> int:
        """Return the address of the workspace that a handle was given."""
        return self.file.double_workspace_of(int(handle)) or 0

    def set(self, handle: int, setting: Setting) -> None:
        """Set something of a handle to what a new one does not have, as its owner may."""
        function, address = getattr(self.file, setting.set), ctypes.c_void_p(int(handle))
        arguments = {
            "VALUE": [setting.other],
            "POINTER": [ctypes.c_void_p(4096)],
            "ALLOCATOR": [ctypes.c_void_p(4096), ctypes.c_void_p(8192), None],
        }
        assert function(address, *arguments[setting.kind]) == 0, f"the double refused {setting.set}"

    def changed(self, handle: int) -> str | None:
        """Return the name of something of a handle that is not as in a new one, if there is any."""
        name = self.file.double_changed(int(handle))
        return name and name.decode()

    def is_destroyed(self, handle: int) -> bool:
        """Return whether a handle was destroyed."""
        return bool(self.file.double_is_destroyed(int(handle)))

    def leased(self, count: int) -> tuple[list[gpupool.typing.Lease], list[int]]:
        """Return leases on device 1, and their handles."""
        leases = [self.pool.lease(device=1) for _ in range(count)]
        return leases, [int(lease) for lease in leases]
