"""The modules, builtins and attributes that count as unsafe in an agent's code, with reasons."""

from __future__ import annotations

_BY_REASON = {
    "runs programs, or uses threads and signals": """
        subprocess os posix nt pty signal threading _thread multiprocessing concurrent.futures
        _posixsubprocess atexit resource asyncio.subprocess asyncio.create_subprocess_exec
        asyncio.create_subprocess_shell
    """,
    "reaches the network": """
        socket _socket socketserver ssl select selectors http urllib.request urllib.robotparser
        urllib3 requests httpx aiohttp websockets ftplib smtplib poplib imaplib nntplib telnetlib
        xmlrpc wsgiref webbrowser antigravity paramiko asyncio.open_connection
        asyncio.open_unix_connection asyncio.start_server asyncio.start_unix_server
    """,
    "reads and writes files": """
        pathlib shutil tempfile glob fileinput linecache mmap fcntl shelve dbm sqlite3 zipfile
        tarfile io.open io.open_code io.FileIO _io codecs.open tokenize.open gzip.open
        gzip.GzipFile bz2.open bz2.BZ2File lzma.open lzma.LZMAFile logging.FileHandler
        logging.handlers logging.config numpy.load numpy.save numpy.savez numpy.savez_compressed
        numpy.loadtxt numpy.savetxt numpy.genfromtxt numpy.fromfile numpy.memmap
        numpy.lib.format numpy.DataSource
    """,
    "takes the interpreter apart": """
        sys builtins importlib _frozen_importlib imp zipimport pkgutil site sysconfig gc inspect
        ctypes _ctypes cffi numpy.ctypeslib faulthandler tracemalloc types.CodeType
        types.FunctionType unittest.mock string.Formatter pip setuptools ensurepip venv
    """,
    "makes code out of data": """
        pickle _pickle marshal dill cloudpickle joblib copyreg code codeop compileall py_compile
        runpy timeit trace pdb bdb cProfile profile doctest pydoc typing.get_type_hints
        typing.ForwardRef numpy.f2py
    """,
}

BY_REASON = {reason: frozenset(modules.split()) for reason, modules in _BY_REASON.items()}
"""Unsafe modules, and unsafe parts of other modules, by what they do."""

UNSAFE_MODULES = frozenset().union(*BY_REASON.values())
"""Modules that safe code must not import; with a dot, parts of a module that it must not use."""

UNSAFE_NAMES = frozenset(
    {
        "__import__",
        "breakpoint",
        "compile",
        "delattr",
        "eval",
        "exec",
        "getattr",
        "globals",
        "input",
        "locals",
        "open",
        "setattr",
        "vars",
    }
)
"""Builtins that safe code must not use. `getattr` and similar may be called with a literal name."""

BY_NAME = frozenset({"delattr", "getattr", "setattr"})
"""Builtins that are judged by the attribute that their second argument names."""

GETTERS = frozenset({"attrgetter", "methodcaller"})
"""Functions of `operator` that are judged by the attributes that their arguments name."""

WELL_KNOWN = frozenset(
    {
        "builtins",
        "ctypes",
        "importlib",
        "inspect",
        "os",
        "pickle",
        "posix",
        "shutil",
        "socket",
        "subprocess",
        "sys",
        "_thread",
    }
)
"""Modules that are recognized by name alone, also as an attribute: `random._os` is `os`."""

INTERNALS = frozenset(
    {
        "ag_await",
        "ag_code",
        "ag_frame",
        "bltns",  # the name of `builtins` inside `enum`
        "cr_await",
        "cr_code",
        "cr_frame",
        "cr_origin",
        "f_back",
        "f_builtins",
        "f_code",
        "f_globals",
        "f_locals",
        "f_trace",
        "gi_code",
        "gi_frame",
        "gi_yieldfrom",
        "tb_frame",
        "tb_next",
    }
)
"""Attributes that lead from an object into the interpreter."""

_ARITHMETIC = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and or xor"
_OTHERS = """
    abs aenter aexit aiter all anext author await bool bytes call cause ceil class_getitem complex
    contains context copy dataclass_fields debug deepcopy delitem doc enter eq exit float floor
    format fspath ge getitem gt hash index init init_subclass int invert iter le len length_hint lt
    members missing module name ne neg new next notes pos post_init qualname repr reversed round
    set_name setitem sizeof slots str suppress_context trunc version
"""

HARMLESS_DUNDERS = frozenset(f"__{name}__" for name in _OTHERS.split()) | frozenset(
    f"__{side}{name}__" for name in _ARITHMETIC.split() for side in ("", "r", "i")
)
"""Names between double underscores that give no access to the interpreter."""
