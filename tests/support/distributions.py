"""Distributions that tests install into a folder of their own, as a wheel would be."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def install(
    folder: Path, name: str, files: Mapping[str, str], requires: Sequence[str] = ()
) -> None:
    """Install a distribution of these files into a folder for packages."""
    about = f"{name.replace('-', '_')}-1.0.dist-info"
    lines = [f"Requires-Dist: {one}" for one in requires]
    metadata = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *lines, "", ""])
    every = {**files, f"{about}/METADATA": metadata}
    every[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in (*every, f"{about}/RECORD"))
    for path, text in every.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def wheel(
    name: str, version: str, files: Mapping[str, str], requires: Sequence[str] = ()
) -> tuple[str, bytes]:
    """Build a wheel of these files; return its file name and its content."""
    stem = f"{name.replace('-', '_')}-{version}"
    lines = [f"Requires-Dist: {one}" for one in requires]
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, "", ""]
    tags = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    about = f"{stem}.dist-info"
    every = {**files, f"{about}/METADATA": "\n".join(metadata), f"{about}/WHEEL": tags}
    record = []
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w") as archive:
            for path, text in every.items():
                archive.writestr(path, text)
                digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
                record.append(f"{path},sha256={digest.rstrip(b'=').decode()},{len(text.encode())}")
            archive.writestr(f"{about}/RECORD", "\n".join([*record, f"{about}/RECORD,,", ""]))
        return f"{stem}-py3-none-any.whl", file.getvalue()
