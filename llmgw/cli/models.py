"""`llmgw models`"""

import time

from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, wants_json


def models(
    state: State = None, admin: Admin = None, output: Output = OutputFormat.TABLE, as_json: Json = False
) -> None:
    """List the catalog's models and how each fares.

    \b
    Example:
      llmgw models
      llmgw models --json | jq -r '.models[] | select(.state != "ready") | .name'
    """
    from llmgw.admin.shapes import ModelsOutput
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json, print_line, print_table
    from llmgw.cli.rows import MODEL_HEADERS, model_cells

    answer = connect(state_root(state), admin).get("models", ModelsOutput)
    if wants_json(output, as_json):
        print_json(answer)
    elif not answer.models:
        print_line("the catalog has no models")
    else:
        print_table(MODEL_HEADERS, [model_cells(row, time.time()) for row in answer.models])
