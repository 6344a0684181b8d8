"""Distributions that tests install into a folder of their own, as a wheel would be."""

from __future__ import annotations

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
