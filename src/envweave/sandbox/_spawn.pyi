from envweave.sandbox.walls.kernel import Syscall

def spawn(flags: int, calls: list[Syscall], alone: int, /) -> tuple[int, int, int, int]: ...
def serve(
    control: int,
    host: int,
    ended: int,
    flags: int,
    calls: list[Syscall],
    places: bytes,
    each: int,
    has_user: int,
    options: str,
    /,
) -> tuple[int, int] | tuple[bytes, int, int]: ...
def perform_in_helper(calls: list[Syscall], /) -> tuple[int, int]: ...
