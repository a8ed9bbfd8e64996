"""Puts what `ratchet init` begins a project with into the wheel; all else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
TEMPLATE = (
    "params.yaml",
    "params.schema.json",
    "dvc.yaml",
    "waivers.yaml",
    "prefect.yaml",
    "constraints.txt",
    ".gitignore",
    ".dvcignore",
    ".dvc/config",
    ".dvc/.gitignore",
    *(f"presets/{path.name}" for path in sorted((ROOT / "presets").glob("*.yaml"))),
)


class BuildWithTemplate(build_py):
    """A checkout that is installed editable has these files already, at its top."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for name in TEMPLATE:
            if (ROOT / name).is_file():
                target = Path(self.build_lib) / "flows" / "template" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, target)


setup(cmdclass={"build_py": BuildWithTemplate})
