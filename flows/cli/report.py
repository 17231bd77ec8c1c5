"""`fedlin report`: a training run as one HTML file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedcore.data.places import write_durably
from fedcore.errors import Misuse
from flows.cli import options
from flows.cli.shown import near
from flows.terminal import console
from flows.workspace import Workspace

NAME = "report.html"

ENDINGS = (".html", ".htm")

RunId = Annotated[str, typer.Argument(metavar="RUN_ID", help="A training that has ended, or DATASET@champion.", show_default=False)]
Compare = Annotated[
    list[str] | None,
    typer.Option(metavar="RUN_ID", help="Another training on the same data set and target; may be given again.", show_default=False),
]
Output = Annotated[Path | None, typer.Option(help=f"The file, by default {NAME} in the run's folder.", show_default=False)]

EXAMPLES = options.examples(
    "fedlin report RUN_ID", "fedlin report demo@champion", "fedlin report RUN_ID --compare OTHER_RUN_ID --output /srv/reports/pumps.html"
)


def command(
    run: RunId, compare: Compare = None, output: Output = None, target: options.Target = None, as_json: options.AsJson = False
) -> None:
    """Write what a run means for the devices, and its details, as one HTML file that needs no network."""
    from flows.runs import find_model
    from tasks.report.found import read_found
    from tasks.report.page import page
    from tasks.report.words import verdict

    if output and output.suffix.lower() not in ENDINGS:
        raise Misuse(f"--output {output}: a report is HTML, so name a file that ends in {' or '.join(ENDINGS)}; a browser prints it to PDF")
    workspace = Workspace.find()
    folder, *beside = (find_model(workspace, each, target) for each in (run, *(compare or ())))
    if folder in beside:
        raise Misuse(f"--compare {folder.run_id} is the run of the report itself: name another one")
    found, *others = map(read_found, (folder, *beside))
    file = output.absolute() if output else folder.path / NAME
    try:
        write_durably(file, page(found, others).encode())
    except OSError as error:
        raise Misuse(f"{file} cannot be written ({error.strerror}): name another file with --output") from None
    answer = verdict(found)
    if as_json:
        print(json.dumps({"run_id": folder.run_id, "report": str(file), **answer._asdict()}), flush=True)
        return
    out = console()
    out.print(f"{answer.headline}: {answer.sentences[0]}" if len(answer.sentences) else answer.headline)
    if answer.caution:
        out.print(f"caution: {answer.caution}")
    out.print(f"report in {near(file)}")
