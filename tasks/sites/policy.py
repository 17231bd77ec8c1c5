"""What a site answers: its policy, written by whoever owns its rows."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from stat import S_IMODE

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedcore.algorithm import algorithm_class
from fedcore.data import Dataset, Disclosure, list_datasets, open_contract, open_dataset
from fedcore.data.disclosure import laxer
from fedcore.data.places import Place, make_folder, place
from fedcore.errors import Misuse
from tasks.sites.letters import Hex, Letter, Name, Untrusted, Work, new_key

POLICY, KEY, AUDIT, SERVING = "policy.toml", "site.key", "audit.jsonl", "serving.lock"
"""What a site's folder holds."""

_COMMENT = """\
# What site {name} answers. Whoever owns its rows writes this file; a request for anything else is refused, and said so in audit.jsonl.
# algorithms: strike out those that may not be run. lifetime: the longest that a request may count, in seconds.
# [contracts]: data sets, with the digest of the contract that was agreed on; fedlin site show {name} tells the present ones.
# [disclosure]: the laxest rules that any of these contracts may have.

"""


class Policy(BaseModel):
    """What a site answers.

    Attributes
    ----------
    name
        The site's, by which its work pool is called too.
    datasets, exchange
        Where its rows are, and where its messages come and go.
    algorithms
        Those that may be run.
    lifetime
        The longest that a request may count, in seconds.
    contracts
        By data set the digest of the contract that was agreed on; others are not served.
    disclosure
        The laxest disclosure rules that such a contract may have.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    datasets: str = Field(min_length=1)
    exchange: str = Field(min_length=1)
    algorithms: tuple[str, ...]
    lifetime: float = Field(default=3600, gt=0, le=7 * 86400)
    contracts: dict[Name, Hex]
    disclosure: Disclosure = Disclosure()

    @field_validator("algorithms")
    @classmethod
    def _known(cls, algorithms: tuple[str, ...]) -> tuple[str, ...]:
        for name in algorithms:
            algorithm_class(name)
        return algorithms

    @property
    def root(self) -> Place:
        """The datasets folder."""
        return place(self.datasets)

    def check_time(self, letter: Letter, now: float) -> None:
        """Whether a request still counts.

        Raises
        ------
        Untrusted
            Where it does not, or would for longer than it may.
        """
        if not letter.expires <= now + self.lifetime:  # NaN too, which would count for ever
            raise Untrusted(f"it counts for longer than the {self.lifetime:g} s of the site's policy: lower the site's patience")
        if letter.expires < now:
            raise Untrusted(f"it expired {now - letter.expires:.0f} s ago: raise the site's patience, or see that its worker is not behind")

    def allowed(self, work: Work | None) -> Dataset:
        """The data set that a run asks for, where the site lets it.

        Raises
        ------
        Untrusted
            Where it does not.
        """
        if work is None:
            raise Untrusted("it does not say what is trained")
        if work.algorithm not in self.algorithms:
            raise Untrusted(f"algorithm {work.algorithm} is not among those of the site's policy")
        agreed = self.contracts.get(work.dataset)
        if agreed is None:
            raise Untrusted(f"data set {work.dataset} is not among those of the site's policy")
        if work.contract != agreed:
            raise Untrusted(f"the server's contract of data set {work.dataset} is not the one that the site's policy agrees to")
        try:
            dataset = open_dataset(self.root, work.dataset, target=work.target, target_scaling=work.target_scaling)
        except Misuse as error:
            raise Untrusted(str(error)) from None
        if dataset.contract.digest != agreed:
            raise Untrusted(f"the site's contract of data set {work.dataset} has changed since its policy agreed to it")
        if rule := laxer(dataset.contract.disclosure, self.disclosure):
            raise Untrusted(f"the contract of data set {work.dataset} is laxer than the site's policy: [disclosure] {rule}")
        return dataset


def read_policy(folder: Path) -> Policy:
    """The policy in a site's folder.

    Raises
    ------
    Misuse
        Where it is missing or wrong.
    """
    file = folder / POLICY
    try:
        mode = S_IMODE(file.stat().st_mode)
        if mode & 0o022:
            raise Misuse(f"{file} may be changed by others than its owner (mode {mode:o}): chmod go-w {file}")
        return Policy.model_validate(tomllib.loads(file.read_text()))
    except Misuse:
        raise
    except OSError as error:
        raise Misuse(f"{file} cannot be read ({error.strerror}): make the site with fedlin site init") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "policy"
        raise Misuse(f"{file}: {where}: {first['msg']}: correct it") from None
    except ValueError as error:
        raise Misuse(f"{file} is not TOML ({error}): correct it") from None


def first_policy(name: str, datasets: str, exchange: str, algorithms: Sequence[str]) -> Policy:
    """A policy that agrees to the present contracts of a datasets folder.

    Raises
    ------
    Misuse
        Where a name is not a site's, or a contract is wrong.
    """
    root = place(datasets)
    contracts = {dataset: open_contract(root, dataset).contract.digest for dataset in list_datasets(root)}
    try:
        return Policy(name=name, datasets=datasets, exchange=exchange, algorithms=tuple(algorithms), contracts=contracts)
    except ValidationError as error:
        raise Misuse(f"site: {error.errors(include_url=False)[0]['msg']}: choose letters, digits, '.', '_' and '-'") from None


def make_site(folder: Path, policy: Policy) -> None:
    """Write a site's folder, with a new key, for its user alone.

    Raises
    ------
    Misuse
        Where it is there already, or cannot be written.
    """
    try:
        make_folder(folder.parent)
        folder.mkdir(mode=0o700)
        for name, text in ((POLICY, _text(policy)), (KEY, new_key())):
            file = folder / name
            file.touch(mode=0o600)
            file.write_text(text)
    except FileExistsError:
        raise Misuse(f"{folder} is there already: edit its policy.toml, or choose another name") from None
    except OSError as error:
        raise Misuse(f"{folder} cannot be written ({error.strerror}): name another project folder in FEDLIN_HOME") from None


def _text(policy: Policy) -> str:
    return _COMMENT.format(name=policy.name) + tomli_w.dumps(policy.model_dump(mode="json", exclude_none=True))
