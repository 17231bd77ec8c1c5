"""The sites of a run, as the server knows them: the file that `--sites` names."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedcore.data.places import Place, place
from fedcore.errors import Misuse
from tasks.sites.letters import Name, read_key

POOL = "fedlin-site-"
"""Before a site's name: the work pool that its worker serves."""

FLOW = "fedlin-site-update"
"""What a site does for a run, as Prefect calls it; its deployments are called as their sites."""


class _Site(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str = Field(min_length=1)
    exchange: str = Field(min_length=1)
    patience: float = Field(default=300, gt=0, le=7 * 86400)


class _Sites(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    sites: dict[Name, _Site] = Field(min_length=1)


class Enrolled:
    """A site that the server may ask. (A plain class, which Prefect does not look into.)

    Attributes
    ----------
    name, key, exchange
        Its name, the key that it shares with the server, and where messages come and go.
    patience
        Seconds to wait for an answer.
    """

    def __init__(self, name: str, key: bytes, exchange: Place, patience: float) -> None:
        self.name = name
        self.key = key
        self.exchange = exchange
        self.patience = patience

    @property
    def deployment(self) -> str:
        """Its deployment in Prefect."""
        return f"{FLOW}/{self.name}"


def read_sites(file: Path) -> Mapping[str, Enrolled]:
    """The sites of a file, by name; paths of keys are relative to the file.

    Raises
    ------
    Misuse
        Where the file or a key is missing or wrong.
    """
    try:
        found = _Sites.model_validate(tomllib.loads(file.read_text())).sites
    except OSError as error:
        raise Misuse(f"sites {file} cannot be read ({error.strerror}): give a file with a table [sites.NAME] a site") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise Misuse(f"sites {file}: {'.'.join(map(str, first['loc']))}: {first['msg']}: correct it") from None
    except ValueError as error:
        raise Misuse(f"sites {file} is not TOML ({error}): correct it") from None
    return {
        name: Enrolled(name, read_key(file.parent / site.key), place(site.exchange), site.patience) for name, site in sorted(found.items())
    }
