"""`fedlin predict`: predictions of a training's fleet model for a file of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedcore.errors import Misuse
from flows.cli import options
from flows.cli.shown import near
from flows.terminal import console
from flows.workspace import Workspace

Model = Annotated[str, typer.Argument(metavar="RUN_ID", help="A training, or DATASET@champion.", show_default=False)]
File = Annotated[Path, typer.Argument(help="A .csv or .parquet file with the column device and the features.", show_default=False)]
Output = Annotated[
    Path | None, typer.Option(help="The .csv or .parquet file to write, by default FILE with -predicted.", show_default=False)
]

EXAMPLES = options.examples("fedlin predict RUN_ID new.csv", "fedlin predict demo@champion new.parquet --output predicted.csv")


def command(model: Model, file: File, output: Output = None, target: options.Target = None, as_json: options.AsJson = False) -> None:
    """Predict the target of new rows of any device, with intervals at 90 % where the method has them."""
    from flows.progress import say
    from flows.runs import find_model
    from tasks.fleet_models import build_model
    from tasks.new_rows import read_rows, write_predictions

    folder = find_model(Workspace.find(), model, target)
    if output and output.resolve() == file.resolve():
        raise Misuse(f"--output {output} is the file of the rows themselves: name another one")
    found = build_model(folder)
    predicted = found.predict(read_rows(file, found.contract))
    written = output or file.with_name(f"{file.stem}-predicted{file.suffix}")
    write_predictions(predicted, written)
    strangers = sorted({device for device in predicted["device"].to_list() if device not in found.estimates})
    if strangers:
        some = f"{', '.join(strangers[:5])}{f' and {len(strangers) - 5} others' if len(strangers) > 5 else ''}"
        say(f"not in the fleet, so predicted by its prior: {some}")
    if as_json:
        print(
            json.dumps({"run_id": folder.run_id, "rows": predicted.height, "strangers": strangers, "predictions": str(written)}), flush=True
        )
        return
    console().print(f"{predicted.height} rows predicted with run {folder.run_id}, in {near(written)}")
