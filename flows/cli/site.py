"""`fedlin site`: a site that has devices, and answers requests of runs about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fedcore.algorithm import ALGORITHMS, algorithm_class
from fedcore.data import list_datasets, open_contract
from fedcore.data.disclosure import laxer
from fedcore.errors import Misuse
from flows.cli import options
from flows.terminal import console
from flows.workspace import Workspace

INIT_EXAMPLES = options.examples("fedlin site init north --datasets datasets --exchange /srv/exchange/north --algorithm hm1 --algorithm eb")

SERVE_EXAMPLES = options.examples("fedlin site serve north  # as the site's own system user, until it is told to end")

SHOW_EXAMPLES = options.examples("fedlin site show north")

SERVED = "served"

app = typer.Typer(
    cls=options.Commands,
    no_args_is_help=True,
    help="A site that keeps its devices' rows to itself.",
    epilog=SHOW_EXAMPLES,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the site.", show_default=False)]


@app.command(epilog=INIT_EXAMPLES)
def init(
    name: Name,
    datasets: Annotated[str, typer.Option(help="The datasets folder that only the site's user may read.", show_default=False)],
    exchange: Annotated[str, typer.Option(help="Where messages come and go: a folder, or a URL.", show_default=False)],
    algorithm: Annotated[list[str] | None, typer.Option(help="One that may be run, by default all; repeatable.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a site: its policy and its key; say how the server gets to know it."""
    from tasks.sites.policy import KEY, POLICY, first_policy, make_site

    for each in algorithm or ():
        algorithm_class(each)
    root, place = (given if "://" in given else str(Path(given).resolve()) for given in (datasets, exchange))
    policy = first_policy(name, root, place, algorithm or sorted(ALGORITHMS))
    folder = _folder(name)
    make_site(folder, policy)
    if as_json:
        print(json.dumps({"site": name, "folder": str(folder), "contracts": policy.contracts, "exchange": place}))
        return
    say = partial(console().print, soft_wrap=True)
    say(f"site {name} in {folder}")
    for dataset, digest in policy.contracts.items():
        say(f"  agrees to the contract of {dataset}, {digest}{_caution(policy, dataset)}")
    say(f"read {POLICY} there, hand {KEY} to whoever runs the server on a way that nobody else sees, and let its sites.toml have:")
    say(f'\n[sites.{name}]\nkey = "{name}.key"\nexchange = "{place}"\n\nthen: fedlin site serve {name}')


@app.command(epilog=SHOW_EXAMPLES)
def show(name: Name, as_json: options.AsJson = False) -> None:
    """Show which contracts a site agrees to, beside those that its data sets have now."""
    from tasks.sites.policy import read_policy

    policy = read_policy(_folder(name))
    present = _present(policy)
    if as_json:
        print(json.dumps({"site": name, "agreed": policy.contracts, "present": present}))
        return
    for dataset in sorted(present | policy.contracts):
        caution = _caution(policy, dataset) if dataset in present else ""
        console().print(f"{dataset}: {_state(policy, dataset, present)}, {present.get(dataset, 'no contract')}{caution}", soft_wrap=True)


@app.command(epilog=SERVE_EXAMPLES)
def serve(name: Name) -> None:
    """Answer requests to a site until told to end."""
    folder = _folder(name)
    if not folder.is_dir():
        raise Misuse(f"no site {name!r} in {folder.parent}: make it with fedlin site init")
    from flows.progress import say
    from flows.sites.worker import serve as serve_site
    from tasks.sites.policy import read_policy

    policy = read_policy(folder)
    present = _present(policy)
    for dataset in policy.contracts:
        if (state := _state(policy, dataset, present)) != SERVED:
            say(f"{dataset}: {state}")
    serve_site(folder)


def _present(policy: Any) -> dict[str, str]:
    """Digests of the contracts that the site's data sets have now."""
    return {dataset: open_contract(policy.root, dataset).contract.digest for dataset in list_datasets(policy.root)}


def _state(policy: Any, dataset: str, present: Mapping[str, str]) -> str:
    agreed = policy.contracts.get(dataset)
    return "not served" if agreed is None else SERVED if agreed == present.get(dataset) else "refused, its contract has changed"


def _folder(name: str) -> Path:
    if Path(name).name != name:
        raise Misuse(f"a site's name is no path, got {name!r}")
    return Workspace.find().root / "sites" / name


def _caution(policy: Any, dataset: str) -> str:
    rule = laxer(open_contract(policy.root, dataset).contract.disclosure, policy.disclosure)
    return f"; it will be refused: [disclosure] {rule}" if rule else ""
