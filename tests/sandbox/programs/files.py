"""Files and folders: pathlib, shutil, tempfile, modes, links, archives, tables, a database."""

import contextlib
import csv
import fileinput
import glob
import gzip
import io
import json
import lzma
import mmap
import os
import pathlib
import shelve
import shutil
import sqlite3
import stat
import tempfile
import zipfile

here = pathlib.Path("folder")
(here / "deep").mkdir(parents=True)
(here / "a.txt").write_text("å line\nanother\n", encoding="utf-8")
(here / "deep" / "b.bin").write_bytes(bytes(range(8)))
print(sorted(str(path) for path in here.rglob("*")), (here / "a.txt").stat().st_size)
shutil.copytree(here, "copy")
os.rename("copy/a.txt", "copy/renamed.txt")
os.symlink("renamed.txt", "copy/link")
print(sorted(os.listdir("copy")), os.readlink("copy/link"), os.path.realpath("x").count("/x"))
print(
    sorted(glob.glob("**/*.txt", recursive=True)),
    [sorted(names) for _, _, names in os.walk("copy")],
)
shutil.rmtree("copy")
print(pathlib.Path("copy").exists(), shutil.disk_usage(".").free > 0)
with contextlib.closing(tempfile.TemporaryFile("w+")) as file:
    print(file.write("temporary"), file.seek(0), file.read())
with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile(dir=folder) as named:
    print(os.path.dirname(named.name) == folder, stat.filemode(os.stat(folder).st_mode))
print(os.path.exists(folder), tempfile.gettempdir() == os.environ["TMPDIR"])
with contextlib.suppress(FileNotFoundError):
    open("missing")
try:
    open("folder")
except OSError as error:
    print(type(error).__name__, error)

# %%
with open("big", "w+b") as file:
    file.truncate(4096)
    with mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:5] = b"hello"
        print(mapped.find(b"lo"), mapped.size())
    file.seek(1)
    print(file.read(3), file.tell(), os.fstat(file.fileno()).st_size)
with open("lines", "w", newline="\r\n") as file:
    print("one", "two", sep="\n", file=file)
print(open("lines", "rb").read(), [line for line in fileinput.input("lines")])

# %%
with open("table.csv", "w", newline="") as file:
    writer = csv.DictWriter(file, ["name", "value"])
    writer.writeheader()
    writer.writerows([{"name": "a, b", "value": 1}, {"name": 'say "x"', "value": 2.5}])
print(list(csv.DictReader(open("table.csv", newline=""))))
print(json.dumps({"b": [1, None, True, 1e300], "a": "é"}, sort_keys=True, indent=1))
print(json.loads('{"x": [1, 2.0, "\\u00e9"]}'), json.loads("NaN") != 0)
with gzip.open("data.gz", "wt") as file:
    file.write("zipped " * 100)
print(gzip.open("data.gz", "rt").read() == "zipped " * 100, lzma.decompress(lzma.compress(b"x")))
with zipfile.ZipFile("all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    archive.write("table.csv")
    archive.writestr("inside/text", "text")
with zipfile.ZipFile("all.zip") as archive:
    print(archive.namelist(), archive.read("inside/text"), archive.testzip())
shutil.unpack_archive(shutil.make_archive("packed", "gztar", "folder"), "unpacked")
print(sorted(os.listdir("unpacked")))

# %%
with contextlib.closing(sqlite3.connect("numbers.db")) as database:
    with database:
        database.execute("create table numbers (n integer primary key, square real)")
        database.executemany("insert into numbers values (?, ?)", [(n, n * n) for n in range(10)])
    try:
        with database:
            database.execute("insert into numbers values (1, 1)")
    except sqlite3.IntegrityError as error:
        print(error)
    database.create_function("half", 1, lambda n: n / 2)
    print(database.execute("select sum(square), max(half(n)) from numbers").fetchall())
    print(database.execute("pragma journal_mode=wal").fetchone())
    database.execute("delete from numbers where n > 4")
    database.commit()
with contextlib.closing(sqlite3.connect("numbers.db")) as database:
    print(database.execute("select count(*) from numbers").fetchone())
with shelve.open("shelf") as shelf:
    shelf["key"] = {"a": [1, 2]}
with shelve.open("shelf") as shelf:
    print(dict(shelf))
print(io.TextIOWrapper(io.BytesIO(b"\xff"), errors="replace").read())
