"""A model in another folder, where it has to come out the same."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from aotc.config import Config
from aotc.errors import AotcError


def copy_model(config: Config, folder: Path, platform: str = "cpu") -> Path:
    """Copy the config file and the sources of a model into `folder`; return the models folder.

    The sources include the kernels for `platform`. All keep their places relative to each other.
    Raises AotcError where they cannot be read.
    """
    file = next(iter(config.programs.values())).wrapper.place.path
    base = file.parent.resolve()
    kernels = config.kernels_for(platform)
    # As the config writes them, whatever links lead to.
    sources = {
        Path(os.path.normpath(base / os.path.relpath(each, file.parent))): each
        for each in (config.source, kernels)
        if each is not None
    }
    common = Path(os.path.commonpath([base, *sources]))
    models = folder / base.relative_to(common)
    try:
        models.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, models / file.name)
        for place, source in sources.items():
            shutil.copytree(
                source,
                folder / place.relative_to(common),
                ignore=shutil.ignore_patterns("__pycache__", "build_output"),
                dirs_exist_ok=True,
            )
    except (OSError, shutil.Error) as error:
        raise AotcError(f"cannot copy the sources of `{config.model}`: {error}") from None
    return models
